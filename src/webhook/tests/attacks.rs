//! Tests that the webhook answers the API server's reviews even while attackers use the webhook.

use std::io::{self, Read, Write};
use std::time::Duration;

use http::{Request, StatusCode};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::TIMEOUT;
use super::cluster::HOST;
use super::review::review;
use super::server::{
    Running, certified, connect, connect_as, get, pod, send, sender, start, start_for,
};
use crate::certificate::{ClientAuthorities, Pair};

/// Longest acceptable wait for an answer. The API server gives up after 5 s.
const SOON: Duration = Duration::from_secs(4);

/// Asserts that a review on a new connection is answered soon.
async fn assert_answered_soon(running: &Running, pair: &Pair) {
    let asked = async {
        let mut sender = sender(running.reviews, &pair.authorities).await;
        let (response, body) = send(&mut sender, "/mutate", pod()).await;
        assert_eq!(response.status(), StatusCode::OK, "{body}");
    };
    timeout(SOON, asked).await.expect("an answer");
}

#[tokio::test]
async fn silent_connections_are_closed_for_new_ones() {
    let (served, pair) = certified();
    let running = start(&served, Duration::ZERO).await;
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(connect(running.reviews, &pair.authorities).await.unwrap());
    }
    assert_answered_soon(&running, &pair).await;
    let mut without_tls = Vec::new();
    for _ in 0..300 {
        without_tls.push(TcpStream::connect(("127.0.0.1", running.reviews)).await);
    }
    assert_answered_soon(&running, &pair).await;
}

#[tokio::test]
async fn a_connection_with_an_answered_request_outlives_silent_ones() {
    let (served, pair) = certified();
    let running = start(&served, Duration::ZERO).await;
    let mut kept = sender(running.reviews, &pair.authorities).await;
    send(&mut kept, "/mutate", pod()).await;
    let mut silent = Vec::new();
    for _ in 0..600 {
        silent.push(TcpStream::connect(("127.0.0.1", running.reviews)).await);
    }
    let (response, _) = send(&mut kept, "/mutate", pod()).await;
    assert_eq!(response.status(), StatusCode::OK);
    let (_, text) = get(running.health, "/metrics").await;
    let line = text
        .lines()
        .find(|line| line.starts_with("usher_webhook_connections_sent_away_total"));
    assert_ne!(
        line,
        Some("usher_webhook_connections_sent_away_total 0"),
        "{text}"
    );
}

#[tokio::test]
async fn announced_bytes_that_do_not_come_take_no_room() {
    let (served, pair) = certified();
    let running = start(&served, Duration::ZERO).await;
    let mut claims = Vec::new();
    let head = format!("POST /mutate HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: 7340032\r\n\r\n ");
    for _ in 0..60 {
        let mut stream = connect(running.reviews, &pair.authorities).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        claims.push(stream);
    }
    assert_answered_soon(&running, &pair).await;
}

#[tokio::test]
async fn unfinished_large_requests_are_closed_for_small_ones() {
    let (served, pair) = certified();
    let running = start(&served, Duration::ZERO).await;
    let mut half = Vec::new();
    let body = " ".repeat(5 << 20);
    let head = format!("POST /mutate HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: 7340032\r\n\r\n");
    for _ in 0..6 {
        let mut stream = connect(running.reviews, &pair.authorities).await.unwrap();
        // The server may close the connection before all is written.
        let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
        half.push(stream);
    }
    assert_answered_soon(&running, &pair).await;
}

#[tokio::test]
async fn silent_connections_do_not_block_health() {
    let (served, _) = certified();
    let running = start(&served, Duration::ZERO).await;
    let mut silent = Vec::new();
    for _ in 0..520 {
        silent.push(TcpStream::connect(("127.0.0.1", running.health)).await);
    }
    let answered = timeout(SOON, get(running.health, "/healthz")).await;
    assert_eq!(answered.expect("an answer").0, StatusCode::OK);
}

/// The test's thread serves the reviews, and the blocking reads below keep this thread busy. So
/// another thread has to serve `/healthz`, `/readyz` and `/metrics`.
#[tokio::test]
async fn health_is_answered_while_the_thread_of_reviews_is_busy() {
    let (served, _) = certified();
    let running = start(&served, Duration::ZERO).await;
    get(running.health, "/healthz").await;
    for path in ["/healthz", "/readyz", "/metrics"] {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", running.health)).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: {HOST}\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    }
}

#[tokio::test]
async fn many_costly_reviews_leave_time_for_others() {
    let (served, pair) = certified();
    let running = start(&served, Duration::ZERO).await;
    let containers: Vec<Value> = (0..1000)
        .map(|index| json!({ "name": format!("c{index}") }))
        .collect();
    let costly = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "shop", "annotations": { "usher/sidecars": "*c*1*,*c*2*" } },
        "spec": { "containers": containers },
    });
    let costly = review(&costly, None).to_string();
    let (done, mut all) = mpsc::channel::<()>(1);
    for _ in 0..30 {
        let mut sender = sender(running.reviews, &pair.authorities).await;
        let (costly, done) = (costly.clone(), done.clone());
        tokio::spawn(async move {
            send(&mut sender, "/mutate", costly).await;
            drop(done);
        });
    }
    drop(done);
    assert_answered_soon(&running, &pair).await;
    let none_is_left = all.try_recv();
    assert_eq!(none_is_left, Err(mpsc::error::TryRecvError::Empty));
}

#[tokio::test]
async fn a_client_without_a_required_certificate_is_rejected() {
    let (served, pair) = certified();
    let [client, other] = [(); 2].map(|()| client());
    let clients = ClientAuthorities::of(client.0.as_bytes()).unwrap();
    let running = start_for(&served, Duration::ZERO, Some(clients)).await;
    let ask = async |certificate: Option<&(String, String)>| {
        let certificate = certificate.map(|(it, key)| (it.as_bytes(), key.as_bytes()));
        let stream = connect_as(running.reviews, &pair.authorities, certificate).await?;
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(io::Error::other)?;
        tokio::spawn(connection);
        let request = Request::post("/mutate").header("host", HOST);
        let request = request.body(Full::new(Bytes::from(pod()))).unwrap();
        let response = sender.send_request(request).await;
        Ok::<_, io::Error>(response.map_err(io::Error::other)?.status())
    };
    assert_eq!(ask(Some(&client)).await.unwrap(), StatusCode::OK);
    assert!(ask(None).await.is_err());
    assert!(ask(Some(&other)).await.is_err());
    assert!(ClientAuthorities::of(b"nothing").is_err());
}

/// A self-signed certificate and its key, in PEM.
fn client() -> (String, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(["kube-apiserver".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    (certificate.pem(), key.serialize_pem())
}
