//! What a role means: one table, and nobody else asks which role it is.

use crate::plan::{DeferTurn, RestartPolicy, Role};

use super::action::Step;

/// What a role means to the lifecycle of its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duty {
    /// When its program is executed.
    pub turn: Turn,
    /// When what comes behind it may go on; none if nothing ever waits for it.
    pub part: Option<Part>,
    /// The step of a termination that it is stopped in, or runs in; none if a termination is not for
    /// it, unless a person has asked for it.
    pub step: Option<Step>,
    /// The step that it is stopped in when a person stops the pod.
    pub step_by_hand: Step,
    /// Its stop requests tell something of its pod: usher orders it.
    pub is_ordered: bool,
    /// The pod is there for it: when all of these have done their work, the pod has.
    pub is_work: bool,
    /// Others need it as long as they live: the shim restarts it in place while they do.
    pub is_helper: bool,
    /// Its success is kept from a caller that would draw the wrong conclusion.
    pub is_withheld: bool,
    /// It reports another code than its own when it was told to go.
    pub is_masked: bool,
}

/// When a container's program is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// When its caller says so.
    AtOnce,
    /// When the stages before its own have done their parts.
    InItsStage,
    /// When all stages have.
    AfterAllStages,
    /// When the pod terminates.
    AtTheEnd(DeferTurn),
}

/// What a container that others wait for has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// To succeed.
    Succeed,
    /// To be started (KEP-753, "Started condition").
    Start,
}

impl Duty {
    /// That of a role.
    pub const fn of(role: Role) -> Duty {
        /// What usher has nothing to do with but to let it run and stop.
        const NOTHING: Duty = Duty {
            turn: Turn::AtOnce,
            part: None,
            step: None,
            step_by_hand: Step::Sidecars,
            is_ordered: false,
            is_work: false,
            is_helper: false,
            is_withheld: false,
            is_masked: false,
        };
        match role {
            // Stopped with the apps: nothing outlives it that it needs.
            Role::Init => Duty {
                turn: Turn::InItsStage,
                part: Some(Part::Succeed),
                step: Some(Step::Apps),
                step_by_hand: Step::Apps,
                is_ordered: true,
                is_withheld: true,
                ..NOTHING
            },
            // The caller's: it asks its long-running ones only when all others are gone.
            Role::NativeInit => Duty {
                is_ordered: true,
                ..NOTHING
            },
            Role::Sidecar => Duty {
                turn: Turn::InItsStage,
                part: Some(Part::Start),
                step: Some(Step::Sidecars),
                is_ordered: true,
                is_helper: true,
                is_masked: true,
                ..NOTHING
            },
            Role::App => Duty {
                turn: Turn::AfterAllStages,
                step: Some(Step::Apps),
                step_by_hand: Step::Apps,
                is_ordered: true,
                is_work: true,
                ..NOTHING
            },
            Role::Defer(turn) => Duty {
                turn: Turn::AtTheEnd(turn),
                step: Some(Step::of(turn)),
                step_by_hand: Step::of(turn),
                is_ordered: true,
                is_masked: true,
                ..NOTHING
            },
            // `usher stop` stops guests with the apps, if the apps are still to be stopped.
            Role::Guest => Duty {
                step_by_hand: Step::Apps,
                ..NOTHING
            },
        }
    }

    /// Its caller alone says when it runs and when it stops: a request of its is never kept waiting, and
    /// does not count for the time of the others.
    pub const fn is_callers(self) -> bool {
        matches!(self.turn, Turn::AtOnce)
    }

    /// It is ready as soon as its program is executed: it has nothing else to do first, and no end to
    /// come to.
    pub const fn is_ready_at_once(self) -> bool {
        self.part.is_none() && self.defer_turn().is_none()
    }

    /// Whether it has done its part by ending with `code`.
    pub fn succeeds_with(self, code: u32) -> bool {
        self.part == Some(Part::Succeed) && code == 0
    }

    /// When a defer container runs; none of any other.
    pub const fn defer_turn(self) -> Option<DeferTurn> {
        match self.turn {
            Turn::AtTheEnd(turn) => Some(turn),
            _ => None,
        }
    }

    /// When the shim executes its program anew if its author says nothing. `ends` says whether the pod
    /// terminates: nobody but the shim brings a helper back then that others still need.
    pub const fn restart(self, policy: RestartPolicy, ends: bool) -> RestartPolicy {
        match (self.is_helper, policy) {
            (true, _) if ends => RestartPolicy::Always,
            (true, RestartPolicy::OnFailure | RestartPolicy::Never) => RestartPolicy::Always,
            // The caller does it.
            (true, RestartPolicy::Always) | (false, _) => RestartPolicy::Never,
        }
    }
}
