//! Health, readiness and metrics, for kubelet and Prometheus, on a thread that no review can block.

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

use super::slots::{Limits, Slots};
use super::{HttpResponse, ServerState, ServerStates, accept, response, text_response};
use crate::certificate::CurrentCertificate;
use crate::metrics::Metrics;

/// Limits of this listener. If there are more connections, kubelet's connection may be closed
/// before its request is answered. Request bodies are not read, so no bytes are reserved for them.
const LIMITS: Limits = Limits {
    connections: 512,
    bytes: 0,
    small: 0,
    for_small: 0,
};

/// Time limit for a connection, from accept(2) to the end of its response.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);

/// Size of a connection's buffer; headers have some hundred bytes.
const BUFFER_BYTES: usize = 8 << 10;

/// Answers requests until the sender of `states` is dropped.
///
/// # Errors
///
/// If the thread or its runtime cannot be created.
pub fn health(
    listener: TcpListener,
    served: CurrentCertificate,
    metrics: Metrics,
    mut states: ServerStates,
) -> io::Result<()> {
    let listener: StdListener = listener.into_std()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let serving = move || {
        runtime.block_on(async {
            let answering = answering(listener, served, metrics, states.clone());
            let over = async { while states.changed().await.is_ok() {} };
            tokio::select! {
                outcome = answering => outcome,
                () = over => Ok(()),
            }
        })
    };
    let thread = std::thread::Builder::new().name("health".to_owned());
    thread.spawn(move || {
        if let Err(error) = serving() {
            // kubelet's liveness probe now fails, and kubelet restarts the program.
            tracing::error!("health: {error}");
        }
    })?;
    Ok(())
}

async fn answering(
    listener: StdListener,
    served: CurrentCertificate,
    metrics: Metrics,
    states: ServerStates,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let slots = Slots::new(LIMITS);
    loop {
        let (stream, address) = accept(&listener).await;
        let slot = slots.take(address);
        let (served, metrics, states) = (served.clone(), metrics.clone(), states.clone());
        tokio::spawn(async move {
            let service = service_fn(async |request: Request<Incoming>| {
                Ok::<_, Infallible>(respond(&request, &served, &metrics, &states))
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .keep_alive(false)
                .max_buf_size(BUFFER_BYTES)
                .serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                // A client that disconnects or is too slow gets no response.
                _ = timeout(CLIENT_TIMEOUT, connection) => {}
                () = slot.evicted() => {}
            }
        });
    }
}
fn respond<B>(
    request: &Request<B>,
    served: &CurrentCertificate,
    metrics: &Metrics,
    states: &ServerStates,
) -> HttpResponse {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return text_response(StatusCode::METHOD_NOT_ALLOWED, "expected GET");
    }
    match request.uri().path() {
        "/healthz" => text_response(StatusCode::OK, "ok"),
        "/readyz" if *states.borrow() >= ServerState::Draining => {
            text_response(StatusCode::SERVICE_UNAVAILABLE, "shutting down")
        }
        "/readyz" if !served.has_certificate() => {
            text_response(StatusCode::SERVICE_UNAVAILABLE, "no certificate yet")
        }
        "/readyz" => text_response(StatusCode::OK, "ok"),
        "/metrics" => match metrics.text() {
            Ok(text) => response(StatusCode::OK, prometheus::TEXT_FORMAT, text),
            Err(error) => text_response(StatusCode::INTERNAL_SERVER_ERROR, error),
        },
        _ => text_response(
            StatusCode::NOT_FOUND,
            "expected /healthz, /readyz or /metrics",
        ),
    }
}
