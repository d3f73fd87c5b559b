//! The reviews, by HTTPS.
//!
//! Anybody who reaches the Service can ask, unless [client certificates](Clients) are demanded, and is told
//! nothing new. So what one may take is bounded: connections, bytes, time; and the strangers among them
//! give way.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::server::WebPkiClientVerifier;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::seats::{Bounds, Crowded, Heard, Seat, Seats};
use super::{Answer, Stage, Stages, accept, answer, reached, says};
use crate::admission::{Admission, Case, Webhook};
use crate::certificate::{Clients, Served};
use crate::metrics::Metrics;

/// The API server takes objects of 3 MiB; a review has two of them, and some words.
pub const MAX_REVIEW_BYTES: usize = 7 << 20;

/// Most reviews are smaller.
const SMALL_REVIEW_BYTES: usize = 128 << 10;

/// API servers have a few connections each. Two of the largest reviews may be under way, and beside them as
/// many small ones as come in a moment.
const BOUNDS: Bounds = Bounds {
    connections: 512,
    bytes: 20 << 20,
    small: SMALL_REVIEW_BYTES,
    for_small: 4 << 20,
};

/// A costly review rests for so many times as long as it took: all together have a quarter of the processor.
const RESTS: u32 = 3;

/// What is read of a connection at a time.
const BUFFER_BYTES: usize = 32 << 10;

const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);

/// From the handshake to all of the first request.
const FIRST_REQUEST_WITHIN: Duration = Duration::from_secs(10);

/// Between two requests API servers keep a connection for 90 s. They are to be the first to close it: what
/// they would send meanwhile would be lost.
const NEXT_REQUEST_WITHIN: Duration = Duration::from_secs(120);

const BODY_WITHIN: Duration = Duration::from_secs(5);

/// For so long a costly review waits for others.
const TURN_WITHIN: Duration = Duration::from_secs(5);

/// Longer than an API server waits for a webhook at most.
const ANSWERED_WITHIN: Duration = Duration::from_secs(30);

/// Answers reviews.
pub struct Reviews {
    config: Arc<ServerConfig>,
    desk: Arc<Desk>,
    stages: Stages,
}

/// Shared by all connections.
struct Desk {
    admission: Admission,
    metrics: Metrics,
    stages: Stages,
    /// A permit for the costly review that is judged.
    turn: Arc<Semaphore>,
    demands_certificates: bool,
}

// === impl Reviews ===

