//! The lifecycle of a pod: who starts when, who stops when.
//!
//! [`Pod`] decides everything and does nothing. It knows no clock, no process, no socket: what
//! happened comes in with the time it happened at, what is to be done comes out as [`Action`]s. The
//! simulator in its tests and the shim's actor drive it in the same way:
//!
//! - **`handle_*`** for what the caller asked and what became of earlier actions,
//! - **`poll_action`** for what is to be done next, until there is nothing,
//! - **`poll_timeout`** for when to call `handle_timeout` if nothing happens before,
//! - getters for everybody who wants to see.
//!
//! Nothing waits in here and nothing is remembered as a promise: an event is noted, and then the
//! rules (`rules.rs`) look at the pod as it is and say what is due, now or later. So a container that
//! was ready before anybody waited for it cannot be missed, and a timer that fires late changes
//! nothing but the time.
//!
//! Begin with `docs/lifecycle.md`, then `life/mod.rs`, the states of a container, and
//! `termination/mod.rs`, the steps of an end.
//!
//! | file | what it is about |
//! |---|---|
//! | `life/` | the states of a container, what leads from one to another, what has been done to stop it |
//! | `duty.rs` | what a role means |
//! | `task/` | what the caller and the OCI runtime see of a container: calls, execs, exit, removal |
//! | `container.rs` | all that is known of one container |
//! | `action.rs` | what comes out: actions, refusals |
//! | `report.rs` | what comes out for the log |
//! | `operation.rs` | numbered effects, and which of their completions are stale |
//! | `rules.rs` | the rules, their order, and how they are followed |
//! | `doors.rs` | whom an id means that comes from outside |
//! | `deeds.rs` | what rules want done |
//! | `outbox.rs` | what comes out |
//! | `run.rs` | which run of the pod a created container belongs to |
//! | `create.rs` | whose annotations count, what a container is in its pod |
//! | `gate.rs` | which names a container waits for |
//! | `remedy.rs` | which list is missing where something waits |
//! | `start.rs` | Start, its modes, holding |
//! | `exec.rs` | what the caller executes in a container: postStart, preStop |
//! | `probe.rs` | probes: when a sidecar is started, and does its work |
//! | `allowance.rs` | how much CPU time the attempts of probes may take |
//! | `request.rs` | what the caller has asked for to stop a container, and what that proves |
//! | `stop.rs` | signals in, and how they are delivered |
//! | `inference.rs` | what a stop request means: is the pod terminating? |
//! | `grace.rs` | how the steps of a termination share the grace period |
//! | `termination/` | the steps of a termination, whose turn it is, and what comes after |
//! | `hooks.rs` | what runs in a container, or against it, before it is stopped |
//! | `defers.rs` | what runs at the end, one after another |
//! | `extension.rs` | more time for a defer container that is still at work |
//! | `answer.rs` | answers of stop requests that wait |
//! | `exit.rs` | what an end means, and the code that is told |
//! | `restart.rs` | sidecars that are restarted in place, and their back-off |
//! | `withhold.rs` | init containers whose end the caller must not hear of yet |
//! | `completion.rs` | ends of containers that are the end of the pod |
//! | `kept.rs` | guests that keep a pod alive when its run is over |
//! | `oom.rs` | who is killed last when memory runs out |
//! | `sizes.rs` | how large the pod is in each phase |
//! | `history.rs` | what is remembered of names |
//! | `manual.rs` | what a person asks for: `usher stop`, `usher release` |
//! | `view.rs` | what a person sees |
//! | `snapshot.rs` | the state, written down and read back |
//! | `time.rs` | a point in time that somebody else read |

mod action;
mod allowance;
mod answer;
mod circles;
mod completion;
mod container;
mod create;
mod deeds;
mod defers;
mod doors;
mod duty;
mod exec;
mod exit;
mod extension;
mod gate;
mod grace;
mod history;
mod hooks;
mod inference;
mod kept;
mod life;
mod manual;
mod oom;
mod operation;
mod outbox;
mod probe;
mod remedy;
mod report;
mod request;
mod restart;
mod rules;
mod run;
mod sizes;
mod snapshot;
mod start;
mod stop;
mod task;
mod termination;
mod withhold;

