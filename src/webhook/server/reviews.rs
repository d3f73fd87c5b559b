//! Reviews, by HTTPS.
//!
//! Unless [client certificates](ClientAuthorities) are required, any client that reaches the
//! Service can send reviews. The answers contain nothing secret, so the danger is load.
//! Connections, bytes and time are limited. Connections of clients without a known certificate are
//! closed first.

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

use super::slots::{Limits, MonitoredStream, NoRoom, Slot, Slots};
use super::{HttpResponse, ServerState, ServerStates, accept, reached, response, text_response};
use crate::admission::{Admission, ParsedReview, Webhook};
use crate::certificate::{ClientAuthorities, CurrentCertificate};
use crate::metrics::Metrics;

/// Largest review. The API server accepts objects of up to 3 MiB, and a review contains two of
/// them.
pub const MAX_REVIEW_BYTES: usize = 7 << 20;

/// Maximum size of a small review, in bytes. Most reviews are small. A larger review always counts
/// as costly.
const SMALL_REVIEW_BYTES: usize = 128 << 10;

/// Limits of this listener. An API server has only a few connections. `bytes` is enough for two
/// reviews of the largest size, together with all small reviews that usually arrive at the same
/// time.
const LIMITS: Limits = Limits {
    connections: 512,
    bytes: 20 << 20,
    small: SMALL_REVIEW_BYTES,
    for_small: 4 << 20,
};

/// Pause after a costly review, in multiples of the time that the review took. So all costly
/// reviews together use at most a quarter of a processor.
const REST_FACTOR: u32 = 3;

/// Bytes read from a connection at a time.
const BUFFER_BYTES: usize = 32 << 10;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit from accept(2) to the end of the first request, including the TLS handshake.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest pause between two requests, longer than the 90 s after which API servers close an idle
/// connection. The client has to close first, because a request that it sends while the server
/// closes would be lost.
const NEXT_REQUEST_TIMEOUT: Duration = Duration::from_secs(120);

const BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum time that a costly review waits for its permit.
const COSTLY_TIMEOUT: Duration = Duration::from_secs(5);

/// Time for open requests to finish at shutdown. No API server waits longer for a webhook.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Answers reviews.
pub struct Reviews {
    config: Arc<ServerConfig>,
    service: Arc<ReviewService>,
    states: ServerStates,
}

/// The parts of the server that all connections share.
struct ReviewService {
    admission: Admission,
    metrics: Metrics,
    states: ServerStates,
    /// The only permit to judge a costly review.
    costly: Arc<Semaphore>,
    requires_certificates: bool,
}

impl Reviews {
    /// Makes the server. If `clients` names authorities, each client needs a certificate that one
    /// of these authorities has signed.
    ///
    /// # Errors
    ///
    /// If rustls and its cryptography provider share no TLS version, or if `clients` cannot be used
    /// to verify certificates.
    pub fn new(
        admission: Admission,
        served: CurrentCertificate,
        clients: Option<ClientAuthorities>,
        metrics: Metrics,
        states: ServerStates,
    ) -> anyhow::Result<Reviews> {
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?;
        let requires_certificates = clients.is_some();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(ClientAuthorities(roots)) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
                builder.with_client_cert_verifier(verifier?)
            }
        };
        let mut config = builder.with_cert_resolver(Arc::new(served));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let service = ReviewService {
            admission,
            metrics,
            states: states.clone(),
            costly: Arc::new(Semaphore::new(1)),
            requires_certificates,
        };
        Ok(Reviews {
            config: Arc::new(config),
            service: Arc::new(service),
            states,
        })
    }

    /// Answers requests until [`ServerState::Closing`], then finishes those that are open.
    pub async fn serve(self, listener: TcpListener) {
        let acceptor = TlsAcceptor::from(self.config);
        let slots = Slots::new(LIMITS);
        let connections = GracefulShutdown::new();
        let closing = reached(self.states, ServerState::Closing);
        tokio::pin!(closing);
        loop {
            let (stream, address) = tokio::select! {
                next = accept(&listener) => next,
                () = &mut closing => break,
            };
            let slot = Arc::new(slots.take(address));
            self.service.metrics.set_evictions(slots.evictions());
            let (acceptor, service) = (acceptor.clone(), Arc::clone(&self.service));
            let watcher = connections.watcher();
            tokio::spawn(async move {
                tokio::select! {
                    () = connection(stream, &acceptor, service, Arc::clone(&slot), watcher) => {}
                    () = slot.evicted() => {}
                    () = first_request_timed_out(&slot) => {}
                }
            });
        }
        drop(listener);
        if timeout(CLOSE_TIMEOUT, connections.shutdown())
            .await
            .is_err()
        {
            tracing::warn!("some connections are still open after {CLOSE_TIMEOUT:?}");
        }
    }
}

/// Returns when [`FIRST_REQUEST_TIMEOUT`] is over and no whole request has arrived. Otherwise never
/// returns.
async fn first_request_timed_out(slot: &Slot) {
    tokio::time::sleep(FIRST_REQUEST_TIMEOUT).await;
    if !slot.is_new() {
        std::future::pending::<()>().await;
    }
}

