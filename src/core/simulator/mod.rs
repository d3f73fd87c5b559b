//! The world that pods live in, simulated: containers that behave as their scripts say, a kubelet that
//! knows trouble, a person with `ctr`, and what is promised whatever goes wrong.
//!
//! | module | what it is |
//! |---|---|
//! | [`case`] | a pod, how its containers behave, and what goes wrong: all that one number decides |
//! | [`chance`] | such a number made into a case |
//! | [`kubelet`] | a kubelet, and the containerd under it |
//! | [`by_hand`] | a person with `ctr` |
//! | [`world`] | a node that has nothing but the core, and a clock of its own |
//! | [`trace`] | what has happened, as the containers and kubelet know it |
//! | [`promises`] | what holds for every trace |
//! | [`survey`] | many worlds, and the simplest that breaks a promise |
//!
//! Who calls does so through [`Node`]. Below it can be the core alone, or all of a shim.

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

/// Containers of one name have ids of their own: `web`, `web#2`.
pub fn name_of(id: &str) -> &str {
    id.split('#').next().unwrap_or_default()
}

/// How a container behaves.
#[derive(Clone, Debug)]
pub struct Script {
    /// From execution until its startup probe would succeed; never if there is none.
    pub ready_after: Option<Duration>,
    /// From a stop signal until it exits; it ignores them if there is none.
    pub stops_after: Option<Duration>,
    /// The only stop signal that it heeds; any if there is none.
    pub heeds: Option<Signal>,
    /// It exits on its own, with this code.
    pub exits_after: Option<(Duration, u8)>,
    /// From the decision to release it until its program runs.
    pub release_takes: Duration,
    /// From the decision to restart it until its program runs anew.
    pub restart_takes: Duration,
    /// Its program cannot be executed: it stays parked.
    pub cannot_be_released: bool,
    /// How many restarts fail before one succeeds.
    pub restarts_fail: u32,
    /// The OCI runtime cannot create it.
    pub cannot_be_created: bool,
    /// How long its termination hook, or its preStop handler, would take.
    pub hook_takes: Duration,
    /// From its execution until its liveness probe fails; never if there is none.
    pub unwell_after: Option<Duration>,
    /// The code that it exits with when it has been restarted, if that is another.
    pub then_exits: Option<u8>,
    /// From the beginning of a probe's attempt, which decides its result, until that is known.
    pub probe_takes: Duration,
    /// How much CPU time it takes.
    pub probe_costs: Duration,
    /// The code that it exits with when it heeds a stop signal.
    pub stop_code: u8,
    /// SIGKILL does not end it: it hangs in the kernel.
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

/// What was seen, by the containers or by the caller.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    /// Its Create was refused.
    CreateRefused(String, String),
    Released(String),
    Executed(String),
    Signalled(String, Signal),
    Died(String, ExitStatus),
    ExitReported(String, u32),
    /// The postStart handler that its caller ran is over, and has succeeded or not. `None` if its caller was not
    /// told, and takes it for failed.
    PostStartOver(String, Option<bool>),
    /// Its end was said, and is on its way to the caller.
    ExitSaid(String, u32),
    StartAnswered(String, Result<(), Refusal>),
    /// The same for whoever has nothing but an error's text, or lost his connection.
    StartFailed(String, String),
    KillAnswered(RequestId, Result<(), Refusal>),
    Told(String, String),
    HookBegan(String, HookKind),
    HookEnded(String, HookKind),
    /// What was taken for its postStart handler is executed once more.
    PostStarted(String),
    /// An attempt of its probe is over, and took so much CPU time.
    Probed(String, Duration),
    Reported(Report),
    /// Its program is to be executed anew.
    Restarting(String),
    /// What the caller did, in its own words.
    Did(String),
}

/// A call of the caller.
#[derive(Clone, Debug)]
pub enum Call {
    /// Create, and Start as soon as it is created.
    Run(&'static str, Option<Duration>),
    Create(&'static str),
    Start(&'static str, Option<Duration>),
    /// Give up on the Start that is under way.
    GiveUp(&'static str),
    Kill(&'static str, Signal, Option<Duration>),
    /// Execute its postStart handler, which takes so long and ends with that code.
    PostStart(&'static str, Duration, u8),
    /// Its preStop handler has been executed, or its container has ended in it.
    PreStopOver(&'static str),
    /// SIGKILL for what is left of the processes of a container that has ended.
    KillLeftovers(&'static str),
    /// Delete what has ended.
    Delete(&'static str),
    /// The process dies by itself.
    Crash(&'static str, u8),
}

/// A node with one pod, as its caller knows it: its clock, its calls, and what is seen.
pub trait Node {
    fn now(&self) -> Time;

    /// Lets time go by until something happens, at the latest until `end`.
    fn advance(&mut self, end: Time);

    /// What was seen up to now, in its order.
    fn seen(&self) -> &[(Time, Seen)];

    /// What the caller does, for whoever reads what has happened.
    fn did(&mut self, what: String);

    /// Calls, and lets everything happen that happens without time going by.
    fn call(&mut self, call: Call);

    /// Calls in a while.
    fn call_in(&mut self, wait: Duration, call: Call);

    /// Sends a signal. The number is that of the request.
    fn kill(&mut self, id: &'static str, signal: Signal, patience: Duration) -> RequestId;

    /// Whether a Kill has been answered.
    fn is_answered(&self, request: RequestId) -> bool;

    /// Whether a process could be added to a container.
    fn exec(&mut self, id: &'static str, exec: &Exec<'_>) -> bool;

    /// With what annotations of kubelet's the container comes that is about to be created.
    fn learn(&mut self, id: &str, annotations: &BTreeMap<String, String>);

    /// How the containers of this id, or this name, behave from now on.
    fn behave(&mut self, name: &str, script: Script);

    /// The sandbox is created and started. From now on each Create waits for so long.
    fn open(&mut self, patience: Duration);

    /// The sandbox is gone with all that was in it, and the next thing that is created opens another,
    /// which has a shim of its own.
    fn change_sandbox(&mut self);

    /// Whether it was created, and not deleted since.
    fn is_known(&self, id: &str) -> bool;

    /// Whether its process is there, parked or not.
    fn is_alive(&self, id: &str) -> bool;

    /// Whether its program runs.
    fn is_executing(&self, id: &str) -> bool;

    /// Whether there is any process.
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
