//! What the webhook has done, in Prometheus' text format.

use std::time::{Duration, SystemTime};

use prometheus::{
    Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry, TextEncoder,
};

/// Most admissions take less than the first, and none should take more than the last.
const SECONDS: [f64; 9] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.025, 0.1, 1.0,
];

/// All figures; clones share them.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Registry,
    admissions: IntCounterVec,
    seconds: Histogram,
    malformed: IntCounter,
    handshakes_failed: IntCounter,
    sent_away: IntGauge,
    certificate_taken: IntGauge,
    certificate_failures: IntCounter,
}

// === impl Metrics ===

impl Metrics {
    /// # Errors
    ///
    /// If two of them had the same name.
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
                "Reviews that were answered, by what came of them",
            ),
            &["webhook", "outcome"],
        )?;
        registry.register(Box::new(admissions.clone()))?;
        let seconds = HistogramOpts::new(
            "usher_webhook_admission_seconds",
            "From the whole of a review being there to its answer",
        );
        let seconds = Histogram::with_opts(seconds.buckets(SECONDS.to_vec()))?;
        registry.register(Box::new(seconds.clone()))?;
        let taken = IntGauge::new(
            "usher_webhook_certificate_taken_timestamp_seconds",
            "When the certificate that is served was first served; 0 if there is none yet",
        )?;
        registry.register(Box::new(taken.clone()))?;
        let sent_away = IntGauge::new(
            "usher_webhook_connections_sent_away",
            "Connections that had to make room for others since the start",
        )?;
        registry.register(Box::new(sent_away.clone()))?;
        Ok(Metrics {
            admissions,
            seconds,
            malformed: counter(
                "usher_webhook_malformed_requests_total",
                "Requests that were no reviews",
            )?,
            handshakes_failed: counter(
                "usher_webhook_failed_handshakes_total",
                "Connections on which nobody came to speak TLS, or did not believe the certificate",
            )?,
            sent_away,
            certificate_taken: taken,
            certificate_failures: counter(
                "usher_webhook_certificate_failures_total",
                "How often the certificate could not be looked after",
            )?,
            registry,
        })
    }

    pub(crate) fn admitted(&self, webhook: &str, outcome: &str, took: Duration) {
        self.admissions.with_label_values(&[webhook, outcome]).inc();
        self.seconds.observe(took.as_secs_f64());
    }

    pub(crate) fn malformed(&self) {
        self.malformed.inc();
    }

    pub(crate) fn sent_away(&self, connections: u64) {
        self.sent_away
            .set(i64::try_from(connections).unwrap_or(i64::MAX));
    }

    pub(crate) fn handshake_failed(&self) {
        self.handshakes_failed.inc();
    }

    pub(crate) fn certificate_taken(&self, at: SystemTime) {
        let at = at.duration_since(SystemTime::UNIX_EPOCH);
        let at = at.unwrap_or_default().as_secs();
        self.certificate_taken
            .set(i64::try_from(at).unwrap_or(i64::MAX));
    }

    pub(crate) fn certificate_failed(&self) {
        self.certificate_failures.inc();
    }

    /// # Errors
    ///
    /// If a figure cannot be written in that format.
    pub fn text(&self) -> prometheus::Result<String> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}
