//! The policy of each role, in one table. No other code asks for the role.

use crate::plan::{DeferTurn, RestartPolicy, Role};

use super::action::Step;

/// The meaning of a role in the lifecycle of its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RolePolicy {
    pub start_condition: StartCondition,
    /// The condition after which later stages start. `None` if no stage waits for the container.
    pub ready_when: Option<ReadyWhen>,
    /// The step of a termination in which the container is stopped or, if it is a defer container,
    /// runs. `None` if only `usher stop` stops the container.
    pub step: Option<Step>,
    /// The step in which `usher stop` stops the container.
    pub step_by_hand: Step,
    /// Usher orders the container: its stop requests count for the inference of a termination.
    pub is_ordered: bool,
    /// The container is an app: the pod's run is complete when all apps are done.
    pub is_work: bool,
    /// True if other containers need this container while they run. So the shim restarts it in
    /// place.
    pub is_helper: bool,
    /// A successful exit is withheld from a caller that would misinterpret it.
    pub is_withheld: bool,
    /// True if the shim may report another exit code than the real one after it has stopped the
    /// container.
    pub is_masked: bool,
}

/// The condition for the execution of a container's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartCondition {
    /// The caller's Start.
    AtOnce,
    /// All earlier stages are done.
    InItsStage,
    /// All stages are done.
    AfterAllStages,
    /// The pod terminates, and the turn of the defer container comes.
    AtTheEnd(DeferTurn),
}

/// The condition that later stages wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadyWhen {
    /// The container exits with 0.
    Completed,
    /// The container is started (KEP-753, "Started condition").
    Started,
}

impl RolePolicy {
    /// The policy of a role.
    pub const fn of(role: Role) -> RolePolicy {
        /// A container that usher only runs and stops.
        const NOTHING: RolePolicy = RolePolicy {
            start_condition: StartCondition::AtOnce,
            ready_when: None,
            step: None,
            step_by_hand: Step::Sidecars,
            is_ordered: false,
            is_work: false,
            is_helper: false,
            is_withheld: false,
            is_masked: false,
        };
        match role {
            // An init container that still runs is stopped with the apps: no container that stops
            // later needs it.
            Role::Init => RolePolicy {
                start_condition: StartCondition::InItsStage,
                ready_when: Some(ReadyWhen::Completed),
                step: Some(Step::Apps),
                step_by_hand: Step::Apps,
                is_ordered: true,
                is_withheld: true,
                ..NOTHING
            },
            // Native init containers are left to the caller, which stops those that still run when
            // all other containers have exited.
            Role::NativeInit => RolePolicy {
                is_ordered: true,
                ..NOTHING
            },
            Role::Sidecar => RolePolicy {
                start_condition: StartCondition::InItsStage,
                ready_when: Some(ReadyWhen::Started),
                step: Some(Step::Sidecars),
                is_ordered: true,
                is_helper: true,
                is_masked: true,
                ..NOTHING
            },
            Role::App => RolePolicy {
                start_condition: StartCondition::AfterAllStages,
                step: Some(Step::Apps),
                step_by_hand: Step::Apps,
                is_ordered: true,
                is_work: true,
                ..NOTHING
            },
            Role::Defer(turn) => RolePolicy {
                start_condition: StartCondition::AtTheEnd(turn),
                step: Some(Step::of(turn)),
                step_by_hand: Step::of(turn),
                is_ordered: true,
                is_masked: true,
                ..NOTHING
            },
            // `usher stop` stops guests with the apps, if the apps are still to be stopped.
            Role::Guest => RolePolicy {
                step_by_hand: Step::Apps,
                ..NOTHING
            },
        }
    }

    /// True if the caller alone decides when the container runs and stops. The shim never delays
    /// stop requests for such a container, and does not derive the deadline of a termination from
    /// them.
    pub const fn is_callers(self) -> bool {
        matches!(self.start_condition, StartCondition::AtOnce)
    }

    /// True if the container is ready as soon as its program is executed.
    pub const fn is_ready_at_once(self) -> bool {
        self.ready_when.is_none() && self.defer_turn().is_none()
    }

    /// True if an exit with `code` fulfills the role's condition.
    pub fn succeeds_with(self, code: u32) -> bool {
        self.ready_when == Some(ReadyWhen::Completed) && code == 0
    }

    /// The turn of a defer container, or `None` for other containers.
    pub const fn defer_turn(self) -> Option<DeferTurn> {
        match self.start_condition {
            StartCondition::AtTheEnd(turn) => Some(turn),
            _ => None,
        }
    }

    /// The shim's restart policy for the container unless its author sets one. `ends` is true while
    /// the pod terminates: then only the shim restarts a sidecar that others still need.
    pub const fn restart(self, policy: RestartPolicy, ends: bool) -> RestartPolicy {
        match (self.is_helper, policy) {
            (true, _) if ends => RestartPolicy::Always,
            (true, RestartPolicy::OnFailure | RestartPolicy::Never) => RestartPolicy::Always,
            // The caller restarts the container.
            (true, RestartPolicy::Always) | (false, _) => RestartPolicy::Never,
        }
    }
}
