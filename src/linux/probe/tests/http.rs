use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{PATIENCE, connect, head_of_request, pour};
use crate::probe::http::get_over;
use crate::probe::within;
use usher_core::plan::{Check, HttpGet, Plan};

/// More bytes than the kernel buffers for a connection that its client does not read.
const BUFFERED: usize = 16 * 1024 * 1024;

pub(in crate::probe) fn get(json: &str) -> HttpGet {
    let annotations = [
        ("usher/sidecars", "p".to_owned()),
        (
            "startup-probe.usher/p",
            format!(r#"{{"httpGet":{{"port":1,{json}}}}}"#),
        ),
    ];
    let annotations = annotations.map(|(key, value)| (key.to_owned(), value));
    let plan = Plan::parse(&annotations.into()).expect("a valid probe");
    match &plan.container("p").startup_probe {
        Some(probe) => match &probe.check {
            Check::HttpGet(get) => get.clone(),
            other => panic!("{other:?}"),
        },
        None => panic!("no probe"),
    }
}

fn plain() -> HttpGet {
    get(r#""path":"/""#)
}

/// Returns the outcome of a probe whose server sends `answer` and nothing else.
async fn answered(answer: impl AsRef<[u8]> + Send + Sync + 'static) -> Result<(), String> {
    let serve = async move |mut stream: TcpStream| {
        head_of_request(&mut stream).await;
        // Fails if the client has closed the connection before it read everything.
        let _ = stream.write_all(answer.as_ref()).await;
    };
    let (connection, address, _server) = connect(serve).await;
    let get = plain();
    let attempt = get_over(connection, address, &get);
    let outcome = within(PATIENCE, "answer", attempt).await;
    outcome.map_err(|error| error.to_string())
}

/// Returns the request that a probe sends, and the address that it is sent to.
async fn request(get: &HttpGet) -> (String, String) {
    let serve = async |mut stream: TcpStream| {
        let head = head_of_request(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        head
    };
    let (connection, address, server) = connect(serve).await;
    get_over(connection, address, get).await.expect("a success");
    (server.await.unwrap(), address.to_string())
}

#[tokio::test]
async fn a_status_of_200_to_399_is_a_success() {
    for status in ["200 OK", "204 No Content", "304 Not Modified", "399", "200"] {
        let answer = format!("HTTP/1.1 {status}\r\n\r\n");
        assert_eq!(answered(answer).await, Ok(()), "{status}");
    }
}

#[tokio::test]
async fn any_other_status_is_a_failure_that_names_it() {
    for status in ["400", "404", "500", "503", "599", "999"] {
        let answer = format!("HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n");
        let sentence = answered(answer).await.unwrap_err();
        let expected = format!("answered with status {status}; expected 200 to 399");
        assert!(sentence.ends_with(&expected), "{sentence}");
    }
}

#[tokio::test]
async fn a_redirect_is_a_success_and_is_not_followed() {
    let answer = "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(answered(answer).await, Ok(()));
}

#[tokio::test]
async fn an_old_server_will_do() {
    assert_eq!(answered("HTTP/1.0 200 OK\r\n\r\nfine").await, Ok(()));
    assert_eq!(answered("HTTP/1.0 200\n\nfine").await, Ok(()));
}

#[tokio::test]
async fn what_comes_before_the_answer_is_none() {
    for first in ["100 Continue", "103 Early Hints", "102 Processing"] {
        let head = format!("HTTP/1.1 {first}\r\n\r\n");
        let ready = format!("{head}HTTP/1.1 200 OK\r\n\r\n");
        assert_eq!(answered(ready).await, Ok(()), "{first}");
        let busy = format!("{head}HTTP/1.1 503 No\r\n\r\n");
        assert!(answered(busy).await.unwrap_err().contains("503"), "{first}");
        assert!(answered(head).await.is_err(), "{first}");
    }
}

#[tokio::test]
async fn what_is_no_answer_is_a_failure() {
    let nothing = [
        "",
        "\r\n\r\n",
        "200 OK\r\n\r\n",
        "HTTP/1.1 200",
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.1 200 OK\r\nA: b\r\n",
        "HTTP/1.1 20 OK\r\n\r\n",
        "HTTP/1.1 -200 OK\r\n\r\n",
        "HTTP/1.1 2000 OK\r\n\r\n",
        "HTTP/0.9 200 OK\r\n\r\n",
        "HTTP/2 200 OK\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: x\r\n A\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA b\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA: \0\r\n\r\n",
        "SSH-2.0-OpenSSH_9.2\r\n",
        "220 mail ESMTP\r\n",
        "\u{15}\u{3}\u{1}\0\u{2}\u{2}\n",
        "<html></html>",
    ];
    for answer in nothing {
        let sentence = answered(answer).await.expect_err(answer);
        assert!(!sentence.contains('\n'), "{sentence}");
    }
}

#[tokio::test]
async fn a_server_that_closes_at_once_is_a_failure() {
    let (connection, address, _server) = connect(async |stream: TcpStream| drop(stream)).await;
    let sentence = get_over(connection, address, &plain())
        .await
        .unwrap_err()
        .to_string();
    assert!(
        sentence.starts_with("no answer from 127.0.0.1:"),
        "{sentence}"
    );
}

#[tokio::test]
async fn a_server_that_closes_its_half_without_an_answer_is_a_failure() {
    let serve = async |mut stream: TcpStream| {
        stream.shutdown().await.unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
    };
    let (connection, address, server) = connect(serve).await;
    get_over(connection, address, &plain()).await.unwrap_err();
    // The server ends when the client has closed the connection.
    timeout(PATIENCE, server).await.expect("the end").unwrap();
}

#[tokio::test]
async fn a_server_may_write_an_answer_before_it_is_asked_and_cut_its_body_short() {
    assert_eq!(
        answered("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nno").await,
        Ok(())
    );
    let chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnonsense";
    assert_eq!(answered(chunks).await, Ok(()));
}

#[tokio::test]
async fn a_server_that_says_nothing_or_too_slowly_is_given_up_in_time() {
    let slow = [
        ("", ""),
        ("HTTP/1.1 200 ", "O"),
        ("HTTP/1.1 200 OK\r\nX-A: ", "b"),
        ("HTTP/1.1 200 OK\r\n\r\n", "body"),
    ];
    for (begin, more) in slow {
        let serve = async move |mut stream: TcpStream| {
            head_of_request(&mut stream).await;
            stream.write_all(begin.as_bytes()).await.unwrap();
            // Send `more` every ten milliseconds until the client closes the connection. If `more`
            // is empty, send nothing, and wait until the client closes the connection.
            while !more.is_empty() && stream.write_all(more.as_bytes()).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let _ = stream.read(&mut [0]).await;
        };
        let (connection, address, server) = connect(serve).await;
        let get = plain();
        let attempt = get_over(connection, address, &get);
        let outcome = within(Duration::from_millis(200), "answer", attempt);
        let outcome = timeout(PATIENCE, outcome).await.expect("given up");
        let error = outcome.unwrap_err().to_string();
        assert_eq!(error, "no answer within 200ms", "{begin}");
        timeout(PATIENCE, server).await.expect("the end").unwrap();
    }
}

#[tokio::test]
async fn an_endless_head_is_a_failure_and_not_read_for_long() {
    let many: &[(&str, &str)] = &[
        ("HTTP/1.1 200 OK\r\n", "X-Header: some value\r\n"),
        ("HTTP/1.1 200 OK\r\nX-Header: ", "aaaaaaaaaaaaaaaa"),
        ("HTTP/1.1 200 ", "OKOKOKOKOKOK"),
        ("", "HTTP/1.1 100 Continue\r\n\r\n"),
        ("", "\r\n"),
    ];
    for &(begin, more) in many {
        let serve = async move |mut stream: TcpStream| {
            let _ = stream.write_all(begin.as_bytes()).await;
            pour(&mut stream, more.repeat(100).as_bytes()).await
        };
        let (connection, address, server) = connect(serve).await;
        let get = plain();
        let attempt = get_over(connection, address, &get);
        let outcome = timeout(PATIENCE, attempt).await.expect("given up");
        assert!(outcome.is_err(), "{more}");
        assert!(timeout(PATIENCE, server).await.expect("the end").unwrap() < BUFFERED);
    }
}

#[tokio::test]
async fn of_an_endless_body_no_more_is_read_than_kubelet_reads() {
    for framing in ["", "Content-Length: 1000000000000\r\n"] {
        let serve = async move |mut stream: TcpStream| {
            let head = format!("HTTP/1.1 200 OK\r\n{framing}\r\n");
            let _ = stream.write_all(head.as_bytes()).await;
            pour(&mut stream, &[b'a'; 4096]).await
        };
        let (connection, address, server) = connect(serve).await;
        let get = plain();
        let attempt = get_over(connection, address, &get);
        let outcome = timeout(PATIENCE, attempt).await.expect("an end");
        outcome.unwrap();
        assert!(timeout(PATIENCE, server).await.expect("the end").unwrap() < BUFFERED);
    }
}

#[tokio::test]
async fn the_request_is_the_one_that_kubelet_makes() {
    let (request, address) = request(&get(r#""path":"healthz?full=1&x=%20#part""#)).await;
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        request,
        format!(
            "GET /healthz?full=1&x=%20 HTTP/1.1\r\nHost: {address}\r\n\
             User-Agent: kube-probe/usher-{version}\r\nAccept: */*\r\nConnection: close\r\n\r\n"
        )
    );
}

#[tokio::test]
async fn the_author_may_say_more_and_otherwise() {
    let get = get(
        r#""httpHeaders":[{"name":"host","value":"shop.example"},{"name":"X-A","value":"1"},
        {"name":"Accept","value":""},{"name":"User-Agent","value":"me"},{"name":"x-a","value":"zwölf"},
        {"name":"Content-Length","value":"9"},{"name":"Transfer-Encoding","value":"chunked"}]"#,
    );
    let (request, _) = request(&get).await;
    assert_eq!(
        request,
        "GET / HTTP/1.1\r\nHost: shop.example\r\nUser-Agent: me\r\nX-A: 1\r\nX-A: zwölf\r\n\
         Connection: close\r\n\r\n"
    );
}

#[tokio::test]
async fn the_host_is_as_the_author_wrote_it() {
    for (host, expected) in [("localhost", "localhost"), ("127.0.0.1", "127.0.0.1")] {
        let (request, address) = request(&get(&format!(r#""host":"{host}""#))).await;
        let port = address.rsplit(':').next().unwrap();
        let line = format!("\r\nHost: {expected}:{port}\r\n");
        assert!(request.contains(&line), "{request}");
    }
}

#[tokio::test]
async fn what_a_request_must_not_have_is_escaped_in_its_path() {
    let paths = [
        (r"/a b", "/a%20b"),
        (r"/ä?q=ö", "/%C3%A4?q=%C3%B6"),
        (r"/<{|}>`^\\\u00a0", "/%3C%7B%7C%7D%3E%60%5E%5C%C2%A0"),
        (r"//other.example/x", "//other.example/x"),
        (r"/\u007e[]:@!$&'()*+,;=", "/~[]:@!$&'()*+,;="),
    ];
    for (path, expected) in paths {
        let (request, _) = request(&get(&format!(r#""path":"{path}""#))).await;
        let line = format!("GET {expected} HTTP/1.1\r\n");
        assert!(request.starts_with(&line), "{request}");
    }
}

#[tokio::test]
async fn the_longest_path_and_header_that_can_be_written_are_sent() {
    let long = "ä".repeat(3_900);
    let get = get(&format!(
        r#""path":"/{long}","httpHeaders":[{{"name":"X-A","value":"{long}"}}]"#
    ));
    let (request, _) = request(&get).await;
    assert!(request.contains(&long));
}
