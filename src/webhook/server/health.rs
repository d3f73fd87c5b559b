//! Health, readiness and metrics, for kubelet and Prometheus.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::{Answer, Stage, Stages, accept, answer, says};
use crate::certificate::Served;
use crate::metrics::Metrics;

/// So many may ask at a time.
const MAX_CONNECTIONS: usize = 16;

/// How long somebody may take to ask and be told.
const SERVED_WITHIN: Duration = Duration::from_secs(10);

/// Answers for as long as it is polled.
pub async fn health(listener: TcpListener, served: Served, metrics: Metrics, stages: Stages) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        let stream = accept(&listener).await;
        let (served, metrics, stages) = (served.clone(), metrics.clone(), stages.clone());
        tokio::spawn(async move {
            let service = service_fn(async |request: Request<Incoming>| {
                Ok::<_, Infallible>(respond(&request, &served, &metrics, &stages))
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            // Who goes away, or does not come to the point, need not be told.
            let _ = timeout(SERVED_WITHIN, connection).await;
            drop(place);
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
