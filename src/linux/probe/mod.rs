//! Makes a single attempt of a probe, or a single run of a hook. The core decides when an attempt
//! is made, and what its outcome means.

mod address;
mod connect;
mod cost;
mod error;
mod exec;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod grpc;
mod http;
mod limits;
#[expect(clippy::disallowed_methods, reason = "/proc")]
mod netns;
pub mod prober;
mod tcp;
#[cfg(test)]
mod tests;
mod tls;

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::num::NonZeroU16;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::cgroup::Place;
use crate::reaper::{Child, Meter, Reaper};
use usher_core::lifecycle::ActionError;
use usher_core::plan::{Check, Hook, HttpGet, Port, Probe};
use usher_core::text::tame;

pub use cost::thread_time;
use error::ProbeError;
use prober::Question;

/// Executes commands in containers, as the OCI runtime does.
#[async_trait]
pub trait Commands: fmt::Debug + Send + Sync {
    /// Returns a copy that runs the OCI runtime's processes in the cgroup `place`. `meter` counts
    /// their CPU time.
    fn charged(&self, place: Option<&Place>, meter: &Meter) -> Arc<dyn Commands>;

    /// Executes a command in the container `id`, with an OOM score of at most `oom_score`. The
    /// command must have started within `limit`. It may run longer.
    ///
    /// # Errors
    ///
    /// If the command cannot be executed.
    async fn execute(
        &self,
        id: &str,
        command: &[String],
        oom_score: Option<i32>,
        limit: Duration,
    ) -> Result<Child, Box<dyn Error + Send + Sync>>;
}

/// Facts about the container that an attempt of a probe or hook needs.
#[derive(Clone, Debug)]
pub struct Target {
    pub id: String,
    /// Process id of the container's init. Probes go to the network namespace of this process.
    pub pid: i32,
    pub runtime: Arc<dyn Commands>,
    pub reaper: Reaper,
    /// Cgroup in which the shim's commands for the container run.
    pub place: Option<Place>,
    /// Named ports of the container.
    pub ports: BTreeMap<String, u16>,
    /// OOM score of the container. Commands that are executed in the container get no higher score.
    pub oom_score: Option<i32>,
}

/// User agent of HTTP and gRPC probes. Servers recognize kubelet's probes by the part before the
/// slash.
const AGENT: &str = concat!("kube-probe/usher-", env!("CARGO_PKG_VERSION"));

impl Target {
    /// Returns a copy that runs commands in the pod's cgroup. `meter` counts their CPU time.
    fn charged(&self, meter: &Meter) -> Target {
        Target {
            runtime: self.runtime.charged(self.place.as_ref(), meter),
            reaper: self.reaper.metered(meter),
            ..self.clone()
        }
    }
}

/// The outcome of an attempt.
#[derive(Clone, Debug)]
pub struct Attempted {
    pub outcome: Result<(), ActionError>,
    /// CPU time of the shim and of processes started for the attempt. Commands executed in the
    /// container are charged to the container.
    pub cost: Duration,
}

/// Makes one attempt, bounded by the probe's timeout.
pub async fn attempt(probe: &Probe, target: &Target) -> Attempted {
    let meter = Meter::default();
    let target = target.charged(&meter);
    let (outcome, own) = cost::timed(attempt_at(probe, &target)).await;
    Attempted {
        outcome,
        cost: own.saturating_add(meter.total()),
    }
}

async fn attempt_at(probe: &Probe, target: &Target) -> Result<(), ActionError> {
    let limit = probe.timeout;
    let outcome = match &probe.check {
        Check::Exec { command } => exec::attempt(command, limit, target).await,
        Check::TcpSocket { host, port } => {
            within(limit, "connection", tcp::attempt(*host, port, target)).await
        }
        Check::HttpGet(get) => match numbered(get, target) {
            Ok(get) => prober::ask(Question::HttpGet(get), limit, target).await,
            Err(error) => Err(error),
        },
        Check::Grpc { port, service } => {
            let (port, service) = (*port, service.clone());
            prober::ask(Question::Grpc { port, service }, limit, target).await
        }
    };
    outcome.map_err(reported)
}

/// Runs a hook, bounded by `limit`.
///
/// # Errors
///
/// If the hook failed. An HTTP request of a hook fails only if there is no answer.
pub async fn run_hook(hook: &Hook, limit: Duration, target: &Target) -> Result<(), ActionError> {
    let target = &target.charged(&Meter::default());
    let outcome = match hook {
        Hook::Exec { command } => exec::attempt(command, limit, target).await,
        Hook::TcpSocket { host, port } => {
            within(limit, "connection", tcp::attempt(*host, port, target)).await
        }
        Hook::HttpGet(get) => match numbered(get, target) {
            Ok(get) => prober::ask(Question::AnyAnswer(get), limit, target).await,
            Err(error) => Err(error),
        },
        Hook::Sleep(pause) => {
            tokio::time::sleep((*pause).min(limit)).await;
            Ok(())
        }
    };
    outcome.map_err(reported)
}

/// Converts an error to text. [`tame`] makes the text safe for logs, because parts of the text may
/// come from the container.
fn reported(error: ProbeError) -> ActionError {
    ActionError::Reported(tame(&error.to_string()))
}

/// Returns the request with its port as a number, in case the author gave a name.
fn numbered(get: &HttpGet, target: &Target) -> Result<HttpGet, ProbeError> {
    let mut get = get.clone();
    let number = port_number(&get.port, target)?;
    get.port = NonZeroU16::new(number)
        .map(Port::Number)
        .ok_or(ProbeError::PortZero)?;
    Ok(get)
}

/// Returns the number of a port. The author may give the name of one of the container's ports.
///
/// # Errors
///
/// If the container has no port of that name.
fn port_number(port: &Port, target: &Target) -> Result<u16, ProbeError> {
    match port {
        Port::Number(port) => Ok(port.get()),
        Port::Name(name) => target
            .ports
            .get(name)
            .copied()
            .ok_or_else(|| ProbeError::UnknownPort(name.clone())),
    }
}

async fn within(
    limit: Duration,
    wanted: &'static str,
    attempt: impl Future<Output = Result<(), ProbeError>>,
) -> Result<(), ProbeError> {
    tokio::time::timeout(limit, attempt)
        .await
        .unwrap_or(Err(ProbeError::Late { wanted, limit }))
}

/// Awaits `answer`, and meanwhile drives the connection that delivers the answer. The connection
/// may end before `answer` does.
pub(crate) async fn alongside<T>(connection: impl Future, answer: impl Future<Output = T>) -> T {
    let mut answer = pin!(answer);
    tokio::select! {
        biased;
        answer = &mut answer => return answer,
        _ = connection => {}
    }
    answer.await
}

/// Returns the message of an error, with the messages of all its causes.
pub(crate) fn causes(error: &dyn Error) -> String {
    let mut sentence = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        sentence.push_str(": ");
        sentence.push_str(&cause.to_string());
        source = cause.source();
    }
    sentence
}
