//! Makes a unary gRPC call over an existing connection.

use containerd_shim_protos::protobuf::{self, Message};
use h2::RecvStream;
use h2::client::{Builder, SendRequest};
use http::header::{CONTENT_TYPE, TE, USER_AGENT};
use http::{HeaderMap, Request, StatusCode};
use hyper::body::Bytes;
use percent_encoding::percent_decode_str;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::probe::{alongside, causes};

/// Limit for the headers of an answer, in bytes.
const MAX_HEADERS: u32 = 16 * 1024;
/// Size in bytes of the prefix before a message, which has a compression flag and the message's
/// length.
const PREFIX: usize = 5;

/// Names of the headers in which the server sends its status: a number, and a message.
const STATUS: &str = "grpc-status";
const REASON: &str = "grpc-message";

/// A call: the method, the names of server and client in the request, and the limit for the answer.
pub struct Call<'a> {
    /// The server's name or address.
    pub authority: &'a str,
    /// The service and its method, separated by a slash.
    pub method: &'a str,
    pub agent: &'a str,
    /// Limit for the body of the answer, in bytes.
    pub max_body: usize,
}

/// The reason why there was no answer.
#[derive(Debug, Error)]
pub enum NoAnswer {
    #[error("{}", causes(.0))]
    Http2(#[from] h2::Error),
    #[error("{}", causes(.0))]
    Request(#[from] http::Error),
    #[error("HTTP status {0}")]
    HttpStatus(u16),
    #[error("the request cannot be encoded: {0}")]
    Unencoded(#[from] protobuf::Error),
    #[error("the request is longer than gRPC allows")]
    LongQuestion,
}

/// An answer whose status is not success. The message completes the words "the server answered".
#[derive(Debug, Error)]
pub enum BadStatus {
    #[error("with gRPC status {0}")]
    Other(String),
    #[error("without a gRPC status")]
    None,
}

/// A server's answer.
pub struct Answer {
    /// `grpc-status`, from the headers or the trailers; zero means success.
    status: Option<String>,
    /// `grpc-message`, still percent-encoded.
    reason: Option<String>,
    /// The body of the answer; `None` if it is longer than the limit.
    pub body: Option<Vec<u8>>,
}

impl Call<'_> {
    /// Sends the request over `connection`, reads the answer, and closes the connection.
    ///
    /// # Errors
    ///
    /// If there was no answer.
    pub async fn ask(
        &self,
        connection: impl AsyncRead + AsyncWrite + Unpin,
        question: &impl Message,
    ) -> Result<Answer, NoAnswer> {
        let question = frame(question)?;
        let (sender, connection) = Builder::new()
            .enable_push(false)
            .max_header_list_size(MAX_HEADERS)
            .handshake(connection)
            .await?;
        alongside(connection, self.send(sender, question)).await
    }

    async fn send(&self, sender: SendRequest<Bytes>, question: Bytes) -> Result<Answer, NoAnswer> {
        let request = Request::post(format!("http://{}/{}", self.authority, self.method))
            .header(CONTENT_TYPE, "application/grpc")
            .header(TE, "trailers")
            .header(USER_AGENT, self.agent)
            .body(())?;
        let mut sender = sender.ready().await?;
        let (answer, mut stream) = sender.send_request(request, false)?;
        stream.send_data(question, true)?;
        let (head, body) = answer.await?.into_parts();
        if head.status != StatusCode::OK {
            return Err(NoAnswer::HttpStatus(head.status.as_u16()));
        }
        Ok(receive(&head.headers, body, self.max_body).await?)
    }
}

impl Answer {
    /// Checks that the status is success.
    ///
    /// # Errors
    ///
    /// If the status is not success.
    pub fn succeeded(&self) -> Result<(), BadStatus> {
        match self.status.as_deref() {
            Some("0") => Ok(()),
            Some(status) => Err(BadStatus::Other(status.to_owned())),
            None => Err(BadStatus::None),
        }
    }

    /// The status as a number; zero means success.
    pub fn status(&self) -> Option<&str> {
        self.status.as_deref()
    }

    /// The server's message for the status; usually absent after success.
    pub fn reason(&self) -> Option<String> {
        let escaped = self.reason.as_deref()?;
        let reason = percent_decode_str(escaped).decode_utf8_lossy();
        Some(reason.into_owned())
    }

    /// Decodes the message in the body; `None` unless the body is exactly one message. The message
    /// must be uncompressed, because the request allows no compression.
    pub fn message<M: Message>(&self) -> Option<M> {
        let (prefix, message) = self.body.as_ref()?.split_first_chunk::<PREFIX>()?;
        let [compressed, length @ ..] = *prefix;
        let length = usize::try_from(u32::from_be_bytes(length)).ok()?;
        let is_whole = compressed == 0 && length == message.len();
        is_whole.then(|| M::parse_from_bytes(message).ok())?
    }
}

/// Encodes a message with its prefix, which says that the message is not compressed, and how long
/// it is.
fn frame(message: &impl Message) -> Result<Bytes, NoAnswer> {
    let message = message.write_to_bytes()?;
    let length = u32::try_from(message.len()).map_err(|_| NoAnswer::LongQuestion)?;
    let mut frame = vec![0];
    frame.extend(length.to_be_bytes());
    frame.extend(message);
    Ok(frame.into())
}

async fn receive(
    headers: &HeaderMap,
    mut stream: RecvStream,
    max_body: usize,
) -> Result<Answer, h2::Error> {
    let mut body = Vec::new();
    while let Some(data) = stream.data().await {
        let data = data?;
        stream.flow_control().release_capacity(data.len())?;
        // The body is too long: return without reading the rest.
        if body.len().saturating_add(data.len()) > max_body {
            return Ok(Answer {
                status: text_of(headers, STATUS),
                reason: text_of(headers, REASON),
                body: None,
            });
        }
        body.extend_from_slice(&data);
    }
    let trailers = match headers.contains_key(STATUS) {
        true => None,
        false => stream.trailers().await?,
    };
    let last = trailers.as_ref().unwrap_or(headers);
    Ok(Answer {
        status: text_of(last, STATUS),
        reason: text_of(last, REASON),
        body: Some(body),
    })
}

fn text_of(headers: &HeaderMap, name: &str) -> Option<String> {
    let value = headers.get(name)?;
    value.to_str().ok().map(str::to_owned)
}
