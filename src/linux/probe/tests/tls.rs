use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, SupportedProtocolVersion, version};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::http::get;
use super::{PATIENCE, connect, pour};
use crate::probe::http::get_over;

/// The certificate that a server sends to every client.
#[derive(Debug)]
struct Fixed(Arc<CertifiedKey>);

impl ResolvesServerCert for Fixed {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

fn key() -> KeyPair {
    KeyPair::generate().expect("a key")
}

/// Returns a server that sends `certificate` and signs with `key`. The certificate may be any
/// bytes.
fn server(
    certificate: CertificateDer<'static>,
    key: &KeyPair,
    versions: &[&'static SupportedProtocolVersion],
) -> TlsAcceptor {
    let provider = ring::default_provider();
    let der = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let signer = provider.key_provider.load_private_key(der).expect("a key");
    let certified = Arc::new(CertifiedKey::new(vec![certificate], signer));
    let config = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(versions)
        .expect("versions")
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(Fixed(certified)));
    TlsAcceptor::from(Arc::new(config))
}

fn certificate(
    key: &KeyPair,
    edit: impl FnOnce(&mut CertificateParams),
) -> CertificateDer<'static> {
    let mut params = CertificateParams::new(vec!["proxy.example".to_owned()]).expect("a name");
    edit(&mut params);
    params.self_signed(key).expect("a certificate").into()
}

/// Probes a server; returns the outcome, and the server name that the client sent.
async fn probe(acceptor: TlsAcceptor, json: &str) -> (Result<(), String>, Option<String>) {
    let serve = async move |stream: TcpStream| {
        let mut stream = acceptor.accept(stream).await.expect("a handshake");
        let name = stream.get_ref().1.server_name().map(str::to_owned);
        let mut request = [0; 1024];
        let _ = stream.read(&mut request).await;
        // The answer has no length, and TLS ends without a closing message, as with many servers.
        let answer = b"HTTP/1.0 200 OK\r\n\r\nfine";
        stream.write_all(answer).await.expect("room");
        stream.flush().await.expect("room");
        name
    };
    let (connection, address, server) = connect(serve).await;
    let get = get(&format!(r#""scheme":"HTTPS",{json}"#));
    let attempt = get_over(connection, address, &get);
    let outcome = timeout(PATIENCE, attempt).await.expect("an answer");
    let outcome = outcome.map_err(|error| error.to_string());
    (outcome, server.await.expect("a handshake"))
}

#[tokio::test]
async fn a_certificate_of_any_kind_will_do() {
    let key = key();
    let other = self::key();
    let certificates = [
        ("self-signed", certificate(&key, |_| {})),
        (
            "expired",
            certificate(&key, |params| params.not_after = date_time_ymd(2001, 1, 1)),
        ),
        (
            "not valid yet",
            certificate(&key, |params| params.not_before = date_time_ymd(4000, 1, 1)),
        ),
        ("of another key", certificate(&other, |_| {})),
        ("no certificate", CertificateDer::from(b"nonsense".to_vec())),
    ];
    for (what, certificate) in certificates {
        for versions in [[&version::TLS12], [&version::TLS13]] {
            let acceptor = server(certificate.clone(), &key, &versions);
            let (outcome, _) = probe(acceptor, r#""path":"/""#).await;
            assert_eq!(outcome, Ok(()), "{what} {versions:?}");
        }
    }
}

#[tokio::test]
async fn a_name_is_sent_to_the_server_but_an_address_is_not() {
    let key = key();
    let certificate = certificate(&key, |_| {});
    for (json, expected) in [
        (r#""path":"/""#, None),
        (r#""host":"127.0.0.1""#, None),
        (r#""host":"localhost""#, Some("localhost".to_owned())),
    ] {
        let acceptor = server(certificate.clone(), &key, rustls::ALL_VERSIONS);
        assert_eq!(probe(acceptor, json).await, (Ok(()), expected));
    }
}

#[tokio::test]
async fn a_server_without_tls_is_a_failure() {
    let get = get(r#""scheme":"HTTPS""#);
    for answer in ["", "HTTP/1.1 200 OK\r\n\r\n", "\u{16}\u{3}\u{3}"] {
        let serve = async move |mut stream: TcpStream| {
            stream.write_all(answer.as_bytes()).await.unwrap();
        };
        let (connection, address, _server) = connect(serve).await;
        let outcome = timeout(PATIENCE, get_over(connection, address, &get)).await;
        let sentence = outcome.expect("given up").unwrap_err().to_string();
        assert!(sentence.starts_with("TLS with 127.0.0.1:"), "{sentence}");
    }
}

#[tokio::test]
async fn an_endless_handshake_is_not_read_for_long() {
    let get = get(r#""scheme":"HTTPS""#);
    // TLS records: a warning, a change of ciphers, the beginning of a long server hello.
    let records: [&[u8]; 3] = [
        &[21, 3, 3, 0, 2, 1, 90],
        &[20, 3, 3, 0, 1, 1],
        &[22, 3, 3, 0, 4, 2, 0, 255, 255],
    ];
    for record in records {
        let serve = async move |mut stream: TcpStream| {
            pour(&mut stream, &record.repeat(100)).await;
        };
        let (connection, address, server) = connect(serve).await;
        let outcome = timeout(PATIENCE, get_over(connection, address, &get)).await;
        outcome.expect("given up").unwrap_err();
        timeout(PATIENCE, server).await.expect("the end").unwrap();
    }
}
