use std::time::Duration;

use h2::server::SendResponse;
use http::{HeaderMap, HeaderValue, Response};
use hyper::body::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{PATIENCE, connect, pour};
use crate::probe::grpc::check_over;
use crate::probe::within;

const SERVING: &[u8] = &[0, 0, 0, 0, 2, 8, 1];

#[derive(Clone)]
struct Answer {
    http: u16,
    /// `grpc-status` in the headers.
    early: Option<&'static str>,
    body: &'static [u8],
    /// `grpc-status` in the trailers, after the body.
    late: Option<&'static str>,
}

const GOOD: Answer = Answer {
    http: 200,
    early: None,
    body: SERVING,
    late: Some("0"),
};

/// A request that the server received: the request line, the headers, and the body.
type Asked = (String, HeaderMap, Vec<u8>);

async fn serve(stream: TcpStream, answer: Answer) -> Asked {
    let mut connection = h2::server::handshake(stream).await.expect("HTTP/2");
    let (request, respond) = connection.accept().await.expect("a request").unwrap();
    let (head, mut body) = request.into_parts();
    let exchange = async {
        let mut asked = Vec::new();
        while let Some(data) = body.data().await {
            asked.extend(data.expect("data"));
        }
        send(respond, answer);
        asked
    };
    let asked = tokio::select! {
        asked = exchange => asked,
        _ = std::future::poll_fn(|context| connection.poll_closed(context)) => panic!("closed"),
    };
    // Serve until the client closes the connection. The client does not announce the close.
    while let Some(Ok(_)) = connection.accept().await {}
    (format!("{} {}", head.method, head.uri), head.headers, asked)
}

fn send(mut respond: SendResponse<Bytes>, answer: Answer) {
    let mut head = Response::builder().status(answer.http);
    if let Some(status) = answer.early {
        head = head.header("grpc-status", status);
    }
    let head = head.header("content-type", "application/grpc");
    let ends = answer.body.is_empty() && answer.late.is_none();
    let mut stream = respond
        .send_response(head.body(()).unwrap(), ends)
        .expect("an open stream");
    if ends {
        return;
    }
    let body = Bytes::from_static(answer.body);
    stream
        .send_data(body, answer.late.is_none())
        .expect("an open stream");
    if let Some(status) = answer.late {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static(status));
        stream.send_trailers(trailers).expect("an open stream");
    }
}

async fn ask(service: &str, answer: Answer) -> (Result<(), String>, Asked) {
    let (connection, address, server) = connect(|stream| serve(stream, answer)).await;
    let attempt = check_over(connection, address, service);
    let outcome = timeout(PATIENCE, attempt).await.expect("an answer");
    let asked = timeout(PATIENCE, server).await.expect("the end");
    let outcome = outcome.map_err(|error| error.to_string());
    (outcome, asked.expect("a whole exchange"))
}

async fn answered(answer: Answer) -> Result<(), String> {
    ask("", answer).await.0
}

#[tokio::test]
async fn serving_is_a_success() {
    assert_eq!(answered(GOOD).await, Ok(()));
}

#[tokio::test]
async fn the_call_is_the_one_of_the_health_service() {
    let (outcome, (line, headers, body)) = ask("shop", GOOD).await;
    assert_eq!(outcome, Ok(()));
    assert!(line.starts_with("POST http://127.0.0.1:"), "{line}");
    assert!(line.ends_with("/grpc.health.v1.Health/Check"), "{line}");
    assert_eq!(headers["content-type"], "application/grpc");
    assert_eq!(headers["te"], "trailers");
    let agent = headers["user-agent"].to_str().unwrap();
    assert!(agent.starts_with("kube-probe/usher-"), "{agent}");
    assert_eq!(body, b"\0\0\0\0\x06\x0a\x04shop");
    let (_, (_, _, body)) = ask("", GOOD).await;
    assert_eq!(body, b"\0\0\0\0\0");
}

#[tokio::test]
async fn a_long_name_of_a_service_is_sent_whole() {
    let name = "s".repeat(16_000);
    let (outcome, (_, _, body)) = ask(&name, GOOD).await;
    assert_eq!(outcome, Ok(()));
    assert!(body.ends_with(name.as_bytes()));
}

