//! The `grpc` probe: the standard health service, in plain text, says SERVING.
//!
//! The protocol is <https://github.com/grpc/grpc/blob/master/doc/health-checking.md>.

use std::net::SocketAddr;

use containerd_shim_protos::protobuf::Message;
use containerd_shim_protos::protobuf::well_known_types::wrappers::{Int32Value, StringValue};
use h2::RecvStream;
use h2::client::{Builder, SendRequest};
use http::header::{CONTENT_TYPE, TE, USER_AGENT};
use http::{HeaderMap, Request, StatusCode};
use hyper::body::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};

use super::connect::{self, Network};
use super::{AGENT, alongside, causes, limits};

const METHOD: &str = "grpc.health.v1.Health/Check";
/// `HealthCheckResponse.ServingStatus.SERVING`.
const SERVING: i32 = 1;
/// What is taken of a server in all, in bytes and in frames. A call has five to ten of these: settings
/// and their acknowledgement, windows, a ping or two, headers, the answer, trailers.
const MAX_RECEIVED: u64 = 64 * 1024;
const MAX_FRAMES: u32 = 100;
/// As much of the answer's headers, and as much of its body, in bytes; the whole answer has seven.
const MAX_HEADERS: u32 = 16 * 1024;
const MAX_BODY: usize = 4 * 1024;
/// The bytes before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// What the server said.
struct Answer {
    /// `grpc-status`, from wherever it was; zero is success.
    status: Option<String>,
    /// None if it is too long for any of this service's.
    body: Option<Vec<u8>>,
}

/// Asks whether `service` serves; the empty name is the server as a whole.
///
/// # Errors
///
/// Why there was no answer, or which it was, in one sentence.
pub(super) async fn attempt(port: u16, service: &str, network: Network<'_>) -> Result<(), String> {
    let (connection, address) = connect::open(None, port, network).await?;
    check_over(connection, address, service).await
}

pub(super) async fn check_over(
    connection: impl AsyncRead + AsyncWrite + Unpin,
    address: SocketAddr,
    service: &str,
) -> Result<(), String> {
    let connection = limits::frames(connection, MAX_RECEIVED, MAX_FRAMES);
    let question = question(service)?;
    let answer = ask(connection, address, question)
        .await
        .map_err(|error| format!("no answer of {address}: {error}"))?;
    judge(&answer).map_err(|answer| format!("{address} answered {answer}; expected SERVING"))
}

/// A `HealthCheckRequest` in its frame. It has one field, a string with number 1, as `StringValue`
/// has: what is the same on the wire needs no generated code of its own.
fn question(service: &str) -> Result<Bytes, String> {
    let mut request = StringValue::new();
    request.value = service.to_owned();
    let message = request.write_to_bytes().map_err(|error| causes(&error))?;
    let length = u32::try_from(message.len()).map_err(|error| causes(&error))?;
    let mut frame = vec![0];
    frame.extend(length.to_be_bytes());
    frame.extend(message);
    Ok(frame.into())
}

/// One call. The connection is driven here, and is gone when this is over.
async fn ask(
    connection: impl AsyncRead + AsyncWrite + Unpin,
    address: SocketAddr,
    question: Bytes,
) -> Result<Answer, String> {
    let (sender, connection) = Builder::new()
        .enable_push(false)
        .max_header_list_size(MAX_HEADERS)
        .handshake(connection)
        .await
        .map_err(|error| causes(&error))?;
    alongside(connection, call(sender, address, question)).await
}

async fn call(
    sender: SendRequest<Bytes>,
    address: SocketAddr,
    question: Bytes,
) -> Result<Answer, String> {
    let request = Request::post(format!("http://{address}/{METHOD}"))
        .header(CONTENT_TYPE, "application/grpc")
        .header(TE, "trailers")
        .header(USER_AGENT, AGENT)
        .body(())
        .map_err(|error| causes(&error))?;
    let mut sender = sender.ready().await.map_err(|error| causes(&error))?;
    let (answer, mut stream) = sender
        .send_request(request, false)
        .map_err(|error| causes(&error))?;
    stream
        .send_data(question, true)
        .map_err(|error| causes(&error))?;
    let (head, body) = answer.await.map_err(|error| causes(&error))?.into_parts();
    if head.status != StatusCode::OK {
        return Err(format!("HTTP status {}", head.status.as_u16()));
    }
    receive(&head.headers, body)
        .await
        .map_err(|error| causes(&error))
}

async fn receive(headers: &HeaderMap, mut stream: RecvStream) -> Result<Answer, h2::Error> {
    let status = |headers: &HeaderMap| {
        let status = headers.get("grpc-status")?;
        status.to_str().ok().map(str::to_owned)
    };
    let mut body = Vec::new();
    while let Some(data) = stream.data().await {
        let data = data?;
        stream.flow_control().release_capacity(data.len())?;
        // Whatever comes behind.
        if body.len().saturating_add(data.len()) > MAX_BODY {
            return Ok(Answer {
                status: status(headers),
                body: None,
            });
        }
        body.extend_from_slice(&data);
    }
    Ok(Answer {
        status: match status(headers) {
            Some(status) => Some(status),
            None => stream.trailers().await?.as_ref().and_then(status),
        },
        body: Some(body),
    })
}

/// What else than SERVING was answered.
fn judge(answer: &Answer) -> Result<(), String> {
    let other = || "with something else than a HealthCheckResponse".to_owned();
    let body = answer.body.as_ref().ok_or_else(other)?;
    match answer.status.as_deref() {
        Some("0") => {}
        Some(status) => return Err(format!("with gRPC status {status}")),
        None => return Err("without a gRPC status".to_owned()),
    }
    // A `HealthCheckResponse` has one field, an enum with number 1: as an int32 on the wire.
    let response = message(body).and_then(|body| Int32Value::parse_from_bytes(body).ok());
    match response.map(|response| response.value) {
        Some(SERVING) => Ok(()),
        Some(2) => Err("NOT_SERVING".to_owned()),
        Some(status) => Err(format!("with serving status {status}")),
        None => Err(other()),
    }
}

/// The one message of a body, uncompressed since nothing else was asked for.
fn message(body: &[u8]) -> Option<&[u8]> {
    let (prefix, message) = body.split_first_chunk::<PREFIX>()?;
    let [compressed, length @ ..] = *prefix;
    let length = usize::try_from(u32::from_be_bytes(length)).ok()?;
    (compressed == 0 && length == message.len()).then_some(message)
}
