//! The `httpGet` probe: the server has to answer a GET with a status of 200 to 399.
//!
//! The request is like kubelet's, but redirects are treated differently. kubelet follows a redirect
//! to the same host; the shim does not, and takes the redirect itself as a success.

#![allow(
    clippy::large_futures,
    reason = "the prober is a separate process, which ends with the attempt"
)]

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;

use http::header::{ACCEPT, CONNECTION, HOST, USER_AGENT};
use http::header::{CONTENT_LENGTH, TRAILER, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use usher_core::plan::{Host, HttpGet, Port, Scheme};

use super::connect::{self, Network};
use super::error::ProbeError;
use super::{AGENT, alongside, limits, tls};

/// Limit on data from a server, in bytes: a TLS handshake with certificates, and an answer.
const MAX_RECEIVED: u64 = 128 * 1024;
/// Limit of the head of an answer, in bytes. hyper accepts at most a hundred headers.
const MAX_HEAD: usize = 64 * 1024;
/// Maximum number of bytes of the body that are read, as in kubelet. The body is read so that a
/// server with a short body can finish its answer.
const MAX_BODY: usize = 10 * 1024;
/// Headers that `headers` does not copy from the author's list, because it sets or omits each of
/// them itself.
const OURS: [HeaderName; 6] = [
    HOST,
    USER_AGENT,
    ACCEPT,
    CONTENT_LENGTH,
    TRAILER,
    TRANSFER_ENCODING,
];
/// Characters that an annotation may have in a path, but that are escaped in an HTTP request. `%`
/// is not among them, because it begins an escape.
const ESCAPED: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'<')
    .add(b'>')
    .add(b'\\')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// Sends the request and judges the answer.
///
/// # Errors
///
/// If there was no answer, or the answer is a failure.
pub(super) async fn attempt(get: &HttpGet, network: Network<'_>) -> Result<(), ProbeError> {
    let (connection, address) = open(get, network).await?;
    get_over(connection, address, get).await
}

/// Sends the request; any answer is a success.
///
/// # Errors
///
/// If there was no answer.
pub(super) async fn request_once(get: &HttpGet, network: Network<'_>) -> Result<(), ProbeError> {
    let (connection, address) = open(get, network).await?;
    answer_over(connection, address, get).await.map(drop)
}

async fn open(get: &HttpGet, network: Network<'_>) -> Result<(TcpStream, SocketAddr), ProbeError> {
    match &get.port {
        Port::Number(port) => connect::open(get.host, port.get(), network).await,
        Port::Name(name) => Err(ProbeError::UnresolvedPort(name.clone())),
    }
}

pub(super) async fn get_over(
    connection: impl AsyncRead + AsyncWrite + Unpin,
    address: SocketAddr,
    get: &HttpGet,
) -> Result<(), ProbeError> {
    let status = answer_over(connection, address, get).await?.as_u16();
    match (200..400).contains(&status) {
        true => Ok(()),
        false => Err(ProbeError::HttpStatus { address, status }),
    }
}

async fn answer_over(
    connection: impl AsyncRead + AsyncWrite + Unpin,
    address: SocketAddr,
    get: &HttpGet,
) -> Result<StatusCode, ProbeError> {
    let connection = limits::bytes(connection, MAX_RECEIVED);
    let authority = match get.host {
        Some(Host::Localhost) => format!("localhost:{}", address.port()),
        Some(Host::Ip(_)) | None => address.to_string(),
    };
    let request = request(get, &authority)?;
    let answer = match get.scheme {
        Scheme::Http => exchange(connection, request).await,
        Scheme::Https => {
            let connection = tls::handshake(connection, get.host, address.ip()).await;
            exchange(
                connection.map_err(|error| ProbeError::NoTls { address, error })?,
                request,
            )
            .await
        }
    };
    answer.map_err(|error| ProbeError::NoHttpAnswer { address, error })
}

fn request(get: &HttpGet, authority: &str) -> Result<Request<String>, http::Error> {
    let path = get.path.split('#').next().unwrap_or_default();
    let path = utf8_percent_encode(path, ESCAPED).to_string();
    let mut request = Request::get(path).body(String::new())?;
    *request.headers_mut() = headers(get, authority)?;
    Ok(request)
}

/// Returns the author's headers, and the defaults that kubelet adds. If the author gives a header
/// an empty value, its default is left out, except for the host. The author can set neither
/// `Connection`, which is always `close`, nor the headers that give the message's length.
fn headers(get: &HttpGet, authority: &str) -> Result<HeaderMap, http::Error> {
    let given = |wanted: &HeaderName| {
        let header = get.headers.iter().find(|(name, _)| wanted == name.as_str());
        header.map(|(_, value)| value.as_str())
    };
    let host = given(&HOST).filter(|host| !host.is_empty());
    let mut headers = HeaderMap::new();
    headers.insert(
        HOST,
        HeaderValue::from_bytes(host.unwrap_or(authority).as_bytes())?,
    );
    for (name, default) in [(USER_AGENT, AGENT), (ACCEPT, "*/*")] {
        let value = given(&name).unwrap_or(default);
        if !value.is_empty() {
            headers.insert(name, HeaderValue::from_bytes(value.as_bytes())?);
        }
    }
    for (name, value) in &get.headers {
        let name = HeaderName::from_bytes(name.as_bytes())?;
        if !OURS.contains(&name) {
            headers.try_append(name, HeaderValue::from_bytes(value.as_bytes())?)?;
        }
    }
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    Ok(headers)
}

/// Sends a request and returns the answer. The connection runs inside this future, and is closed
/// when the future ends.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    request: Request<String>,
) -> Result<StatusCode, hyper::Error> {
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(MAX_HEAD)
        .title_case_headers(true)
        .handshake(TokioIo::new(stream))
        .await?;
    let answer = async move {
        let (head, body) = sender.send_request(request).await?.into_parts();
        skim(body).await;
        Ok(head.status)
    };
    alongside(connection, answer).await
}

/// Reads the body up to the limit. An error while reading does not matter: the status decides the
/// outcome, and many servers end TLS without a closing message.
async fn skim(body: Incoming) {
    let mut body = pin!(body);
    let mut left = MAX_BODY;
    while left > 0 {
        let Some(Ok(frame)) = poll_fn(|context| body.as_mut().poll_frame(context)).await else {
            return;
        };
        left = left.saturating_sub(frame.data_ref().map_or(0, |data| data.len()));
    }
}
