//! The data of one container.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::plan::{ContainerKind, DeferTurn, KubeletFacts, Role};
use crate::sizing::Size;

use super::action::RequestId;
use super::request::StopRequest;
use super::restart::BackOff;
use super::role_policy::RolePolicy;
use super::state::ContainerState;
use super::stop::Kill;
use super::task::{BundleFacts, Cleanup, Execs, Removal, SignalOrder, Updates};
use super::time::Time;

/// A container to be created.
#[derive(Clone, Debug)]
pub struct NewContainer {
    pub name: String,
    pub kind: ContainerKind,
    pub facts: KubeletFacts,
    pub demands: Demands,
    /// True if no annotation groups the container with others: it is a pod of its own.
    pub is_ungrouped: bool,
    pub bundle: BundleFacts,
}

/// The kernel settings that the caller requests for a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Demands {
    /// `oom_score_adj`, -1000 to 1000 (`proc(5)`).
    pub oom_score: i32,
    /// Resource requests and limits.
    pub size: Size,
}

#[derive(Clone, Debug, Hash, Serialize, Deserialize)]
pub(super) struct Container {
    pub name: String,
    pub kind: ContainerKind,
    pub role: Role,
    pub facts: KubeletFacts,
    pub demands: Demands,
    pub is_ungrouped: bool,
    /// Creation number in this pod: of two containers with one name, the later one counts.
    pub number: u64,
    /// True if the container belongs to the run after the termination that is under way or about to
    /// begin.
    pub is_of_next_run: bool,
    pub state: ContainerState,
    pub execs: Execs,
    pub cleanup: Cleanup,
    pub removal: Removal,
    pub bundle: BundleFacts,
    /// True if the caller gave up on its Start while the program was being executed, or while the
    /// container was being ended. The caller will delete the container.
    pub is_given_up: bool,
    /// The last stop request of the caller, if there is one. Its deadline may be past. It may also
    /// be part of a termination that the shim had inferred by mistake (`request.rs`).
    pub request: Option<StopRequest>,
    /// SIGKILLs of the caller that the rules have not handled yet.
    pub kills: Vec<(RequestId, Kill)>,
    pub updates: Updates,
    /// Signals that wait until the process is restored.
    pub pending_signals: Vec<SignalOrder>,
    pub answers: Vec<WithheldAnswer>,
    /// The progress of the container's termination hook or, for a defer container, of its turn.
    pub termination_work: TerminationWork,
    /// Expected CPU time of an attempt of its probe; `None` before the first attempt.
    pub probe_cost: Option<Duration>,
    pub back_off: BackOff,
    /// Number of the container's first execution, counted in this pod; 0 before that. A restart in
    /// place does not change this number. Sidecars stop in the reverse order of these numbers.
    pub place: u64,
}

/// A Kill with a delayed answer. The caller starts its timer when it gets the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct WithheldAnswer {
    pub request: RequestId,
    /// Time by which the shim answers the Kill.
    pub until: Time,
}

/// The progress of the container's termination hook or, for a defer container, of its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) enum TerminationWork {
    /// The progress of the termination hook; `Pending` for a container without a hook.
    Hook(HookState),
    /// The time when the turn of a defer container began. `None` before its turn.
    Turn(Option<Time>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) enum HookState {
    Pending,
    Running,
    Over,
}

impl TerminationWork {
    /// The initial state for a container with this role policy.
    pub const fn of(policy: RolePolicy) -> TerminationWork {
        match policy.defer_turn() {
            Some(_) => TerminationWork::Turn(None),
            None => TerminationWork::Hook(HookState::Pending),
        }
    }
}

impl Container {
    pub fn role_policy(&self) -> RolePolicy {
        RolePolicy::of(self.role)
    }

    /// True for the containers that usher orders: all containers of the pod except the sandbox and
    /// guests. A guest is a container that usher leaves alone.
    pub fn is_ordered(&self) -> bool {
        self.kind == ContainerKind::Workload && self.role_policy().is_ordered
    }

    /// The turn of a defer container, or `None` for other containers.
    pub fn defer_turn(&self) -> Option<DeferTurn> {
        self.role_policy().defer_turn()
    }

    /// True for a sidecar that is started in the sense of KEP-753: others need not wait for it.
    pub fn is_started_sidecar(&self) -> bool {
        self.role_policy().is_helper && self.state.is_started()
    }

    /// True while the container's stop request may be a mistake. The shim has inferred this request
    /// from an Exec that is either the preStop or the postStart handler: both run the same command.
    pub fn is_request_doubtful(&self) -> bool {
        let post_start = self.state.post_start();
        let may_be_either = post_start.is_some_and(|known| known.may_be_pre_stop());
        may_be_either && self.request.is_some_and(|request| request.is_pre_stop())
    }

    /// True if the container's stop signal was delivered or its SIGKILL is scheduled, unless this
    /// was done because a probe or postStart handler has failed.
    pub fn is_being_stopped(&self) -> bool {
        self.state.stop().is_under_way()
    }

    /// True while the container's termination hook runs.
    pub fn is_hooked(&self) -> bool {
        self.termination_work == TerminationWork::Hook(HookState::Running)
    }

    /// The time when the turn of a defer container began. `None` before its turn, and for other
    /// containers.
    pub fn turn_began(&self) -> Option<Time> {
        match self.termination_work {
            TerminationWork::Turn(began) => began,
            TerminationWork::Hook(_) => None,
        }
    }
}
