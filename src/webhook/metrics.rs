//! Metrics of the webhook, in Prometheus' text format.

use std::time::{Duration, SystemTime};

use prometheus::{
    Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry, TextEncoder,
};

/// Upper bounds of the histogram's buckets, in seconds. Most admissions take less than the first
/// bound, and none should exceed the last bound.
const SECONDS: [f64; 10] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.025, 0.1, 1.0, 10.0,
];

/// The metrics; clones share them.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Registry,
    admissions: IntCounterVec,
    seconds: Histogram,
    malformed: IntCounter,
    handshakes_failed: IntCounter,
    evictions: IntCounter,
    certificate_taken: IntGauge,
    certificate_failures: IntCounter,
}

impl Metrics {
    /// # Errors
    ///
    /// If two metrics have the same name.
    pub fn new() -> prometheus::Result<Metrics> {
        let registry = Registry::new();
        let counter = |name: &str, help: &str| {
            let counter = IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let admissions = IntCounterVec::new(
            Opts::new(
                "usher_webhook_admissions_total",
                "Reviews answered, by webhook and outcome",
            ),
            &["webhook", "outcome"],
        )?;
        registry.register(Box::new(admissions.clone()))?;
        let seconds = HistogramOpts::new(
            "usher_webhook_admission_seconds",
            "Time from the arrival of a whole review until it is judged",
        );
        let seconds = Histogram::with_opts(seconds.buckets(SECONDS.to_vec()))?;
        registry.register(Box::new(seconds.clone()))?;
        let taken = IntGauge::new(
            "usher_webhook_certificate_taken_timestamp_seconds",
            "Unix time at which the current certificate came into use; 0 if there is none yet",
        )?;
        registry.register(Box::new(taken.clone()))?;
        Ok(Metrics {
            admissions,
            seconds,
            malformed: counter(
                "usher_webhook_malformed_requests_total",
                "Requests answered with an HTTP error, such as bodies that are no review",
            )?,
            handshakes_failed: counter(
                "usher_webhook_failed_handshakes_total",
                "Connections whose TLS handshake failed or took too long",
            )?,
            evictions: counter(
                "usher_webhook_connections_sent_away_total",
                "Connections closed to make room for others",
            )?,
            certificate_taken: taken,
            certificate_failures: counter(
                "usher_webhook_certificate_failures_total",
                "Failed checks or renewals of the certificate",
            )?,
            registry,
        })
    }

    pub(crate) fn count_admission(&self, webhook: &str, outcome: &str, took: Duration) {
        self.admissions.with_label_values(&[webhook, outcome]).inc();
        self.seconds.observe(took.as_secs_f64());
    }

    pub(crate) fn count_malformed(&self) {
        self.malformed.inc();
    }

    /// Raises the counter of evictions to this total number.
    pub(crate) fn set_evictions(&self, connections: u64) {
        let more = connections.saturating_sub(self.evictions.get());
        self.evictions.inc_by(more);
    }

    pub(crate) fn count_failed_handshake(&self) {
        self.handshakes_failed.inc();
    }

    pub(crate) fn set_certificate_time(&self, at: SystemTime) {
        let at = at.duration_since(SystemTime::UNIX_EPOCH);
        let at = at.unwrap_or_default().as_secs();
        self.certificate_taken
            .set(i64::try_from(at).unwrap_or(i64::MAX));
    }

    pub(crate) fn count_certificate_failure(&self) {
        self.certificate_failures.inc();
    }

    /// # Errors
    ///
    /// If a metric cannot be encoded.
    pub fn text(&self) -> prometheus::Result<String> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}
