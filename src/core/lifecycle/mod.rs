//! The lifecycle of a pod: the order in which its containers start and stop.
//!
//! [`Pod`] makes all decisions, but does not carry them out. It has no clock, process or socket:
//! the driver reports events with the time at which they happened, and gets decisions as
//! [`Action`]s. The simulator in the tests and the shim's actor use `Pod` in the same way:
//!
//! - **`handle_*`** report requests of the caller and the outcome of earlier actions,
//! - **`poll_action`** returns the next action, until there is none,
//! - **`poll_timeout`** returns when to call `handle_timeout` if nothing happens before,
//! - getters show the state.
//!
//! The core neither waits nor stores promises: it records an event, and then the rules (`rules.rs`)
//! look at the pod as it is and return what is due, now or later. So the order of events does not
//! matter: if a container is ready before another container begins to wait for it, the rules still
//! see that it is ready. A timer that fires late only delays the decision.
//!
//! Begin with `docs/lifecycle.md`, then `state/mod.rs`, the states of a container, and
//! `termination/mod.rs`, the steps of a termination.
//!
//! | file | content |
//! |---|---|
//! | `state/` | the states of a container, their transitions, the progress of a stop |
//! | `role_policy.rs` | the policy of each role |
//! | `task/` | a container as the caller and the OCI runtime see it: calls, execs, signals, Updates, exit, removal |
//! | `container.rs` | the data of one container |
//! | `action.rs` | output: actions, refusals |
//! | `report.rs` | output for the log |
//! | `operation.rs` | numbered effects, and which of their completions are stale |
//! | `rules.rs` | the rules, their order, and their evaluation |
//! | `lookup.rs` | lookup of containers by id |
//! | `effects.rs` | effects of rules |
//! | `outbox.rs` | the queue of actions |
//! | `suspension.rs` | suspension of rules that repeat without effect |
//! | `run.rs` | the run of the pod that a created container belongs to |
//! | `create.rs` | creation: which annotations apply, the container's role |
//! | `gate.rs` | the names that a container waits for |
//! | `remedy.rs` | missing annotations that make a container wait |
//! | `start.rs` | Start, its modes, holding |
//! | `exec.rs` | Execs of the caller in a container: postStart, preStop |
//! | `probe.rs` | startup and liveness probes |
//! | `allowance.rs` | the limit on the CPU time of probes |
//! | `request.rs` | stop requests of the caller, and what they prove |
//! | `stop.rs` | signals of the caller, and their delivery |
//! | `inference.rs` | if stop requests mean that the pod terminates |
//! | `grace.rs` | how the steps of a termination share the grace period |
//! | `termination/` | the steps of a termination, the stop order, and what comes after |
//! | `hooks.rs` | hooks that run before a container is stopped |
//! | `defers.rs` | defer containers: run one after another in a termination |
//! | `extension.rs` | more time for a defer container that still works |
//! | `answer.rs` | delayed answers to stop requests |
//! | `exit.rs` | consequences of an exit, and the reported code |
//! | `restart.rs` | sidecars that are restarted in place, and their back-off |
//! | `withhold.rs` | init containers whose success is withheld from the caller |
//! | `completion.rs` | exits that end the pod |
//! | `kept.rs` | containers outside the plan that keep a pod alive after its run |
//! | `oom.rs` | OOM scores: sidecars are killed last |
//! | `sizes.rs` | the size of the pod in each phase |
//! | `history.rs` | the history of container names |
//! | `manual.rs` | requests of a person: `usher stop`, `usher release` |
//! | `view.rs` | the pod as a person sees it |
//! | `snapshot.rs` | the state in JSON, written and read |
//! | `time.rs` | points in time, read by the driver |

mod action;
mod allowance;
mod answer;
mod completion;
mod container;
mod create;
mod defers;
mod effects;
mod exec;
mod exit;
mod extension;
mod gate;
mod grace;
mod history;
mod hooks;
mod inference;
mod kept;
mod lookup;
mod manual;
mod oom;
mod operation;
mod outbox;
mod probe;
mod remedy;
mod report;
mod request;
mod restart;
mod role_policy;
mod rules;
mod run;
mod sizes;
mod snapshot;
mod start;
mod state;
mod stop;
mod suspension;
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

