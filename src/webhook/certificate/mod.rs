//! The certificate that the API server sees.
//!
//! [`Served`] is the one in use, and can be another for each handshake. Who fills it is [`Keeper`], which
//! makes certificates, agrees with the other replicas on one, and tells the API server whom to believe; or
//! [`Files`], where somebody else does all that. [`Clients`] are those whose certificates are taken.

mod clients;
mod files;
mod keeper;
mod pair;
mod served;

use std::time::{Duration, SystemTime};

pub use clients::Clients;
pub use files::Files;
pub use keeper::{Keeper, Names};
pub use pair::Pair;
pub use served::Served;

use crate::metrics::Metrics;

/// How often it is looked whether all is as it should be.
const LOOKED_AFTER: Duration = Duration::from_secs(30);

/// The same after it was not.
const TRIED_AGAIN: Duration = Duration::from_secs(3);

/// Who sees to it that [`Served`] has a good certificate.
pub enum Source {
    Own(Box<Keeper>),
    Given(Files),
}

// === impl Source ===

impl Source {
    /// Looks after the certificate for as long as it is polled.
    pub async fn look_after(mut self, metrics: &Metrics) {
        let mut said = String::new();
        loop {
            let outcome = match &mut self {
                Source::Own(keeper) => keeper.tend(SystemTime::now()).await,
                Source::Given(files) => files.look(),
            };
            let pause = match outcome {
                Ok(true) => {
                    metrics.certificate_taken(SystemTime::now());
                    tracing::info!("a new certificate is served from now on");
                    said.clear();
                    LOOKED_AFTER
                }
                Ok(false) => {
                    said.clear();
                    LOOKED_AFTER
                }
                Err(trouble) => {
                    metrics.certificate_failed();
                    // Once, and not each time that it is tried.
                    if said != trouble {
                        tracing::error!("{trouble}");
                        said = trouble;
                    }
                    TRIED_AGAIN
                }
            };
            tokio::time::sleep(pause).await;
        }
    }
}
