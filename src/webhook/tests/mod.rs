//! Tests of reviews, certificates, manifests and the servers, with a fake API server and real TLS
//! clients.

mod admission;
mod attacks;
mod certificate;
mod cluster;
mod corpus;
mod cost;
mod manifests;
mod review;
mod server;

use std::time::{Duration, SystemTime};

/// Generous time limit for each expected event.
const TIMEOUT: Duration = Duration::from_secs(30);

fn now() -> SystemTime {
    SystemTime::now()
}

fn days(count: u64) -> Duration {
    Duration::from_secs(count * 24 * 3600)
}