pub use action::{
    Action, ActionError, Cause, ContainerId, HookKind, ProbeKind, Refusal, RequestId, SignalReason,
    Step,
};
pub use completion::LAST_APP_AFTER;
pub use container::{Demands, NewContainer};
pub use exec::Exec;
pub use gate::Missing;
pub use grace::{Budget, MIN_GRACE, STEPS, Share};
pub use history::RESTARTS_ALL_WITHIN;
pub use kept::KeptAlive;
pub use operation::{OperationId, Operations, Wanted};
pub use remedy::{Lateness, Remedy};
pub use report::Report;
pub use role_policy::{ReadyWhen, RolePolicy, StartCondition};
pub use sizes::PodSize;
pub use snapshot::{SNAPSHOT_VERSION, SnapshotError};
pub use state::StateSummary;
pub use stop::Kill;
pub use task::{
    BundleFacts, Call, CleanupOutcome, Deletion, ExecCall, IllegalCall, IllegalExecCall,
    LAST_WORDS_WITHIN, READ_WITHIN, RELEASES_WITHIN, SignalOrder, TaskStatus, UPDATES_AT_MOST,
};
pub use time::Time;
pub use view::{ContainerView, Obstacle, StageView, Status, TerminationView, Then, View, Wait};

use allowance::Allowance;
use container::Container;
use history::History;
use outbox::Outbox;
use start::AutoBudget;
use suspension::SuspendedRules;
use termination::Termination;

/// The containers of one sandbox and all that is decided about them.
#[derive(Clone, Debug, Default, Hash, Serialize, Deserialize)]
pub struct Pod {
    /// Time of the last event.
    now: Time,
    /// The plan, read from the annotations of the pod's first container.
    plan: Option<Plan>,
    containers: BTreeMap<ContainerId, Container>,
    history: History,
    /// Requests and limits by container name: those of the container created last under the name.
    sizes: BTreeMap<String, Size>,
    is_lowering_memory: bool,
    creations: u64,
    /// Time at which a workload container was last created.
    last_creation: Time,
    /// Time of the last Create of a workload container whose name is new in this run.
    last_new_name: Time,
    executions: u64,
    /// Longest timeout seen on a Create: kubelet's `runtimeRequestTimeout`, two minutes by default.
    /// The timeout of kubelet's Kill is this time plus the grace period.
    request_timeout: Option<Duration>,
    auto_budget: AutoBudget,
    /// The limit on the CPU time of the pod's probes.
    allowance: Allowance,
    /// True if the shim has executed, or tried to execute, the program of a container that usher
    /// orders.
    has_released: bool,
    /// True if the sandbox container has exited: no container is created in its namespaces any
    /// more.
    sandbox_is_gone: bool,
    /// True if the pod has had an earlier sandbox.
    is_later_sandbox: bool,
    /// The caller has restarted the whole pod in this sandbox (KEP-5532).
    was_restarted: bool,
    termination: Option<Termination>,
    /// The time since which the run is late: all known apps are done, but more may be created. Set
    /// once the shim has warned of it on the containers' stderr.
    late_said: Option<Time>,
    /// Time when the run ended, set once the shim has logged which containers still keep the pod
    /// alive. `None` before that.
    kept_said: Option<Time>,
    #[serde(skip)]
    suspended_rules: SuspendedRules,
    #[cfg(any(test, feature = "simulator"))]
    #[serde(skip)]
    faulty_rules: &'static [(&'static str, rules::PodRule)],
    #[serde(skip)]
    out: Outbox,
}

/// The phase of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Init containers and sidecars are being started.
    Initializing,
    /// All init containers have exited with 0, and all sidecars were started.
    Running,
    Terminating(Step),
    /// The termination steps are over. A container outside the pod's plan may still run, or a
    /// process that SIGKILL does not end.
    Terminated,
}

/// Kubelet's default for `runtimeRequestTimeout`. Used if no timeout was seen on a Create.
const DEFAULT_REQUEST_TIMEOUT: Duration = Duration::from_secs(120);

impl Pod {
    /// The pod phase, derived from the termination and from the stages of the startup order.
    pub fn phase(&self) -> Phase {
        match &self.termination {
            Some(termination) if termination.step() == Step::Over => Phase::Terminated,
            Some(termination) => Phase::Terminating(termination.step()),
            None if self.closed_stage().is_some() => Phase::Initializing,
            None => Phase::Running,
        }
    }

