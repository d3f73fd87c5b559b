//! The reviews, by HTTPS.
//!
//! Whoever reaches the Service can ask, and is told nothing that he did not know. So what one may take is
//! bounded: connections, bytes, time.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use rustls::ServerConfig;
use rustls::crypto::ring;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::{Answer, Stage, Stages, accept, answer, reached, says};
use crate::admission::{Admission, Webhook};
use crate::certificate::Served;
use crate::metrics::Metrics;

/// The API server takes objects of 3 MiB; a review has two of them, and some words.
pub const MAX_REVIEW_BYTES: usize = 7 << 20;

/// What all reviews together may have that are under way.
const MAX_BYTES_UNDER_WAY: usize = 16 << 20;

/// Bytes are counted in pieces of this size.
const PIECE: usize = 1 << 10;

/// API servers have a few each.
const MAX_CONNECTIONS: usize = 256;

/// What is read of a connection at a time.
const BUFFER_BYTES: usize = 64 << 10;

const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);

/// Between two requests API servers keep a connection for 90 s. They are to be the first to close it: what
/// they would send meanwhile would be lost.
const NEXT_REQUEST_WITHIN: Duration = Duration::from_secs(120);

const BODY_WITHIN: Duration = Duration::from_secs(5);

/// Longer than an API server waits for a webhook at most.
const ANSWERED_WITHIN: Duration = Duration::from_secs(30);

/// What answers reviews.
pub struct Reviews {
    config: Arc<ServerConfig>,
    desk: Arc<Desk>,
    stages: Stages,
}

/// What all connections share.
struct Desk {
    admission: Admission,
    metrics: Metrics,
    stages: Stages,
    pieces: Semaphore,
}

// === impl Reviews ===

impl Reviews {
    /// # Errors
    ///
    /// If rustls has no version of TLS in common with its cryptography.
    pub fn new(
        admission: Admission,
        served: Served,
        metrics: Metrics,
        stages: Stages,
    ) -> Result<Reviews, rustls::Error> {
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(served));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let desk = Desk {
            admission,
            metrics,
            stages: stages.clone(),
            pieces: Semaphore::new(MAX_BYTES_UNDER_WAY / PIECE),
        };
        Ok(Reviews {
            config: Arc::new(config),
            desk: Arc::new(desk),
            stages,
        })
    }

    /// Answers until [`Stage::Closing`], and then what has been asked by then.
    pub async fn serve(self, listener: TcpListener) {
        let acceptor = TlsAcceptor::from(self.config);
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let connections = GracefulShutdown::new();
        let closing = reached(self.stages, Stage::Closing);
        tokio::pin!(closing);
        loop {
            let next = async {
                let place = Arc::clone(&places).acquire_owned().await;
                (place, accept(&listener).await)
            };
            let (place, stream) = tokio::select! {
                next = next => next,
                () = &mut closing => break,
            };
            let (acceptor, desk) = (acceptor.clone(), Arc::clone(&self.desk));
            let watcher = connections.watcher();
            tokio::spawn(async move {
                connection(stream, &acceptor, desk, watcher).await;
                drop(place);
            });
        }
        drop(listener);
        if timeout(ANSWERED_WITHIN, connections.shutdown())
            .await
            .is_err()
        {
            tracing::warn!("some connections were not over after {ANSWERED_WITHIN:?}");
        }
    }
}

async fn connection(stream: TcpStream, acceptor: &TlsAcceptor, desk: Arc<Desk>, watcher: Watcher) {
    let Ok(Ok(stream)) = timeout(HANDSHAKE_WITHIN, acceptor.accept(stream)).await else {
        desk.metrics.handshake_failed();
        return;
    };
    let service = service_fn(move |request| {
        let desk = Arc::clone(&desk);
        async move { Ok::<_, Infallible>(desk.respond(request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(NEXT_REQUEST_WITHIN)
        .max_buf_size(BUFFER_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    // Who goes away need not be told.
    let _ = watcher.watch(connection).await;
}

// === impl Desk ===

impl Desk {
    async fn respond(&self, request: Request<Incoming>) -> Answer {
        let mut answer = match self.review(request).await {
            Ok(answer) => answer,
            Err(refused) => {
                self.metrics.malformed();
                refused
            }
        };
        // Whoever asks again asks another replica.
        if *self.stages.borrow() >= Stage::Draining {
            let close = HeaderValue::from_static("close");
            answer.headers_mut().insert(header::CONNECTION, close);
        }
        answer
    }

    async fn review(&self, request: Request<Incoming>) -> Result<Answer, Answer> {
        let Some(webhook) = Webhook::at(request.uri().path()) else {
            let expected = "expected /mutate, /mutate/namespace or /validate";
            return Err(says(StatusCode::NOT_FOUND, expected));
        };
        if request.method() != Method::POST {
            return Err(says(StatusCode::METHOD_NOT_ALLOWED, "expected POST"));
        }
        let body = request.into_body();
        let length = body.size_hint().upper();
        let length = length.map_or(MAX_REVIEW_BYTES, |length| {
            usize::try_from(length).unwrap_or(usize::MAX)
        });
        if length > MAX_REVIEW_BYTES {
            return Err(too_long());
        }
        let pieces = u32::try_from(length.div_ceil(PIECE)).unwrap_or(u32::MAX);
        let pieces = self.pieces.acquire_many(pieces).await;
        let body = read(body).await?;
        let begin = Instant::now();
        let answered = self.admission.answer(webhook, &body);
        drop((body, pieces));
        let answered = answered.map_err(|malformed| says(StatusCode::BAD_REQUEST, malformed))?;
        let outcome = answered.outcome.name();
        self.metrics
            .admitted(webhook.name(), outcome, begin.elapsed());
        Ok(answer(StatusCode::OK, "application/json", answered.body))
    }
}

async fn read(body: Incoming) -> Result<Bytes, Answer> {
    let body = Limited::new(body, MAX_REVIEW_BYTES).collect();
    match timeout(BODY_WITHIN, body).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_long()),
        Ok(Err(error)) => Err(says(
            StatusCode::BAD_REQUEST,
            format_args!("the body broke off: {error}"),
        )),
        Err(_) => Err(says(
            StatusCode::REQUEST_TIMEOUT,
            format_args!("the body was not there after {BODY_WITHIN:?}"),
        )),
    }
}

fn too_long() -> Answer {
    says(
        StatusCode::PAYLOAD_TOO_LARGE,
        format_args!("the body has more than {MAX_REVIEW_BYTES} bytes"),
    )
}
