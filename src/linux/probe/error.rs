//! Errors of attempts.

use std::error::Error as StdError;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use thiserror::Error;
use usher_core::process::ExitStatus;

use super::causes;
use crate::grpc::{BadStatus, NoAnswer};

/// The failure of one attempt of a probe, or of one run of a hook. The message follows words such
/// as "liveness probe of web failed 1 of 3 times: ". Parts of the message may come from a server in
/// the container.
#[derive(Debug, Error)]
pub enum ProbeError {
    #[error("port {0:?} is none of the container's named ports")]
    UnknownPort(String),
    /// An internal error: a prober got a port's name. The shim should have replaced the name by the
    /// number.
    #[error("port {0:?} is a name, expected its number")]
    UnresolvedPort(String),
    #[error("port 0 is none that can be connected to")]
    PortZero,
    #[error("no {wanted} within {limit:?}")]
    Late {
        wanted: &'static str,
        limit: Duration,
    },
    /// The error of the OCI runtime.
    #[error("{0}")]
    NotExecuted(#[source] Box<dyn StdError + Send + Sync>),
    #[error("the command exited with {}", .0.code())]
    CommandFailed(ExitStatus),
    #[error("the command did not end within {0:?}")]
    CommandLate(Duration),
    #[error("the end of the command cannot be seen: {0}")]
    CommandUnseen(#[source] io::Error),
    #[error("connection to {address}: {error}")]
    NotConnected {
        address: SocketAddr,
        #[source]
        error: io::Error,
    },
    #[error("the request is invalid: {}", causes(.0))]
    InvalidRequest(#[from] http::Error),
    #[error("TLS with {address}: {error}")]
    NoTls {
        address: SocketAddr,
        #[source]
        error: TlsError,
    },
    #[error("no answer from {address}: {}", causes(.error))]
    NoHttpAnswer {
        address: SocketAddr,
        #[source]
        error: hyper::Error,
    },
    #[error("{address} answered with status {status}; expected 200 to 399")]
    HttpStatus { address: SocketAddr, status: u16 },
    /// A gRPC probe was connected to `address`, but got no answer from the health service.
    #[error("no answer from {address}: {error}")]
    NoGrpcAnswer {
        address: SocketAddr,
        #[source]
        error: NoAnswer,
    },
    #[error("{address} answered {answer}; expected SERVING")]
    NotServing {
        address: SocketAddr,
        answer: HealthAnswer,
    },
    #[error("cannot start the process that sends the request: {0}")]
    NoProber(#[source] io::Error),
    #[error("cannot enter the container's network namespace: {0}")]
    NoNetwork(#[source] io::Error),
    #[error("the prober has no runtime: {0}")]
    NoRuntime(#[source] io::Error),
    #[error("the shim has ended")]
    ShimGone,
    #[error("the prober {problem}{}", ended(.status.as_ref()))]
    Prober {
        #[source]
        problem: ProberError,
        /// The status of the prober, if it explains the problem.
        status: Option<ExitStatus>,
    },
    /// The failure that a prober has reported.
    #[error("{0}")]
    Reported(String),
}

/// The problem of a prober. The message follows the words "the prober".
#[derive(Debug, Error)]
pub enum ProberError {
    #[error("has no order: {0}")]
    Unencoded(#[source] serde_json::Error),
    #[error("has an order of {length} bytes, expected at most {most}")]
    LongOrder { length: usize, most: u64 },
    #[error("cannot be talked to: {0}")]
    Socket(#[from] io::Error),
    #[error("gave no verdict")]
    NoVerdict,
}

/// A failed TLS handshake.
#[derive(Debug, Error)]
pub enum TlsError {
    #[error("{}", causes(.0))]
    Config(#[from] rustls::Error),
    #[error("{}", causes(.0))]
    Name(#[from] rustls::pki_types::InvalidDnsNameError),
    #[error("{}", causes(.0))]
    Handshake(#[from] io::Error),
}

/// An answer of the gRPC health service that is not `SERVING`.
#[derive(Debug, Error)]
pub enum HealthAnswer {
    #[error("NOT_SERVING")]
    NotServing,
    #[error("with serving status {0}")]
    Other(i32),
    #[error("with something else than a HealthCheckResponse")]
    Unknown,
    #[error(transparent)]
    Status(#[from] BadStatus),
}

fn ended(status: Option<&ExitStatus>) -> String {
    status.map_or_else(String::new, |status| {
        format!(" and ended with {}", status.code())
    })
}
