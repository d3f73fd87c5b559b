//! The servers: [`reviews`] by HTTPS, [`health`] by HTTP on a thread of its own, until the end has
//! [come](Stage). [`seats`] says which connection gives way when there are too many.

mod health;
mod reviews;
mod seats;

use std::net::IpAddr;
use std::time::Duration;

use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Bytes;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

pub use health::health;
pub use reviews::{MAX_REVIEW_BYTES, Reviews};

/// How far the program is. It only goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    Serving,
    /// Nobody new should come, but whoever does is answered: not everybody has heard of the end yet.
    Draining,
    /// Nobody new is answered.
    Closing,
}

/// Who asks how far the program is.
pub type Stages = watch::Receiver<Stage>;

/// Until it is that far; also when nobody is left who could say so.
async fn reached(mut stages: Stages, stage: Stage) {
    let _ = stages.wait_for(|at| *at >= stage).await;
}

/// After an error that is ours, as when there are no descriptors left, it is not tried at once.
const ACCEPTED_AGAIN: Duration = Duration::from_millis(100);

async fn accept(listener: &TcpListener) -> (TcpStream, IpAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                // Answers are short, and are waited for.
                let _ = stream.set_nodelay(true);
                return (stream, address.ip());
            }
            Err(error) => {
                tracing::warn!("a connection was not accepted: {error}");
                tokio::time::sleep(ACCEPTED_AGAIN).await;
            }
        }
    }
}

type Answer = Response<Full<Bytes>>;

fn answer(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static(kind);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

fn says(status: StatusCode, text: impl std::fmt::Display) -> Answer {
    answer(status, "text/plain; charset=utf-8", format!("{text}\n"))
}
