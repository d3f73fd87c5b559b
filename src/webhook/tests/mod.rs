//! Reviews and what is answered; the API server's memory; clients that believe its certificates.

mod admission;
mod certificate;
mod cluster;
mod corpus;
mod cost;
mod crowd;
mod review;
mod server;

use std::time::{Duration, SystemTime};

/// What is as good as for ever.
const PATIENCE: Duration = Duration::from_secs(30);

fn now() -> SystemTime {
    SystemTime::now()
}

fn days(count: u64) -> Duration {
    Duration::from_secs(count * 24 * 3600)
}
