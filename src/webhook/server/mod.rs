//! The servers: `reviews` by HTTPS, and [`health`] by HTTP on a thread of its own.
//!
//! [`ServerState`] says how far the program's shutdown has come. `slots` decides which connection
//! is closed when there are too many.

mod health;
mod reviews;
mod slots;

use std::net::IpAddr;
use std::time::Duration;

use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Bytes;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

pub use health::health;
pub use reviews::{MAX_REVIEW_BYTES, Reviews};

/// State of the program. The program goes through these states in order, and never back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServerState {
    Serving,
    /// `/readyz` fails, but new connections are still answered, because clients take a while to
    /// learn that this replica ends.
    Draining,
    /// New connections are no longer accepted.
    Closing,
}

/// Receiver with which a server follows the state of the program.
pub type ServerStates = watch::Receiver<ServerState>;

/// Waits until the program has reached `state`. Returns early if the sender of the states is
/// dropped.
async fn reached(mut states: ServerStates, state: ServerState) {
    let _ = states.wait_for(|at| *at >= state).await;
}

/// Pause before the next accept(2) after an error of this process, such as EMFILE.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

async fn accept(listener: &TcpListener) -> (TcpStream, IpAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                // Without TCP_NODELAY a short response could be delayed.
                let _ = stream.set_nodelay(true);
                return (stream, address.ip());
            }
            Err(error) => {
                tracing::warn!("cannot accept a connection: {error}");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
}

type HttpResponse = Response<Full<Bytes>>;

fn response(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> HttpResponse {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static(kind);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

fn text_response(status: StatusCode, text: impl std::fmt::Display) -> HttpResponse {
    response(status, "text/plain; charset=utf-8", format!("{text}\n"))
}