impl Reviews {
    /// Demands certificates of these clients, if they are given.
    ///
    /// # Errors
    ///
    /// If rustls has no version of TLS in common with its cryptography, or if no client can be verified.
    pub fn new(
        admission: Admission,
        served: Served,
        clients: Option<Clients>,
        metrics: Metrics,
        stages: Stages,
    ) -> Result<Reviews, String> {
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let demands_certificates = clients.is_some();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(Clients(roots)) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
                builder.with_client_cert_verifier(verifier.map_err(|error| error.to_string())?)
            }
        };
        let mut config = builder.with_cert_resolver(Arc::new(served));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let desk = Desk {
            admission,
            metrics,
            stages: stages.clone(),
            turn: Arc::new(Semaphore::new(1)),
            demands_certificates,
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
        let seats = Seats::new(BOUNDS);
        let connections = GracefulShutdown::new();
        let closing = reached(self.stages, Stage::Closing);
        tokio::pin!(closing);
        loop {
            let (stream, address) = tokio::select! {
                next = accept(&listener) => next,
                () = &mut closing => break,
            };
            let seat = Arc::new(seats.take(address));
            self.desk.metrics.sent_away(seats.sent_away());
            let (acceptor, desk) = (acceptor.clone(), Arc::clone(&self.desk));
            let watcher = connections.watcher();
            tokio::spawn(async move {
                tokio::select! {
                    () = connection(stream, &acceptor, desk, Arc::clone(&seat), watcher) => {}
                    () = seat.sent_away() => {}
                    () = never_asks(&seat) => {}
                }
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

/// Returns once a connection has had too long for its first request.
async fn never_asks(seat: &Seat) {
    tokio::time::sleep(FIRST_REQUEST_WITHIN).await;
    if !seat.is_new() {
        std::future::pending::<()>().await;
    }
}

async fn connection(
    stream: TcpStream,
    acceptor: &TlsAcceptor,
    desk: Arc<Desk>,
    seat: Arc<Seat>,
    watcher: Watcher,
) {
    let Ok(Ok(stream)) = timeout(HANDSHAKE_WITHIN, acceptor.accept(stream)).await else {
        desk.metrics.handshake_failed();
        return;
    };
    if desk.demands_certificates {
        seat.mark_known();
    }
    let heard = Heard::new(stream, Arc::clone(&seat));
    let service = service_fn(move |request| {
        let (desk, seat) = (Arc::clone(&desk), Arc::clone(&seat));
        async move { Ok::<_, Infallible>(desk.respond(request, &seat).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(NEXT_REQUEST_WITHIN)
        .max_buf_size(BUFFER_BYTES)
        .serve_connection(TokioIo::new(heard), service);
    // Who goes away need not be told.
    let _ = watcher.watch(connection).await;
}

// === impl Desk ===

impl Desk {
    async fn respond(&self, request: Request<Incoming>, seat: &Seat) -> Answer {
        let answered = self.review(request, seat).await;
        seat.mark_answered();
        let mut answer = match answered {
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

    async fn review(&self, request: Request<Incoming>, seat: &Seat) -> Result<Answer, Answer> {
        let Some(webhook) = Webhook::at(request.uri().path()) else {
            let expected = "expected /mutate, /mutate/namespace or /validate";
            return Err(says(StatusCode::NOT_FOUND, expected));
        };
        if request.method() != Method::POST {
            return Err(says(StatusCode::METHOD_NOT_ALLOWED, "expected POST"));
        }
        let body = request.into_body();
        let length = body.size_hint().upper().unwrap_or_default();
        if usize::try_from(length).unwrap_or(usize::MAX) > MAX_REVIEW_BYTES {
            return Err(too_long());
        }
        let Ok(body) = timeout(BODY_WITHIN, read(body, seat)).await else {
            let why = format_args!("the body was not there after {BODY_WITHIN:?}");
            return Err(says(StatusCode::REQUEST_TIMEOUT, why));
        };
        let body = body?;
        seat.mark_whole();
        self.judge(webhook, body).await
    }

    /// Answers at once, unless the review is costly: then in its turn.
    async fn judge(&self, webhook: Webhook, body: Vec<u8>) -> Result<Answer, Answer> {
        let mut turn = match body.len() > SMALL_REVIEW_BYTES {
            true => Some(self.turn().await?),
            false => None,
        };
        let mut took = Duration::ZERO;
        let mut case = timed(&mut took, || self.admission.read(webhook, &body));
        if turn.is_none() && case.as_ref().is_ok_and(Case::is_costly) {
            // A request that waits has the memory of its bytes alone.
            drop(case);
            turn = Some(self.turn().await?);
            case = timed(&mut took, || self.admission.read(webhook, &body));
        }
        let answered = timed(&mut took, || {
            case.and_then(|case| self.admission.decide(case))
        });
        if let Some(turn) = turn {
            tokio::spawn(async move {
                tokio::time::sleep(took.saturating_mul(RESTS)).await;
                drop(turn);
            });
        }
        let answered = answered.map_err(|malformed| says(StatusCode::BAD_REQUEST, malformed))?;
        let outcome = answered.outcome.name();
        self.metrics.admitted(webhook.name(), outcome, took);
        Ok(answer(StatusCode::OK, "application/json", answered.body))
    }

    async fn turn(&self) -> Result<OwnedSemaphorePermit, Answer> {
        let turn = Arc::clone(&self.turn).acquire_owned();
        let turn = timeout(TURN_WITHIN, turn).await;
        turn.ok()
            .and_then(Result::ok)
            .ok_or_else(|| says(StatusCode::SERVICE_UNAVAILABLE, "too many costly reviews"))
    }
}

/// Adds the time that `work` takes to `took`.
fn timed<T>(took: &mut Duration, work: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let outcome = work();
    *took = took.saturating_add(begin.elapsed());
    outcome
}

/// Reads a body, of which each piece counts when it has come.
async fn read(mut body: Incoming, seat: &Seat) -> Result<Vec<u8>, Answer> {
    let mut read = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            says(
                StatusCode::BAD_REQUEST,
                format_args!("the body broke off: {error}"),
            )
        })?;
        let Some(data) = frame.data_ref() else {
            continue;
        };
        if read.len().saturating_add(data.len()) > MAX_REVIEW_BYTES {
            return Err(too_long());
        }
        seat.count(data.len()).await.map_err(|Crowded| {
            let why = "too many bytes of reviews are under way";
            says(StatusCode::SERVICE_UNAVAILABLE, why)
        })?;
        read.extend_from_slice(data);
    }
    Ok(read)
}

fn too_long() -> Answer {
    says(
        StatusCode::PAYLOAD_TOO_LARGE,
        format_args!("the body has more than {MAX_REVIEW_BYTES} bytes"),
    )
}
