//! Tests of the servers over real TLS. The client trusts the authorities that an API server would
//! trust.

use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::cluster::{CONFIGURATIONS, Cluster, HOST};
use super::review::{admission, review};
use super::{TIMEOUT, days, now};
use crate::certificate::{ClientAuthorities, CurrentCertificate, Files, Pair, Source};
use crate::metrics::Metrics;
use crate::run::Program;
use crate::server::MAX_REVIEW_BYTES;

pub(super) struct Running {
    pub(super) reviews: u16,
    pub(super) health: u16,
    end: oneshot::Sender<()>,
    over: JoinHandle<anyhow::Result<()>>,
    _nothing: TempDir,
}

pub(super) type Sender = http1::SendRequest<Full<Bytes>>;

/// Starts the program with the certificate in `served`. The program's own certificate directory is
/// empty, so this certificate stays in use.
pub(super) async fn start(served: &CurrentCertificate, drain: Duration) -> Running {
    start_for(served, drain, None).await
}

/// Does the same as [`start`]. If `clients` names authorities, each client needs a certificate that
/// one of these authorities has signed.
pub(super) async fn start_for(
    served: &CurrentCertificate,
    drain: Duration,
    clients: Option<ClientAuthorities>,
) -> Running {
    let nothing = tempfile::tempdir().unwrap();
    let listen = async || TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (reviews, health) = (listen().await, listen().await);
    let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
    let (reviews_port, health_port) = (port(&reviews), port(&health));
    let (end, ended) = oneshot::channel();
    let program = Program {
        admission: admission(),
        source: Source::Files(Files::new(nothing.path().to_owned(), served.clone())),
        served: served.clone(),
        metrics: Metrics::new().unwrap(),
        clients,
        reviews,
        health,
        drain,
    };
    let run = program.run(async move {
        let _ = ended.await;
    });
    Running {
        reviews: reviews_port,
        health: health_port,
        end,
        over: tokio::spawn(run),
        _nothing: nothing,
    }
}

pub(super) async fn connect(
    port: u16,
    authorities: &[u8],
) -> std::io::Result<TlsStream<TcpStream>> {
    connect_as(port, authorities, None).await
}

/// Connects as a client with this certificate and its key, in PEM.
pub(super) async fn connect_as(
    port: u16,
    authorities: &[u8],
    certificate: Option<(&[u8], &[u8])>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(authorities) {
        roots.add(authority.unwrap()).unwrap();
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match certificate {
        None => config.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = CertificateDer::pem_slice_iter(certificate).map(Result::unwrap);
            let key = PrivateKeyDer::from_pem_slice(key).unwrap();
            config.with_client_auth_cert(chain.collect(), key).unwrap()
        }
    };
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let name = ServerName::try_from(HOST).unwrap();
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
}

pub(super) async fn sender(port: u16, authorities: &[u8]) -> Sender {
    let stream = connect(port, authorities).await.expect("a handshake");
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

pub(super) async fn send(
    sender: &mut Sender,
    path: &str,
    body: impl Into<Bytes>,
) -> (Response<()>, String) {
    let request = Request::post(path).header("host", HOST);
    let request = request.body(Full::new(body.into())).unwrap();
    sender.ready().await.expect("the connection is open");
    let response = sender.send_request(request).await.expect("an answer");
    read(response).await
}

pub(super) async fn get(port: u16, path: &str) -> (StatusCode, String) {
    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get(path).body(Full::new(Bytes::new())).unwrap();
    let (response, body) = read(sender.send_request(request).await.unwrap()).await;
    (response.status(), body)
}

async fn read(response: Response<hyper::body::Incoming>) -> (Response<()>, String) {
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let body = String::from_utf8(body.to_vec()).unwrap();
    (Response::from_parts(parts, ()), body)
}

/// A review of a pod to which the webhook adds annotations.
pub(super) fn pod() -> String {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "shop", "annotations": { "usher/sidecars": "proxy" } },
        "spec": { "containers": [{ "name": "proxy" }, { "name": "shop" }] },
    });
    review(&pod, None).to_string()
}