async fn connection(
    stream: TcpStream,
    acceptor: &TlsAcceptor,
    service: Arc<ReviewService>,
    slot: Arc<Slot>,
    watcher: Watcher,
) {
    let Ok(Ok(stream)) = timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await else {
        service.metrics.count_failed_handshake();
        return;
    };
    if service.requires_certificates {
        slot.mark_known();
    }
    let stream = MonitoredStream::new(stream, Arc::clone(&slot));
    let service = service_fn(move |request| {
        let (service, slot) = (Arc::clone(&service), Arc::clone(&slot));
        async move { Ok::<_, Infallible>(service.respond(request, &slot).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(NEXT_REQUEST_TIMEOUT)
        .max_buf_size(BUFFER_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    // An error here means that the client has disconnected.
    let _ = watcher.watch(connection).await;
}

impl ReviewService {
    async fn respond(&self, request: Request<Incoming>, slot: &Slot) -> HttpResponse {
        let answered = self.review(request, slot).await;
        slot.mark_answered();
        let mut answer = match answered {
            Ok(answer) => answer,
            Err(refused) => {
                self.metrics.count_malformed();
                refused
            }
        };
        // Closes the connection, so that the client sends its next request to another replica.
        if *self.states.borrow() >= ServerState::Draining {
            let close = HeaderValue::from_static("close");
            answer.headers_mut().insert(header::CONNECTION, close);
        }
        answer
    }

    async fn review(
        &self,
        request: Request<Incoming>,
        slot: &Slot,
    ) -> Result<HttpResponse, HttpResponse> {
        let Some(webhook) = Webhook::at(request.uri().path()) else {
            let expected = "expected /mutate, /mutate/namespace or /validate";
            return Err(text_response(StatusCode::NOT_FOUND, expected));
        };
        if request.method() != Method::POST {
            return Err(text_response(
                StatusCode::METHOD_NOT_ALLOWED,
                "expected POST",
            ));
        }
        let body = request.into_body();
        let length = body.size_hint().upper().unwrap_or_default();
        if usize::try_from(length).unwrap_or(usize::MAX) > MAX_REVIEW_BYTES {
            return Err(too_large());
        }
        let Ok(body) = timeout(BODY_TIMEOUT, read(body, slot)).await else {
            let why = format_args!("the body was not complete after {BODY_TIMEOUT:?}");
            return Err(text_response(StatusCode::REQUEST_TIMEOUT, why));
        };
        let body = body?;
        slot.mark_received();
        self.judge(webhook, body).await
    }

    /// Answers a review at once, but a costly review first waits for the permit.
    async fn judge(&self, webhook: Webhook, body: Vec<u8>) -> Result<HttpResponse, HttpResponse> {
        let arrived = Instant::now();
        let mut permit = match body.len() > SMALL_REVIEW_BYTES {
            true => Some(self.costly_permit().await?),
            false => None,
        };
        let mut took = Duration::ZERO;
        let mut review = timed(&mut took, || self.admission.read(webhook, &body));
        if permit.is_none() && review.as_ref().is_ok_and(ParsedReview::is_costly) {
            // While the review waits for the permit, only its bytes stay in memory.
            drop(review);
            permit = Some(self.costly_permit().await?);
            review = timed(&mut took, || self.admission.read(webhook, &body));
        }
        let answered = timed(&mut took, || {
            review.and_then(|review| self.admission.decide(review))
        });
        if let Some(permit) = permit {
            tokio::spawn(async move {
                tokio::time::sleep(took.saturating_mul(REST_FACTOR)).await;
                drop(permit);
            });
        }
        let answered =
            answered.map_err(|malformed| text_response(StatusCode::BAD_REQUEST, malformed))?;
        let outcome = answered.outcome.name();
        self.metrics
            .count_admission(webhook.name(), outcome, arrived.elapsed());
        Ok(response(StatusCode::OK, "application/json", answered.body))
    }

    async fn costly_permit(&self) -> Result<OwnedSemaphorePermit, HttpResponse> {
        let permit = Arc::clone(&self.costly).acquire_owned();
        let permit = timeout(COSTLY_TIMEOUT, permit).await;
        permit.ok().and_then(Result::ok).ok_or_else(|| {
            text_response(StatusCode::SERVICE_UNAVAILABLE, "too many costly reviews")
        })
    }
}

/// Runs `work`, and adds its duration to `took`.
fn timed<T>(took: &mut Duration, work: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let outcome = work();
    *took = took.saturating_add(begin.elapsed());
    outcome
}

/// Reads a body, and counts its bytes against the listener's limit as they arrive.
async fn read(mut body: Incoming, slot: &Slot) -> Result<Vec<u8>, HttpResponse> {
    let mut read = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            text_response(
                StatusCode::BAD_REQUEST,
                format_args!("cannot read the body: {error}"),
            )
        })?;
        let Some(data) = frame.data_ref() else {
            continue;
        };
        if read.len().saturating_add(data.len()) > MAX_REVIEW_BYTES {
            return Err(too_large());
        }
        slot.count(data.len()).await.map_err(|NoRoom| {
            let why = "too many requests at a time; try again";
            text_response(StatusCode::SERVICE_UNAVAILABLE, why)
        })?;
        read.extend_from_slice(data);
    }
    Ok(read)
}

fn too_large() -> HttpResponse {
    text_response(
        StatusCode::PAYLOAD_TOO_LARGE,
        format_args!("the body is larger than {MAX_REVIEW_BYTES} bytes"),
    )
}
