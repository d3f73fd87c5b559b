//! The policy of each role, in one table. Other code asks for the policy rather than for the role.

use crate::plan::{DeferTurn, RestartPolicy, Role};

use super::action::Step;

/// The meaning of a role in the lifecycle of its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RolePolicy {
    pub start_condition: StartCondition,
    /// The condition after which later stages start. `None` if no stage waits for the container.
    pub ready_when: Option<ReadyWhen>,
    /// The step of a termination in which the container is stopped or, if it is a defer container,
    /// runs. `None` if the shim stops the container only after `usher stop`, or when its caller
    /// asks.
    pub step: Option<Step>,
    /// The step in which `usher stop` stops the container if `step` is `None`. If the termination
    /// is already past this step, the container is stopped together with the sidecars.
    pub step_by_hand: Step,
    /// True for every role but [`Role::Guest`]: the phases, the end and the size of the pod depend
    /// on the container. This includes native init containers, although kubelet starts and stops
    /// them.
    pub is_ordered: bool,
    /// The container is an app: the pod's run is complete when all apps are done.
    pub is_work: bool,
    /// True for a sidecar: other containers need it while they run. So the shim restarts it in
    /// place.
    pub is_helper: bool,
    /// True for an init container: its success is withheld from a caller that would misinterpret it
    /// (`withhold.rs`).
    pub is_withheld: bool,
    /// True if the shim may hide a failure of the container from the caller. This is so for a
    /// sidecar that the shim has stopped, and for any defer container.
    pub may_hide_failure: bool,
}

/// The condition for the execution of a container's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartCondition {
    /// The caller has called Start. There is no other condition.
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
        /// The policy of a container that only its caller starts and stops. Each role below changes
        /// parts of it.
        const NOTHING: RolePolicy = RolePolicy {
            start_condition: StartCondition::AtOnce,
            ready_when: None,
            step: None,
            step_by_hand: Step::Sidecars,
            is_ordered: false,
            is_work: false,
            is_helper: false,
            is_withheld: false,
            may_hide_failure: false,
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
                may_hide_failure: true,
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
                may_hide_failure: true,
                ..NOTHING
            },
            // After `usher stop`, the shim stops a container with this role together with the apps
            // or, if it is too late for that, with the sidecars. In any other termination, the shim
            // leaves the container to its caller.
            Role::Guest => RolePolicy {
                step_by_hand: Step::Apps,
                ..NOTHING
            },
        }
    }

    /// True for native init containers and for containers outside the pod's plan: the caller alone
    /// decides when they run and stop. The shim never delays stop requests for such a container. It
    /// derives the deadline of a termination from such requests only if there are no others.
    pub const fn is_left_to_caller(self) -> bool {
        matches!(self.start_condition, StartCondition::AtOnce)
    }

    /// True if the container is ready as soon as its program is executed. This is so for apps,
    /// native init containers, and guests (containers that usher leaves alone).
    pub const fn is_ready_at_once(self) -> bool {
        self.ready_when.is_none() && self.defer_turn().is_none()
    }

    /// True if the role is init and `code` is 0: after this exit, later stages may start. False for
    /// all other roles.
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

    /// The policy by which the shim restarts the container in place, if the annotation
    /// `restart.usher/NAME` sets no other policy. `Never` for all roles but sidecar. `policy` is
    /// the pod's restart policy, by which the caller restarts containers. `ends` is true while the
    /// pod terminates or may be about to: then only the shim restarts a sidecar.
    pub const fn restart(self, policy: RestartPolicy, ends: bool) -> RestartPolicy {
        match (self.is_helper, policy) {
            (true, _) if ends => RestartPolicy::Always,
            (true, RestartPolicy::OnFailure | RestartPolicy::Never) => RestartPolicy::Always,
            // The caller restarts the container.
            (true, RestartPolicy::Always) | (false, _) => RestartPolicy::Never,
        }
    }
}
