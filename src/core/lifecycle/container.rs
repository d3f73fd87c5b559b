//! One container as the core sees it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::plan::{ContainerKind, DeferTurn, KubeletFacts, Role};
use crate::sizing::Size;

use super::action::RequestId;
use super::duty::Duty;
use super::life::Life;
use super::request::StopRequest;
use super::restart::BackOff;
use super::stop::Kill;
use super::task::{BundleFacts, Task};
use super::time::Time;

/// A container the caller wants created.
#[derive(Clone, Debug)]
pub struct NewContainer {
    pub name: String,
    pub kind: ContainerKind,
    pub facts: KubeletFacts,
    pub demands: Demands,
    /// No annotation groups it with other containers: it is a pod of its own.
    pub is_ungrouped: bool,
    pub bundle: BundleFacts,
}

/// What the caller wants of the kernel for a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Demands {
    /// Its `oom_score_adj`, -1000 to 1000 (`proc(5)`).
    pub oom_score: i32,
    /// What it asks for and may use.
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
    /// Counts creations in this pod: of two containers with one name the later is the one that
    /// counts.
    pub number: u64,
    /// It was created while the pod's end was under way, and has to do with what comes after that.
    pub is_of_next_run: bool,
    pub life: Life,
    pub task: Task,
    /// Whoever asked for its start has given up before it was answered, and will clear it away.
    pub is_given_up: bool,
    /// The stop request of the caller, if there was one.
    pub request: Option<StopRequest>,
    /// SIGKILLs of the caller that are to be seen to next.
    pub kills: Vec<(RequestId, Kill)>,
    /// Calls that have asked for its stop, and are not answered yet.
    pub answers: Vec<WithheldAnswer>,
    /// What it does when its pod ends, beside being stopped.
    pub at_the_end: AtTheEnd,
    /// What an attempt of its probe is expected to cost, in CPU time; none if none was made.
    pub probe_cost: Option<Duration>,
    /// How soon it is restarted in place the next time.
    pub back_off: BackOff,
    /// Counts first executions in this pod: sidecars stop in the reverse order of it, wherever
    /// they have been restarted in place since. None has happened at 0.
    pub place: u64,
}

/// A Kill whose answer waits, since the caller's own timer starts there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct WithheldAnswer {
    pub request: RequestId,
    /// When it is given at the latest.
    pub until: Time,
}

/// What a container does when its pod ends, beside being stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) enum AtTheEnd {
    /// Its termination hook is run, if it has one.
    Hook(HookState),
    /// It is a defer container, and runs itself: its turn came then, if it has come.
    Turn(Option<Time>),
}

/// How far the container's termination hook is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) enum HookState {
    Pending,
    Running,
    Over,
}

// === impl AtTheEnd ===

impl AtTheEnd {
    /// That of a container with this duty, before its pod ends.
    pub const fn of(duty: Duty) -> AtTheEnd {
        match duty.defer_turn() {
            Some(_) => AtTheEnd::Turn(None),
            None => AtTheEnd::Hook(HookState::Pending),
        }
    }
}

// === impl Container ===

impl Container {
    /// What its role means.
    pub fn duty(&self) -> Duty {
        Duty::of(self.role)
    }

    /// A workload container that usher orders; guests and the sandbox are not.
    pub fn is_ordered(&self) -> bool {
        self.kind == ContainerKind::Workload && self.duty().is_ordered
    }

    /// When a defer container runs; none of any other.
    pub fn defer_turn(&self) -> Option<DeferTurn> {
        self.duty().defer_turn()
    }

    /// Whether what was seen of its stop may as well be its postStart handler: the same command, at a time
    /// at which that is run.
    pub fn is_hardly_asked(&self) -> bool {
        let post_start = self.life.post_start();
        let may_be_either = post_start.is_some_and(|known| known.may_be_pre_stop());
        may_be_either && self.request.is_some_and(|request| request.is_pre_stop())
    }

    /// Whether it has been told to stop, or will be killed. One that has failed has not been told to
    /// go.
    pub fn was_told(&self) -> bool {
        let stop = self.life.stop();
        (stop.is_told() || stop.kill_at().is_some()) && !stop.is_for_failure()
    }

    /// Its termination hook runs.
    pub fn is_hooked(&self) -> bool {
        self.at_the_end == AtTheEnd::Hook(HookState::Running)
    }

    /// When its turn to run came, of a defer container that has had it.
    pub fn turn_began(&self) -> Option<Time> {
        match self.at_the_end {
            AtTheEnd::Turn(began) => began,
            AtTheEnd::Hook(_) => None,
        }
    }
}