#[tokio::test]
async fn every_other_answer_is_a_failure_that_says_what_it_was() {
    let cases: &[(&str, Answer)] = &[
        (
            "answered NOT_SERVING",
            Answer {
                body: &[0, 0, 0, 0, 2, 8, 2],
                ..GOOD
            },
        ),
        (
            "answered with serving status 0",
            Answer {
                body: &[0, 0, 0, 0, 2, 8, 0],
                ..GOOD
            },
        ),
        (
            "answered with serving status 0",
            Answer {
                body: &[0, 0, 0, 0, 0],
                ..GOOD
            },
        ),
        (
            "answered with serving status 3",
            Answer {
                body: &[0, 0, 0, 0, 2, 8, 3],
                ..GOOD
            },
        ),
        (
            "answered with gRPC status 5",
            Answer {
                body: b"",
                early: Some("5"),
                late: None,
                ..GOOD
            },
        ),
        (
            "answered with gRPC status 12",
            Answer {
                body: b"",
                late: Some("12"),
                ..GOOD
            },
        ),
        (
            "answered with gRPC status 14",
            Answer {
                late: Some("14"),
                ..GOOD
            },
        ),
        (
            "answered without a gRPC status",
            Answer { late: None, ..GOOD },
        ),
        (
            "answered without a gRPC status",
            Answer {
                body: b"",
                late: None,
                ..GOOD
            },
        ),
        ("HTTP status 404", Answer { http: 404, ..GOOD }),
        (
            "HTTP status 503",
            Answer {
                http: 503,
                body: b"",
                late: None,
                ..GOOD
            },
        ),
        ("something else", Answer { body: b"", ..GOOD }),
        (
            "something else",
            Answer {
                body: b"<html>",
                ..GOOD
            },
        ),
        // Invalid bodies: a compressed message, a message cut short, a message that is too long,
        // two messages, and bytes that are no protobuf.
        (
            "something else",
            Answer {
                body: &[1, 0, 0, 0, 2, 8, 1],
                ..GOOD
            },
        ),
        (
            "something else",
            Answer {
                body: &[0, 0, 0, 0, 3, 8, 1],
                ..GOOD
            },
        ),
        (
            "something else",
            Answer {
                body: &[0, 255, 255, 255, 255, 8, 1],
                ..GOOD
            },
        ),
        (
            "something else",
            Answer {
                body: &[0, 0, 0, 0, 2, 8, 1, 0, 0, 0, 0, 2, 8, 1],
                ..GOOD
            },
        ),
        (
            "something else",
            Answer {
                body: &[0, 0, 0, 0, 2, 8, 255],
                ..GOOD
            },
        ),
        (
            "something else",
            Answer {
                body: &[0; 11_000],
                ..GOOD
            },
        ),
    ];
    for (expected, answer) in cases {
        let sentence = answered(answer.clone()).await.expect_err(expected);
        assert!(sentence.contains(expected), "{expected}: {sentence}");
    }
}

#[tokio::test]
async fn what_a_later_version_adds_is_ignored() {
    // The answer has an unknown field with number 2.
    let body = &[0, 0, 0, 0, 5, 8, 1, 18, 1, 65];
    assert_eq!(answered(Answer { body, ..GOOD }).await, Ok(()));
}

#[tokio::test]
async fn a_server_that_speaks_something_else_is_a_failure() {
    let greetings: [&[u8]; 4] = [
        b"",
        b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
        b"\x15\x03\x01\0\x02\x02\x0a",
        &[0; 100],
    ];
    for greeting in greetings {
        let serve = async move |mut stream: TcpStream| {
            let _ = stream.read(&mut [0; 1024]).await;
            let _ = stream.write_all(greeting).await;
        };
        let (connection, address, _server) = connect(serve).await;
        let outcome = timeout(PATIENCE, check_over(connection, address, "")).await;
        let sentence = outcome.expect("given up").unwrap_err().to_string();
        assert!(
            sentence.starts_with("no answer from 127.0.0.1:"),
            "{sentence}"
        );
    }
}

#[tokio::test]
async fn a_server_that_says_nothing_is_given_up_in_time() {
    let serve = async |mut stream: TcpStream| {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
    };
    let (connection, address, server) = connect(serve).await;
    let attempt = check_over(connection, address, "");
    let outcome = within(Duration::from_millis(100), "answer", attempt).await;
    assert_eq!(outcome.unwrap_err().to_string(), "no answer within 100ms");
    timeout(PATIENCE, server).await.expect("the end").unwrap();
}

#[tokio::test]
async fn a_server_that_never_stops_is_not_listened_to_for_long() {
    // Frames of HTTP/2: settings, a ping, a frame of unknown kind, headers that never end, data.
    let settings: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
    let frames: [&[u8]; 5] = [
        settings,
        &[0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8],
        &[0, 0, 1, 99, 0, 0, 0, 0, 0, 1],
        &[0, 0, 1, 9, 0, 0, 0, 0, 1, 0x88],
        &[0, 0, 1, 0, 0, 0, 0, 0, 1, 65],
    ];
    for frame in frames {
        let serve = async move |mut stream: TcpStream| {
            stream.write_all(settings).await.unwrap();
            // The answer begins with a HEADERS frame that has the status. The headers end with this
            // frame, unless `frame` is a CONTINUATION frame.
            let flags = if frame[3] == 9 { 0 } else { 4 };
            let head = [0, 0, 1, 1, flags, 0, 0, 0, 1, 0x88];
            let _ = stream.read(&mut [0; 1024]).await;
            stream.write_all(&head).await.unwrap();
            pour(&mut stream, &frame.repeat(100)).await
        };
        let (connection, address, server) = connect(serve).await;
        let outcome = timeout(PATIENCE, check_over(connection, address, "")).await;
        outcome.expect("given up").unwrap_err();
        timeout(PATIENCE, server).await.expect("the end").unwrap();
    }
}
