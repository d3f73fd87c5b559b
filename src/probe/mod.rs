//! One attempt of a probe. When, how often and what follows from it is the core's business.

mod exec;
mod netns;
mod tcp;

use std::collections::BTreeMap;

use crate::plan::{Check, Probe};
use crate::reaper::Reaper;
use crate::runtime::OciRuntime;

/// What an attempt needs to know of its container.
#[derive(Clone, Debug)]
pub struct Target {
    pub id: String,
    /// The process id of its init: its network namespace is where the probe goes.
    pub pid: i32,
    pub runtime: OciRuntime,
    pub reaper: Reaper,
    /// Its named ports.
    pub ports: BTreeMap<String, u16>,
}

/// Makes one attempt, bounded by the probe's timeout.
///
/// # Errors
///
/// Why the attempt failed, in one sentence.
pub async fn attempt(probe: &Probe, target: &Target) -> Result<(), String> {
    match &probe.check {
        Check::Exec { command } => exec::attempt(command, probe.timeout, target).await,
        Check::TcpSocket { host, port } => {
            let connect = tcp::attempt(*host, port, target);
            let late = || format!("no connection within {:?}", probe.timeout);
            tokio::time::timeout(probe.timeout, connect)
                .await
                .unwrap_or_else(|_| Err(late()))
        }
        Check::HttpGet(_) | Check::Grpc { .. } => {
            Err("a probe of this kind is not supported yet".to_owned())
        }
    }
}