#[cfg(test)]
mod tests;
mod time;
mod view;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::plan::{ContainerKind, ContainerPlan, Plan, Probe, USUAL_GRACE_PERIOD};
use crate::sizing::Size;

pub use action::{Action, Cause, ContainerId, HookKind, ProbeKind, Refusal, RequestId, Step, Why};
pub use completion::LAST_APP_AFTER;
pub use container::{Demands, NewContainer};
pub use duty::{Duty, Part, Turn};
pub use exec::Exec;
pub use gate::Missing;
pub use grace::{Budget, LEAST, STEPS, Share};
pub use kept::Kept;
pub use life::State;
pub use operation::{OperationId, Operations, Wanted};
pub use remedy::{Lateness, Remedy};
pub use report::Report;
pub use sizes::PodSize;
pub use snapshot::{SNAPSHOT_VERSION, SnapshotError};
pub use stop::Kill;
pub use task::{
    BundleFacts, Call, CleanupOutcome, Deletion, IllegalCall, LAST_WORDS_WITHIN, READ_WITHIN,
    RELEASES_WITHIN, TaskStatus,
};
pub use time::Time;
pub use view::{ContainerView, Obstacle, StageView, Status, TerminationView, Then, View, Wait};

use allowance::Allowance;
use circles::Circles;
use container::Container;
use history::History;
use outbox::Outbox;
use start::AutoBudget;
use termination::Termination;

/// The containers of one sandbox and all that is decided about them.
#[derive(Clone, Debug, Default, Hash, Serialize, Deserialize)]
pub struct Pod {
    /// When the last event came.
    now: Time,
    /// The annotations of the container that opened the pod: its plan as long as it lasts.
    plan: Option<Plan>,
    containers: BTreeMap<ContainerId, Container>,
    history: History,
    /// What the last container of each name asks for and may use.
    sizes: BTreeMap<String, Size>,
    creations: u64,
    /// When a workload container was last created.
    last_creation: Time,
    /// When a workload container was last created whose name was new to the run.
    last_new_name: Time,
    executions: u64,
    /// How long callers wait beyond the grace period before they give up on a Kill: the longest
    /// timeout seen on a Create. Kubelet's `runtimeRequestTimeout`, two minutes by default.
    request_timeout: Option<Duration>,
    auto_budget: AutoBudget,
    /// Of the probes of all its containers.
    allowance: Allowance,
    /// The program of some ordered container has been executed, or was to be.
    has_released: bool,
    /// Its sandbox container has ended: nothing is made any more in what was its namespaces.
    sandbox_is_gone: bool,
    /// The pod has had a sandbox before this one.
    is_later_sandbox: bool,
    /// The caller has restarted the whole pod in this sandbox (KEP-5532).
    was_restarted: bool,
    termination: Option<Termination>,
    /// Since when the run is late, once its sidecars have said so.
    late_said: Option<Time>,
    /// When the run was over after which the log has named what keeps the pod alive.
    kept_said: Option<Time>,
    #[serde(skip)]
    circles: Circles,
    #[cfg(any(test, feature = "simulator"))]
    #[serde(skip)]
    faulty_rules: &'static [(&'static str, rules::PodRule)],
    #[serde(skip)]
    out: Outbox,
}

/// What phase a pod is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Init containers and sidecars are being started.
    Initializing,
    /// Everything that apps wait for is started.
    Running,
    /// The steps of the termination are under way.
    Terminating(Step),
    /// Everything has been stopped.
    Terminated,
}

/// What a caller of a Kill waits beyond the grace period if nothing is known of it: kubelet's
/// default for `runtimeRequestTimeout`.
const DEFAULT_REQUEST_TIMEOUT: Duration = Duration::from_secs(120);

// === getters ===

