//! Health, readiness and metrics, for kubelet and Prometheus: on a thread of its own, which no review can
//! hold.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener as StdListener;
use std::time::Duration;

use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::seats::{Bounds, Seats};
use super::{Answer, Stage, Stages, accept, answer, says};
use crate::certificate::Served;
use crate::metrics::Metrics;

/// Many may ask at a time: where more do, kubelet's question may have to go before it is answered. Bodies are
/// not read.
const BOUNDS: Bounds = Bounds {
    connections: 512,
    bytes: 0,
    small: 0,
    for_small: 0,
};

/// Time for a client to ask and be answered.
const SERVED_WITHIN: Duration = Duration::from_secs(2);

/// Headers have some hundred bytes.
const BUFFER_BYTES: usize = 8 << 10;

/// Answers until nothing says any more how far the program is.
///
/// # Errors
///
/// If there can be no thread, or no runtime for it.
pub fn health(
    listener: TcpListener,
    served: Served,
    metrics: Metrics,
    mut stages: Stages,
) -> io::Result<()> {
    let listener: StdListener = listener.into_std()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let serving = move || {
        runtime.block_on(async {
            let answering = answering(listener, served, metrics, stages.clone());
            let over = async { while stages.changed().await.is_ok() {} };
            tokio::select! {
                outcome = answering => outcome,
                () = over => Ok(()),
            }
        })
    };
    let thread = std::thread::Builder::new().name("health".to_owned());
    thread.spawn(move || {
        if let Err(error) = serving() {
            // kubelet then restarts the program.
            tracing::error!("health: {error}");
        }
    })?;
    Ok(())
}

async fn answering(
    listener: StdListener,
    served: Served,
    metrics: Metrics,
    stages: Stages,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let seats = Seats::new(BOUNDS);
    loop {
        let (stream, address) = accept(&listener).await;
        let seat = seats.take(address);
        let (served, metrics, stages) = (served.clone(), metrics.clone(), stages.clone());
        tokio::spawn(async move {
            let service = service_fn(async |request: Request<Incoming>| {
                Ok::<_, Infallible>(respond(&request, &served, &metrics, &stages))
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .keep_alive(false)
                .max_buf_size(BUFFER_BYTES)
                .serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                // Who goes away, or does not come to the point, need not be told.
                _ = timeout(SERVED_WITHIN, connection) => {}
                () = seat.sent_away() => {}
            }
        });
    }
}
fn respond<B>(request: &Request<B>, served: &Served, metrics: &Metrics, stages: &Stages) -> Answer {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return says(StatusCode::METHOD_NOT_ALLOWED, "expected GET");
    }
    match request.uri().path() {
        "/healthz" => says(StatusCode::OK, "ok"),
        "/readyz" if *stages.borrow() >= Stage::Draining => {
            says(StatusCode::SERVICE_UNAVAILABLE, "it ends")
        }
        "/readyz" if !served.is_there() => says(
            StatusCode::SERVICE_UNAVAILABLE,
            "there is no certificate yet",
        ),
        "/readyz" => says(StatusCode::OK, "ok"),
        "/metrics" => match metrics.text() {
            Ok(text) => answer(StatusCode::OK, prometheus::TEXT_FORMAT, text),
            Err(error) => says(StatusCode::INTERNAL_SERVER_ERROR, error),
        },
        _ => says(
            StatusCode::NOT_FOUND,
            "expected /healthz, /readyz or /metrics",
        ),
    }
}
