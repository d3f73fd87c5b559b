//! Simulated worlds for pods: containers that follow scripts, a kubelet with faults, a person with
//! `ctr`, and the promises that hold whatever goes wrong.
//!
//! | module | what it is |
//! |---|---|
//! | [`case`] | a pod, the behavior of its containers, and its faults |
//! | [`chance`] | a random case from a number |
//! | [`kubelet`] | a kubelet, and the containerd under it |
//! | [`by_hand`] | a person with `ctr` |
//! | [`world`] | a node that runs the core alone, in simulated time |
//! | [`trace`] | a record of what happened, as the containers and kubelet know it |
//! | [`promises`] | promises that every trace has to keep |
//! | [`survey`] | runs of many worlds, and the simplest world that breaks a promise |
//!
//! Kubelet and the person call a [`Node`], which runs either the core alone or a whole shim.

pub mod by_hand;
pub mod case;
pub mod chance;
pub mod kubelet;
pub mod promises;
#[cfg(test)]
mod record;
pub mod survey;
pub mod trace;
#[cfg(test)]
pub mod world;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::lifecycle::{Exec, HookKind, Refusal, Report, RequestId, Time};
use crate::plan::Signal;
use crate::process::ExitStatus;

#[cfg(test)]
pub use world::World;

pub const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The container's name without the number of its creation: `web` for `web#2`.
pub fn name_of(id: &str) -> &str {
    id.split('#').next().unwrap_or_default()
}

/// The behavior of a container.
#[derive(Clone, Debug)]
pub struct Script {
    /// Time from execution until the container's startup probe can succeed; `None` if it never can.
    pub ready_after: Option<Duration>,
    /// Time from a stop signal until the container exits; `None` if the container ignores signals.
    pub stops_after: Option<Duration>,
    /// The only stop signal that the container reacts to; `None` for any.
    pub heeds: Option<Signal>,
    /// Time until the container exits by itself, and its exit code.
    pub exits_after: Option<(Duration, u8)>,
    /// Time from the decision to release the container until its program runs.
    pub release_takes: Duration,
    /// Time from the decision to restart the container until its program runs again.
    pub restart_takes: Duration,
    /// True if the OCI runtime cannot execute the program. Then the container stays held.
    pub cannot_be_released: bool,
    /// Number of restarts that fail before one succeeds.
    pub restarts_fail: u32,
    /// True if the OCI runtime cannot create the container.
    pub cannot_be_created: bool,
    /// Duration of the container's termination hook or preStop handler.
    pub hook_takes: Duration,
    /// Time from the container's execution until its liveness probe fails; `None` if it never
    /// fails.
    pub unwell_after: Option<Duration>,
    /// The exit code after a restart, if it differs from the exit code before the restart.
    pub then_exits: Option<u8>,
    /// Duration of one probe attempt. The result depends on the container's state at the start of
    /// the attempt.
    pub probe_takes: Duration,
    /// CPU time of one probe attempt.
    pub probe_costs: Duration,
    /// The exit code after a stop signal.
    pub stop_code: u8,
    /// True if SIGKILL does not end the container, because the container hangs in the kernel.
    pub survives_sigkill: bool,
}

impl Default for Script {
    fn default() -> Script {
        Script {
            ready_after: Some(Duration::ZERO),
            stops_after: Some(ms(20)),
            heeds: None,
            exits_after: None,
            release_takes: ms(1),
            restart_takes: ms(40),
            cannot_be_released: false,
            restarts_fail: 0,
            cannot_be_created: false,
            hook_takes: ms(1),
            unwell_after: None,
            then_exits: None,
            probe_takes: ms(1),
            probe_costs: Duration::ZERO,
            stop_code: 0,
            survives_sigkill: false,
        }
    }
}

