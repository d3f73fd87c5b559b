//! One container as the core sees it.

use std::time::Duration;

use crate::plan::{ContainerKind, DeferTurn, KubeletFacts, Probe, Role, Signal};
use crate::process::ExitStatus;
use crate::sizing::Size;

use super::action::RequestId;
use super::grace::LEAST;
use super::restart::BackOff;
use super::time::Time;

/// A container the caller wants created.
#[derive(Clone, Debug)]
pub struct NewContainer {
    pub name: String,
    pub kind: ContainerKind,
    pub facts: KubeletFacts,
    pub demands: Demands,
}

/// What the caller wants of the kernel for a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demands {
    /// Its `oom_score_adj`, -1000 to 1000 (`proc(5)`).
    pub oom_score: i32,
    /// What it asks for and may use.
    pub size: Size,
}

#[derive(Clone, Debug)]
pub(super) struct Container {
    pub name: String,
    pub kind: ContainerKind,
    pub role: Role,
    pub facts: KubeletFacts,
    pub demands: Demands,
    /// Counts creations in this pod: of two containers with one name the later is the one that
    /// counts.
    pub number: u64,
    pub state: State,
    /// The stop request of the caller, if there was one.
    pub request: Option<StopRequest>,
    /// Calls that have asked for its stop, and are not answered yet.
    pub answers: Vec<WithheldAnswer>,
    /// What has been done to stop it.
    pub stopping: Stopping,
    /// Its termination hook, and the preStop handler that nobody else will run.
    pub hooks: Hooks,
    /// When its turn to run came, of a defer container.
    pub turn_began: Option<Time>,
    /// The code to report for a container that was ended before its program ran.
    pub ends_as: Option<u32>,
    /// It was stopped because its startup probe failed.
    pub startup_failed: bool,
    /// What an attempt of its probe is expected to cost, in CPU time; none if none was made.
    pub probe_cost: Option<Duration>,
    /// How soon it is restarted in place the next time.
    pub back_off: BackOff,
    /// Counts first executions in this pod: sidecars stop in the reverse order of it, wherever
    /// they have been restarted in place since. None has happened at 0.
    pub place: u64,
    /// When its Start was answered, until something was taken for its postStart handler.
    pub answered: Option<Answered>,
    /// The exec that is taken for the container's postStart handler, while it runs.
    pub post_start: Option<String>,
}

/// The answer of a Start, for what may follow it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    pub at: Time,
    /// How many containers had been created then.
    pub creations: u64,
}

/// Where a container is in its life.
#[derive(Clone, Debug)]
pub(super) enum State {
    /// The OCI runtime is creating it.
    Creating,
    /// Its init process is parked; nobody has asked for its start yet.
    Created,
    /// Its init process is parked; its Start waits for its turn and for its answer.
    Blocked(Blocked),
    /// Its init process is parked; its Start has been answered.
    Held(Held),
    /// Its program is being executed.
    Releasing {
        /// The Start that is still to be answered.
        request: Option<RequestId>,
        /// An exit that overtook the news of the release.
        exit: Option<ExitStatus>,
    },
    /// Its program runs.
    Running(Running),
    /// Its program has ended, and it is executed anew in a while; the caller is told of neither.
    BackingOff { status: ExitStatus, until: Time },
    /// Its program is being executed anew.
    Restarting {
        /// How its last life ended.
        status: ExitStatus,
        /// An exit that overtook the news of the restart.
        exit: Option<ExitStatus>,
    },
    /// It has succeeded, and the caller must not know yet, or it would be restarted.
    Withheld { since: Time },
    /// It is over, and the caller knows.
    Exited,
}

#[derive(Clone, Debug)]
pub(super) struct Blocked {
    pub request: RequestId,
    pub since: Time,
    /// When the caller gives up.
    pub deadline: Option<Time>,
}