impl Pod {
    /// What phase the pod is in.
    pub fn phase(&self) -> Phase {
        match &self.termination {
            Some(termination) if termination.step() == Step::Over => Phase::Terminated,
            Some(termination) => Phase::Terminating(termination.step()),
            None if self.closed_stage(usize::MAX).is_some() => Phase::Initializing,
            None => Phase::Running,
        }
    }

    /// The probe of a container, for the driver to make an attempt of it at `now`: what tells that it
    /// is started or still does its work, or that a defer container may go on. Its timeout is what the
    /// attempt may take.
    pub fn probe(&self, now: Time, id: &ContainerId) -> Option<Probe> {
        let container = self.known(id).ok()?;
        match container.defer_turn() {
            Some(_) => Some(self.bounded(now, self.liveness_probe(container)?.clone())),
            None => Some(container.probing()?.1.probe.clone()),
        }
    }

    /// Whether a container reads running though its program does not run: it is about to be restarted
    /// in place, or being so, and may have its next process already; or its success is withheld.
    pub fn is_without_program(&self, id: &ContainerId) -> bool {
        self.known(id)
            .is_ok_and(|container| container.life.is_alive() && !container.life.has_process())
    }

    /// Whether a container's program is to be executed once more in place, or is being so: what its last
    /// life has left is in the way of the next.
    pub fn lives_again(&self, id: &ContainerId) -> bool {
        self.known(id)
            .is_ok_and(|container| container.life.lives_again())
    }

    /// Whether the pod goes on by what is to be done next: a program is executed, or a container that
    /// waited for its turn is told to stop.
    pub fn is_about_to_go_on(&self) -> bool {
        let goes_on = |action: &Action| {
            matches!(
                action,
                Action::Release { .. } | Action::Hook { .. } | Action::Signal { request: None, .. }
            )
        };
        self.out.iter().any(goes_on)
    }

    /// Whether it is the pod's sandbox container.
    pub fn is_sandbox(&self, id: &ContainerId) -> bool {
        self.known(id)
            .is_ok_and(|container| container.kind == ContainerKind::Sandbox)
    }

    /// Whether the container's program has not been executed yet though its Start was answered.
    pub fn is_held(&self, id: &ContainerId) -> bool {
        self.known(id)
            .is_ok_and(|container| container.life.is_held())
    }
}

// === polling ===

impl Pod {
    /// What is to be done next; none when all has been said.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.out.pop()
    }

    /// When [`handle_timeout`](Pod::handle_timeout) is to be called if nothing happens before; none
    /// when there is nothing to wait for but events.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.next_timer().map(|(at, _)| at)
    }

    /// Time has gone by.
    pub fn handle_timeout(&mut self, now: Time) {
        self.settle(now);
    }

    /// The container that counts for a name: the one created last.
    fn current(&self, name: &str) -> Option<&Container> {
        self.containers
            .values()
            .filter(|container| container.kind == ContainerKind::Workload && container.name == name)
            .max_by_key(|container| container.number)
    }

    /// Whether the annotations say anything about this pod.
    pub fn has_orders(&self) -> bool {
        self.plan.as_ref().is_some_and(|plan| !plan.is_empty())
    }

    /// Whether the pod was opened by a sandbox container, as the CRI does it.
    fn has_sandbox(&self) -> bool {
        self.containers
            .values()
            .any(|container| container.kind == ContainerKind::Sandbox)
    }

    /// What the plan says of a container.
    fn plan_of(&self, container: &Container) -> Option<&ContainerPlan> {
        Some(self.plan.as_ref()?.container(&container.name))
    }

    /// The cap for the container's own stop; of a defer container for its whole turn.
    fn cap_of(&self, container: &Container) -> Option<Duration> {
        self.plan_of(container)?.grace_period
    }

    /// The grace period that the annotations give the container's pod.
    fn annotated_grace(&self, container: &Container) -> Duration {
        let settings = self.plan.as_ref().map(|plan| plan.settings());
        settings
            .and_then(|settings| settings.grace_period)
            .or(container.facts.grace_period)
            .or(settings.map(|settings| settings.usual_grace_period))
            .unwrap_or(USUAL_GRACE_PERIOD)
    }
}
