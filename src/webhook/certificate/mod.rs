//! The webhook's certificate, which the API server verifies.
//!
//! [`CurrentCertificate`] holds the certificate in use; each handshake uses the latest certificate.
//! [`Manager`] makes certificates, agrees on one with the other replicas, and sets it. It also
//! writes the authority that has signed the certificate into the webhook's configuration, from
//! which the API server reads it. If cert-manager or a similar program does all that, [`Files`]
//! sets the certificate instead. [`ClientAuthorities`] verify the certificates of clients.

mod client_authorities;
mod current;
mod files;
mod manager;
mod pair;

use std::time::{Duration, SystemTime};

pub use client_authorities::ClientAuthorities;
pub use current::CurrentCertificate;
pub use files::Files;
pub use manager::{Manager, ObjectNames};
pub use pair::Pair;

use usher_core::text::causes;

use crate::metrics::Metrics;

/// Pause between two checks of the certificate.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// Pause after a check that failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(3);

/// The source of [`CurrentCertificate`].
pub enum Source {
    Managed(Box<Manager>),
    Files(Files),
}

impl Source {
    /// Keeps the certificate valid; never returns.
    pub async fn maintain(mut self, metrics: &Metrics) {
        let mut reported = String::new();
        loop {
            let outcome = match &mut self {
                Source::Managed(manager) => manager.reconcile(SystemTime::now()).await,
                Source::Files(files) => files.reload(),
            };
            let pause = match outcome {
                Ok(true) => {
                    metrics.set_certificate_time(SystemTime::now());
                    tracing::info!("serving a new certificate from now on");
                    reported.clear();
                    CHECK_INTERVAL
                }
                Ok(false) => {
                    reported.clear();
                    CHECK_INTERVAL
                }
                Err(error) => {
                    metrics.count_certificate_failure();
                    let trouble = causes(error.as_ref());
                    // A repeated error is logged once.
                    if reported != trouble {
                        tracing::error!("{trouble}");
                        reported = trouble;
                    }
                    RETRY_INTERVAL
                }
            };
            tokio::time::sleep(pause).await;
        }
    }
}