#[derive(Clone, Debug)]
pub(super) struct Held {
    /// When its Start was answered.
    pub since: Time,
    /// Whether its stderr has been told.
    pub told: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Running {
    /// When its program was executed.
    pub since: Time,
    /// Counts executions in this pod, so that no life is taken for another.
    pub life: u64,
    pub startup: Startup,
}

/// How far the startup of a running container is.
#[derive(Clone, Debug)]
pub(super) enum Startup {
    Probing(Probing),
    Done,
    /// Its startup probe failed too often; it is being stopped for that.
    Failed,
}

#[derive(Clone, Debug)]
pub(super) struct Probing {
    pub probe: Probe,
    pub failures: u32,
    /// When the next attempt is due; no attempt is under way then.
    pub next: Option<Time>,
    /// When the attempt that is under way began.
    pub began: Time,
}

/// The caller wants the container stopped.
#[derive(Clone, Debug)]
pub(super) struct StopRequest {
    /// When it was first asked for.
    pub at: Time,
    /// When the caller will kill it.
    pub deadline: Time,
    /// The signal it is to be stopped with; none as long as only its preStop handler was seen.
    pub signal: Option<Signal>,
    pub all: bool,
    /// It was part of a termination that proved to be none, and proves nothing any more.
    pub disproved: bool,
    /// The caller leaves it no time: SIGKILL without a stop signal, or a grace period that is none.
    pub forced: bool,
}

/// A Kill whose answer waits, since the caller's own timer starts there.
#[derive(Clone, Copy, Debug)]
pub(super) struct WithheldAnswer {
    pub request: RequestId,
    /// When it is given at the latest.
    pub until: Time,
}

/// What is run in a container, or against it, before it is stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hooks {
    pub termination: HookState,
    pub pre_stop: HookState,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum HookState {
    #[default]
    Pending,
    Running,
    Over,
}

/// What has been done to stop a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stopping {
    /// A stop signal has been delivered.
    pub signalled: bool,
    /// When SIGKILL follows.
    pub kill_at: Option<Time>,
    /// SIGKILL has been delivered.
    pub killed: bool,
    /// When its own stop began.
    pub told_at: Option<Time>,
    /// Not even SIGKILL has ended it, and nobody waits for it any more.
    pub given_up: bool,
    /// It has been told that SIGKILL follows soon, and a SIGKILL of the caller shortens that no
    /// more.
    pub last_chance: bool,
}

impl Container {
    /// As the caller knows it, the container exists and has not ended.
    pub fn is_alive(&self) -> bool {
        !matches!(self.state, State::Creating | State::Exited)
    }

    /// The init process exists and is parked: the program has not been executed.
    pub fn is_parked(&self) -> bool {
        matches!(
            self.state,
            State::Created | State::Blocked(_) | State::Held(_)
        )
    }

    /// The program runs, or is being executed.
    pub fn is_running(&self) -> bool {
        matches!(self.state, State::Releasing { .. } | State::Running(_))
    }

    /// Whether there is a process that can be signalled.
    pub fn has_process(&self) -> bool {
        self.is_alive()
            && !self.is_between_lives()
            && !matches!(self.state, State::Restarting { .. })
    }

    /// Its process is gone, and the caller does not know: there is nothing to signal.
    pub fn is_between_lives(&self) -> bool {
        matches!(
            self.state,
            State::BackingOff { .. } | State::Withheld { .. }
        )
    }

    /// Started in the sense of KEP-753: the program runs, its startup probe has succeeded, and its
    /// postStart handler is over.
    pub fn is_started(&self) -> bool {
        self.post_start.is_none()
            && matches!(&self.state, State::Running(running) if matches!(running.startup, Startup::Done))
    }

    /// A workload container that usher orders; guests and the sandbox are not.
    pub fn is_ordered(&self) -> bool {
        self.kind == ContainerKind::Workload && self.role != Role::Guest
    }

    /// When a defer container runs; none of any other.
    pub fn defer_turn(&self) -> Option<DeferTurn> {
        match self.role {
            Role::Defer(turn) => Some(turn),
            _ => None,
        }
    }

    /// Whether the caller has sent a stop signal.
    pub fn is_asked(&self) -> bool {
        self.request
            .as_ref()
            .is_some_and(|request| request.signal.is_some())
    }

    /// Whether its end is not of its own accord: the caller has asked for it, or the shim.
    pub fn was_asked_or_told(&self) -> bool {
        self.request.is_some() || self.was_told()
    }

    /// Whether it has been told to stop, or will be killed. One that failed its startup probe has
    /// not been told to go: it has failed.
    pub fn was_told(&self) -> bool {
        let told = self.stopping.signalled || self.stopping.kill_at.is_some();
        told && !self.startup_failed
    }

    /// Whether the caller's wish to stop it is still open at `now`. Where there is no grace period it
    /// is so for the moment that follows every grace period, or it would be over at once.
    pub fn has_open_request(&self, now: Time) -> bool {
        self.is_alive()
            && self
                .request
                .as_ref()
                .is_some_and(|request| now < request.deadline.max(request.at.after(LEAST)))
    }

    /// The state in a word, as the OCI runtime specification has it where it has one.
    pub fn state_word(&self) -> &'static str {
        match self.state {
            State::Creating => "creating",
            State::Created => "created",
            State::Blocked(_) => "starting",
            State::Held(_) => "held",
            State::Releasing { .. } | State::Running(_) => "running",
            State::BackingOff { .. } => "waiting to be restarted",
            State::Restarting { .. } => "restarting",
            State::Withheld { .. } => "completed",
            State::Exited => "stopped",
        }
    }
}