    /// The probe for an [`Action::Probe`] that the driver carries out at `now`, with the timeout of
    /// this attempt. For a defer container: its liveness probe, whatever the container's state. For
    /// any other container: its startup or liveness probe, or `None` if the container does not run
    /// or no longer uses a probe. `None` if the container is unknown.
    pub fn probe(&self, now: Time, id: &ContainerId) -> Option<Probe> {
        let container = self.known(id).ok()?;
        match container.defer_turn() {
            Some(_) => Some(self.bounded(now, self.liveness_probe(container)?.clone())),
            None => Some(container.probing()?.1.probe.clone()),
        }
    }

    /// True if the container is to be restarted in place, or is being restarted. Before the
    /// restart, the state that the OCI runtime keeps of the container's last process has to be
    /// cleaned up.
    pub fn will_run_again(&self, id: &ContainerId) -> bool {
        self.known(id)
            .is_ok_and(|container| container.state.will_run_again())
    }

    /// True if an action in the queue for the driver executes a program, runs a hook, or sends a
    /// signal that no Kill call waits for. The shim then delays a cleanup of runtime state.
    pub fn is_about_to_go_on(&self) -> bool {
        let goes_on = |action: &Action| {
            matches!(
                action,
                Action::Release { .. }
                    | Action::Hook { .. }
                    | Action::Signal {
                        order: SignalOrder { request: None, .. },
                        ..
                    }
            )
        };
        self.out.iter().any(goes_on)
    }

    /// True if the container is the pod's sandbox; false for an unknown container.
    pub fn is_sandbox(&self, id: &ContainerId) -> bool {
        self.known(id)
            .is_ok_and(|container| container.kind == ContainerKind::Sandbox)
    }

    /// True if the container's program has not been executed though its Start was answered.
    pub fn is_held(&self, id: &ContainerId) -> bool {
        self.known(id)
            .is_ok_and(|container| container.state.is_held())
    }
}

impl Pod {
    /// The next action, or `None` when there is none.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.out.pop()
    }

    /// The time to call [`handle_timeout`](Pod::handle_timeout) if nothing happens before, or
    /// `None` if only events can bring new actions.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.next_timer().map(|(at, _)| at)
    }

    /// Carries out all decisions that are due at `now`.
    pub fn handle_timeout(&mut self, now: Time) {
        self.settle(now);
    }

    /// The current container of a name: the one created last, which may have exited. `None` if no
    /// container of this name exists.
    fn current(&self, name: &str) -> Option<&Container> {
        self.containers
            .values()
            .filter(|container| container.kind == ContainerKind::Workload && container.name == name)
            .max_by_key(|container| container.number)
    }

    /// True if usher orders the pod's containers, because of annotations or of the node's settings.
    pub fn has_orders(&self) -> bool {
        self.plan.as_ref().is_some_and(|plan| !plan.is_empty())
    }

    /// True if the pod has a sandbox container, as with the CRI, even if the sandbox has exited.
    fn has_sandbox(&self) -> bool {
        self.containers
            .values()
            .any(|container| container.kind == ContainerKind::Sandbox)
    }

    fn plan_of(&self, container: &Container) -> Option<&ContainerPlan> {
        Some(self.plan.as_ref()?.container(&container.name))
    }

    /// The time limit that annotations set for the container's stop, if any. For a defer container,
    /// the limit for all its runs together.
    fn cap_of(&self, container: &Container) -> Option<Duration> {
        self.plan_of(container)?.grace_period
    }

    /// The grace period of the container's pod: the one in usher's annotation, or else
    /// `terminationGracePeriodSeconds` as kubelet passes it on, or else the usual one. The caller
    /// may give less for a stop.
    fn annotated_grace(&self, container: &Container) -> Duration {
        let settings = self.plan.as_ref().map(|plan| plan.settings());
        settings
            .and_then(|settings| settings.grace_period)
            .or(container.facts.grace_period)
            .or(settings.map(|settings| settings.usual_grace_period))
            .unwrap_or(USUAL_GRACE_PERIOD)
    }
}