pub(super) fn certified() -> (CurrentCertificate, Pair) {
    let pair = Pair::make(HOST, now()).unwrap();
    let served = CurrentCertificate::default();
    served.set(pair.certified().unwrap());
    (served, pair)
}

#[tokio::test]
async fn reviews_are_answered_and_counted() {
    let (served, pair) = certified();
    let running = start(&served, Duration::ZERO).await;
    let mut sender = sender(running.reviews, &pair.authorities).await;
    for _ in 0..3 {
        let (response, body) = send(&mut sender, "/mutate?timeout=5s", pod()).await;
        assert_eq!(response.status(), StatusCode::OK, "{body}");
        assert_eq!(response.headers()["content-type"], "application/json");
        let answer: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(answer["response"]["allowed"], true);
        assert!(answer["response"]["patch"].is_string());
    }
    let (status, text) = get(running.health, "/metrics").await;
    assert_eq!(status, StatusCode::OK);
    let line = r#"usher_webhook_admissions_total{outcome="changed",webhook="mutate"} 3"#;
    assert!(text.contains(line), "{text}");
}

#[tokio::test]
async fn a_review_is_answered_after_a_malformed_one_on_the_same_connection() {
    let (served, pair) = certified();
    let running = start(&served, Duration::ZERO).await;
    let mut one = sender(running.reviews, &pair.authorities).await;
    let (response, body) = send(&mut one, "/mutate", "{").await;
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    let begins = "the body cannot be read as an AdmissionReview: ";
    assert!(body.starts_with(begins), "{body}");
    let (response, _) = send(&mut one, "/other", "{}").await;
    assert_eq!(response.status(), StatusCode::NOT_FOUND);
    let (response, _) = send(&mut one, "/validate", pod()).await;
    assert_eq!(response.status(), StatusCode::OK);
}

/// Covers a body whose length is announced, and one whose length is not.
#[tokio::test]
async fn a_body_that_is_too_large_is_not_read() {
    let (served, pair) = certified();
    let running = start(&served, Duration::ZERO).await;
    let head = format!("POST /mutate HTTP/1.1\r\nhost: {HOST}\r\n");
    let long = MAX_REVIEW_BYTES + 1;
    let chunk = format!("{:x}\r\n{}\r\n", 1 << 20, " ".repeat(1 << 20));
    for (headers, body) in [
        (format!("content-length: {long}\r\n\r\n"), String::new()),
        (
            "transfer-encoding: chunked\r\n\r\n".to_owned(),
            chunk.repeat(8),
        ),
    ] {
        let mut stream = connect(running.reviews, &pair.authorities).await.unwrap();
        stream
            .write_all(format!("{head}{headers}").as_bytes())
            .await
            .unwrap();
        // The server may close the connection before all is written.
        let _ = stream.write_all(body.as_bytes()).await;
        let mut answer = [0; 20];
        let answered = timeout(TIMEOUT, stream.read_exact(&mut answer)).await;
        answered.expect("an answer").unwrap();
        assert!(
            answer.starts_with(b"HTTP/1.1 413"),
            "{:?}",
            answer.escape_ascii()
        );
    }
}

#[tokio::test]
async fn the_webhook_is_ready_once_it_has_a_certificate() {
    let (_, pair) = certified();
    let served = CurrentCertificate::default();
    let running = start(&served, Duration::ZERO).await;
    assert_eq!(get(running.health, "/healthz").await.0, StatusCode::OK);
    let (status, why) = get(running.health, "/readyz").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(why, "no certificate yet\n");
    assert!(connect(running.reviews, &pair.authorities).await.is_err());
    served.set(pair.certified().unwrap());
    assert_eq!(get(running.health, "/readyz").await.0, StatusCode::OK);
    assert!(connect(running.reviews, &pair.authorities).await.is_ok());
}