/// An observed event: of a container, of the shim, or of the caller.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    /// The shim refused the Create of this container, for this reason.
    CreateRefused(String, String),
    Released(String),
    Executed(String),
    Signalled(String, Signal),
    Died(String, ExitStatus),
    ExitReported(String, u32),
    /// The caller's postStart handler is over: true if it succeeded, `None` if the caller does not
    /// learn the result and assumes a failure.
    PostStartOver(String, Option<bool>),
    /// The shim has published the exit. The event has not reached the caller yet.
    ExitSaid(String, u32),
    StartAnswered(String, Result<(), Refusal>),
    /// A Start has failed. The caller has only an error text, or has lost its connection.
    StartFailed(String, String),
    KillAnswered(RequestId, Result<(), Refusal>),
    MessageWritten(String, String),
    HookBegan(String, HookKind),
    HookEnded(String, HookKind),
    /// The shim repeats the Exec that it assumes to be the container's postStart handler.
    PostStarted(String),
    /// A probe attempt in the container is over, and took this CPU time.
    Probed(String, Duration),
    Reported(Report),
    /// The shim is about to restart the container's program.
    Restarting(String),
    /// An action of the caller, as text.
    Did(String),
}

/// A call that the caller makes.
#[derive(Clone, Debug)]
pub enum Call {
    /// Create, then Start as soon as the container is created.
    Run(&'static str, Option<Duration>),
    Create(&'static str),
    Start(&'static str, Option<Duration>),
    /// Give up on the Start that is under way.
    GiveUp(&'static str),
    Kill(&'static str, Signal, Option<Duration>),
    /// Run the container's postStart handler, which takes this time and exits with this code.
    PostStart(&'static str, Duration, u8),
    /// The preStop handler is over, or its container has exited meanwhile.
    PreStopOver(&'static str),
    /// SIGKILL for leftover processes of an exited container.
    KillLeftovers(&'static str),
    /// Delete an exited container.
    Delete(&'static str),
    /// Let the container's process crash, with this exit code.
    Crash(&'static str, u8),
}

/// A node with one pod, as its caller sees it: a clock, calls, and observations.
pub trait Node {
    fn now(&self) -> Time;

    /// Advances the clock until something happens, at the latest until `end`.
    fn advance(&mut self, end: Time);

    /// The observations so far, in order.
    fn seen(&self) -> &[(Time, Seen)];

    /// Records an action of the caller as text for the timeline.
    fn did(&mut self, what: String);

    /// Makes a call, and carries out all its effects that take no time.
    fn call(&mut self, call: Call);

    /// Makes a call after `wait`.
    fn call_in(&mut self, wait: Duration, call: Call);

    /// Sends a signal. Returns the number of the request.
    fn kill(&mut self, id: &'static str, signal: Signal, call_timeout: Duration) -> RequestId;

    /// True if the Kill with this number was answered.
    fn is_answered(&self, request: RequestId) -> bool;

    /// Executes a process in a container. Returns true if that was possible.
    fn exec(&mut self, id: &'static str, exec: &Exec<'_>) -> bool;

    /// Sets the annotations that kubelet gives to a container, before the container is created.
    fn learn(&mut self, id: &str, annotations: &BTreeMap<String, String>);

    /// Sets the behavior of containers with this id or name from now on.
    fn behave(&mut self, name: &str, script: Script);

    /// Creates and starts the sandbox. `call_timeout` is the timeout of all later Creates.
    fn open(&mut self, call_timeout: Duration);

    /// Removes the sandbox with everything in it. The next Create opens another sandbox, with a
    /// shim of its own.
    fn change_sandbox(&mut self);

    /// True if the container was created, and not deleted since.
    fn is_known(&self, id: &str) -> bool;

    /// True if the container has a process, even if the process does not run the program yet.
    fn is_alive(&self, id: &str) -> bool;

    /// True if the container's program runs.
    fn is_executing(&self, id: &str) -> bool;

    /// True if any container has a process.
    fn is_anything_alive(&self) -> bool;
}

pub fn expand(annotations: &[(&str, &str)]) -> BTreeMap<String, String> {
    let expand = |key: &str| match key.contains('/') {
        true => key.to_owned(),
        false => format!("usher/{key}"),
    };
    annotations
        .iter()
        .map(|(key, value)| (expand(key), (*value).to_owned()))
        .collect()
}
