//! The `grpc` probe: the standard health service has to answer SERVING, without TLS.
//!
//! The protocol is <https://github.com/grpc/grpc/blob/master/doc/health-checking.md>.

use std::net::SocketAddr;

use containerd_shim_protos::protobuf::well_known_types::wrappers::{Int32Value, StringValue};
use tokio::io::{AsyncRead, AsyncWrite};

use super::connect::{self, Network};
use super::error::{HealthAnswer, ProbeError};
use super::{AGENT, limits};
use crate::grpc::{Answer, Call};

const METHOD: &str = "grpc.health.v1.Health/Check";
/// `HealthCheckResponse.ServingStatus.SERVING`.
const SERVING: i32 = 1;
/// Limits on data from a server, in bytes and in frames. A call has five to ten frames: settings
/// and their acknowledgement, windows, a ping or two, headers, the answer, trailers.
const MAX_RECEIVED: u64 = 64 * 1024;
const MAX_FRAMES: u32 = 100;
/// Limit on the answer's body, in bytes. The body of a valid answer has seven bytes.
const MAX_BODY: usize = 4 * 1024;

/// Asks whether `service` serves; the empty name means the whole server.
///
/// # Errors
///
/// If there was no answer, or an answer other than SERVING.
pub(super) async fn attempt(
    port: u16,
    service: &str,
    network: Network<'_>,
) -> Result<(), ProbeError> {
    let (connection, address) = connect::open(None, port, network).await?;
    check_over(connection, address, service).await
}

pub(super) async fn check_over(
    connection: impl AsyncRead + AsyncWrite + Unpin,
    address: SocketAddr,
    service: &str,
) -> Result<(), ProbeError> {
    let connection = limits::frames(connection, MAX_RECEIVED, MAX_FRAMES);
    // `HealthCheckRequest` has one field, a string with number 1. `StringValue` has the same field
    // and the same encoding, so no code needs to be generated for `HealthCheckRequest`.
    let mut question = StringValue::new();
    question.value = service.to_owned();
    let call = Call {
        authority: &address.to_string(),
        method: METHOD,
        agent: AGENT,
        max_body: MAX_BODY,
    };
    let answer = call
        .ask(connection, &question)
        .await
        .map_err(|error| ProbeError::NoGrpcAnswer { address, error })?;
    judge(&answer).map_err(|answer| ProbeError::NotServing { address, answer })
}

/// Returns an error for any answer but SERVING.
fn judge(answer: &Answer) -> Result<(), HealthAnswer> {
    if answer.body.is_none() {
        return Err(HealthAnswer::Unknown);
    }
    answer.succeeded()?;
    // `HealthCheckResponse` has one field, an enum with number 1, which is encoded like an int32.
    let response: Option<Int32Value> = answer.message();
    match response.map(|response| response.value) {
        Some(SERVING) => Ok(()),
        Some(2) => Err(HealthAnswer::NotServing),
        Some(status) => Err(HealthAnswer::Other(status)),
        None => Err(HealthAnswer::Unknown),
    }
}