#[tokio::test]
async fn shutdown_loses_no_request() {
    let (served, pair) = certified();
    let running = start(&served, Duration::from_millis(500)).await;
    let mut kept = sender(running.reviews, &pair.authorities).await;
    send(&mut kept, "/mutate", pod()).await;
    running.end.send(()).unwrap();
    let told = async { while get(running.health, "/readyz").await.0 == StatusCode::OK {} };
    timeout(TIMEOUT, told).await.expect("kubelet is told");
    // Requests on old and new connections are answered, and the clients are told to close.
    let mut late = sender(running.reviews, &pair.authorities).await;
    for sender in [&mut kept, &mut late] {
        let (response, _) = send(sender, "/mutate", pod()).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["connection"], "close");
    }
    let over = timeout(TIMEOUT, running.over).await.expect("an end");
    over.unwrap().unwrap();
    assert!(connect(running.reviews, &pair.authorities).await.is_err());
}

#[tokio::test]
async fn a_request_that_is_still_arriving_at_shutdown_is_answered() {
    let (served, pair) = certified();
    let running = start(&served, Duration::ZERO).await;
    let mut stream = connect(running.reviews, &pair.authorities).await.unwrap();
    let body = pod();
    let (begin, rest) = body.split_at(body.len() / 2);
    let length = body.len();
    let head = format!("POST /mutate HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: {length}\r\n\r\n");
    stream
        .write_all(format!("{head}{begin}").as_bytes())
        .await
        .unwrap();
    stream.flush().await.unwrap();
    // The server answers a second request only after it has read the first part of the first
    // request.
    let mut other = sender(running.reviews, &pair.authorities).await;
    send(&mut other, "/mutate", pod()).await;
    running.end.send(()).unwrap();
    let refused = async {
        while TcpStream::connect(("127.0.0.1", running.reviews))
            .await
            .is_ok()
        {}
    };
    timeout(TIMEOUT, refused)
        .await
        .expect("new connections are refused");
    stream.write_all(rest.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    let over = timeout(TIMEOUT, running.over).await.expect("an end");
    over.unwrap().unwrap();
}

#[tokio::test]
async fn a_certificate_is_renewed_while_requests_go_on() {
    let cluster = Cluster::new();
    let served = CurrentCertificate::default();
    let mut manager = cluster.manager(served.clone());
    // A certificate made 80 days ago is due for renewal.
    manager.reconcile(now() - days(80)).await.unwrap();
    let old = cluster.authorities(CONFIGURATIONS[0]);
    let running = start(&served, Duration::ZERO).await;
    let port = running.reviews;
    let (stop, mut stopped) = oneshot::channel::<()>();
    let requests = tokio::spawn({
        let cluster = cluster.clone();
        async move {
            let mut count = 0_u32;
            while stopped.try_recv().is_err() {
                // Trusts the authorities that are published now, as the API server does.
                let authorities = cluster.authorities(CONFIGURATIONS[0]);
                let mut sender = sender(port, &authorities).await;
                let (response, _) = send(&mut sender, "/mutate", pod()).await;
                assert_eq!(response.status(), StatusCode::OK);
                count += 1;
            }
            count
        }
    });
    let mut kept = sender(port, &old).await;
    for switches in [false, true, false] {
        for _ in 0..5 {
            send(&mut kept, "/mutate", pod()).await;
        }
        assert_eq!(manager.reconcile(now()).await.unwrap(), switches);
    }
    let (response, _) = send(&mut kept, "/mutate", pod()).await;
    assert_eq!(response.status(), StatusCode::OK, "connections stay");
    // The new certificate is in use: the old authority alone no longer suffices.
    assert!(connect(port, &old).await.is_err());
    stop.send(()).unwrap();
    assert!(requests.await.expect("none was lost") > 0);
}
