//! Conversions between the core's types and the messages: each type of the core has one counterpart
//! in the messages. `usher` makes sentences from the messages.

use crate as api;
use usher_core::lifecycle::{
    Cause, HookKind, Missing, Obstacle, Phase, ProbeKind, Remedy, SignalReason, StateSummary,
    Status, Step, Then,
};
use usher_core::plan::{ContainerKind, DeferTurn, Origin, Role};

impl From<Phase> for api::Phase {
    fn from(phase: Phase) -> api::Phase {
        match phase {
            Phase::Initializing => api::Phase::PHASE_INITIALIZING,
            Phase::Running => api::Phase::PHASE_RUNNING,
            Phase::Terminating(_) => api::Phase::PHASE_TERMINATING,
            Phase::Terminated => api::Phase::PHASE_TERMINATED,
        }
    }
}

impl From<Status> for api::Status {
    fn from(status: Status) -> api::Status {
        let (doing, (done, total)) = match status {
            Status::Init(done, total) => (api::Doing::DOING_INIT, (done, total)),
            Status::InitError => (api::Doing::DOING_INIT_ERROR, (0, 0)),
            Status::Sidecar(done, total) => (api::Doing::DOING_SIDECAR, (done, total)),
            Status::Running => (api::Doing::DOING_RUNNING, (0, 0)),
            Status::Completed => (api::Doing::DOING_COMPLETED, (0, 0)),
            Status::Error => (api::Doing::DOING_ERROR, (0, 0)),
            Status::Defer(done, total) => (api::Doing::DOING_DEFER, (done, total)),
            Status::Terminating => (api::Doing::DOING_TERMINATING, (0, 0)),
            Status::Stopped => (api::Doing::DOING_STOPPED, (0, 0)),
            Status::Failed => (api::Doing::DOING_FAILED, (0, 0)),
            Status::Terminated => (api::Doing::DOING_TERMINATED, (0, 0)),
        };
        api::Status {
            doing: doing.into(),
            done: number(done),
            total: number(total),
            ..api::Status::new()
        }
    }
}

impl From<Step> for api::StepName {
    fn from(step: Step) -> api::StepName {
        match step {
            Step::Hooks => api::StepName::STEP_HOOKS,
            Step::PreExit => api::StepName::STEP_PRE_EXIT,
            Step::Apps => api::StepName::STEP_APPS,
            Step::PostExit => api::StepName::STEP_POST_EXIT,
            Step::Sidecars => api::StepName::STEP_SIDECARS,
            Step::Over => api::StepName::STEP_OVER,
        }
    }
}

/// Converts a termination step; `None` if this version of usher does not know it.
pub fn step_of(told: api::StepName) -> Option<Step> {
    Some(match told {
        api::StepName::STEP_UNKNOWN => return None,
        api::StepName::STEP_HOOKS => Step::Hooks,
        api::StepName::STEP_PRE_EXIT => Step::PreExit,
        api::StepName::STEP_APPS => Step::Apps,
        api::StepName::STEP_POST_EXIT => Step::PostExit,
        api::StepName::STEP_SIDECARS => Step::Sidecars,
        api::StepName::STEP_OVER => Step::Over,
    })
}

/// Converts the reason for a termination. If a container caused the termination, also returns its
/// name and exit code.
pub fn cause(cause: &Cause) -> (api::Cause, Option<(&str, u32)>) {
    match cause {
        Cause::Inferred => (api::Cause::CAUSE_INFERRED, None),
        Cause::SandboxDied => (api::Cause::CAUSE_SANDBOX_DIED, None),
        Cause::Completed => (api::Cause::CAUSE_COMPLETED, None),
        Cause::EssentialFailed { name, code } => {
            (api::Cause::CAUSE_ESSENTIAL_FAILED, Some((name, *code)))
        }
        Cause::InitFailed { name, code } => (api::Cause::CAUSE_INIT_FAILED, Some((name, *code))),
        Cause::SidecarFailed { name, code } => {
            (api::Cause::CAUSE_SIDECAR_FAILED, Some((name, *code)))
        }
        Cause::Stopped => (api::Cause::CAUSE_STOPPED, None),
    }
}

/// Converts the reason for a termination back from the API; `None` if this version of usher does
/// not know the reason.
pub fn cause_of(cause: api::Cause, name: &str, code: u32) -> Option<Cause> {
    let name = name.to_owned();
    Some(match cause {
        api::Cause::CAUSE_UNKNOWN => return None,
        api::Cause::CAUSE_INFERRED => Cause::Inferred,
        api::Cause::CAUSE_SANDBOX_DIED => Cause::SandboxDied,
        api::Cause::CAUSE_COMPLETED => Cause::Completed,
        api::Cause::CAUSE_ESSENTIAL_FAILED => Cause::EssentialFailed { name, code },
        api::Cause::CAUSE_INIT_FAILED => Cause::InitFailed { name, code },
        api::Cause::CAUSE_SIDECAR_FAILED => Cause::SidecarFailed { name, code },
        api::Cause::CAUSE_STOPPED => Cause::Stopped,
    })
}

/// Converts a container's role to the role in the API. The API has a separate role for a sandbox
/// container, whatever role the shim's core gives that container.
pub fn role(kind: ContainerKind, role: Role) -> api::Role {
    match (kind, role) {
        (ContainerKind::Sandbox, _) => api::Role::ROLE_SANDBOX,
        (_, Role::Init) => api::Role::ROLE_INIT,
        (_, Role::NativeInit) => api::Role::ROLE_NATIVE_INIT,
        (_, Role::Sidecar) => api::Role::ROLE_SIDECAR,
        (_, Role::App) => api::Role::ROLE_APP,
        (_, Role::Defer(DeferTurn::PreExit)) => api::Role::ROLE_PRE_EXIT,
        (_, Role::Defer(DeferTurn::PostExit)) => api::Role::ROLE_POST_EXIT,
        (_, Role::Guest) => api::Role::ROLE_GUEST,
    }
}

impl From<Origin> for api::RoleOrigin {
    fn from(origin: Origin) -> api::RoleOrigin {
        match origin {
            Origin::List => api::RoleOrigin::ROLE_ORIGIN_LIST,
            Origin::Node => api::RoleOrigin::ROLE_ORIGIN_NODE,
            Origin::Default => api::RoleOrigin::ROLE_ORIGIN_DEFAULT,
        }
    }
}

impl From<StateSummary> for api::State {
    fn from(state: StateSummary) -> api::State {
        match state {
            StateSummary::Creating => api::State::STATE_CREATING,
            StateSummary::Created => api::State::STATE_CREATED,
            StateSummary::Starting => api::State::STATE_STARTING,
            StateSummary::Held => api::State::STATE_HELD,
            StateSummary::Running => api::State::STATE_RUNNING,
            StateSummary::Stopping => api::State::STATE_STOPPING,
            StateSummary::BackingOff => api::State::STATE_BACKING_OFF,
            StateSummary::Restarting => api::State::STATE_RESTARTING,
            StateSummary::Completed => api::State::STATE_COMPLETED,
            StateSummary::Stopped => api::State::STATE_STOPPED,
        }
    }
}

/// Converts a container state; `None` for a removed container, or if this version of usher does not
/// know the state.
pub fn state_of(told: api::State) -> Option<StateSummary> {
    Some(match told {
        api::State::STATE_UNKNOWN | api::State::STATE_GONE => return None,
        api::State::STATE_CREATING => StateSummary::Creating,
        api::State::STATE_CREATED => StateSummary::Created,
        api::State::STATE_STARTING => StateSummary::Starting,
        api::State::STATE_HELD => StateSummary::Held,
        api::State::STATE_RUNNING => StateSummary::Running,
        api::State::STATE_STOPPING => StateSummary::Stopping,
        api::State::STATE_BACKING_OFF => StateSummary::BackingOff,
        api::State::STATE_RESTARTING => StateSummary::Restarting,
        api::State::STATE_COMPLETED => StateSummary::Completed,
        api::State::STATE_STOPPED => StateSummary::Stopped,
    })
}

impl From<Then> for api::Then {
    fn from(then: Then) -> api::Then {
        match then {
            Then::StartFails => api::Then::THEN_START_FAILS,
            Then::Held => api::Then::THEN_HELD,
            Then::Ended => api::Then::THEN_ENDED,
            Then::ExecutedAnew => api::Then::THEN_EXECUTED_ANEW,
            Then::Stopped => api::Then::THEN_STOPPED,
            Then::StopSignal => api::Then::THEN_STOP_SIGNAL,
            Then::LastSignal => api::Then::THEN_LAST_SIGNAL,
            Then::Killed => api::Then::THEN_KILLED,
            Then::ItsTurn => api::Then::THEN_ITS_TURN,
            Then::LeftOut => api::Then::THEN_LEFT_OUT,
        }
    }
}

impl From<&Obstacle> for api::Obstacle {
    fn from(obstacle: &Obstacle) -> api::Obstacle {
        let mut message = api::Obstacle::new();
        let missing = match obstacle {
            Obstacle::Container {
                name,
                role: its,
                missing,
            } => {
                message.container = name.clone();
                message.role = Some(role(ContainerKind::Workload, *its).into());
                match missing {
                    Missing::NeverCreated => api::Missing::MISSING_NEVER_CREATED,
                    Missing::Ended(code) => {
                        message.exit_code = Some(*code);
                        api::Missing::MISSING_ENDED
                    }
                    Missing::NotExecuted(state) => {
                        message.state = Some(api::State::from(*state).into());
                        api::Missing::MISSING_NOT_EXECUTED
                    }
                    Missing::NotStarted => api::Missing::MISSING_NOT_STARTED,
                    Missing::NotDone => api::Missing::MISSING_NOT_DONE,
                    Missing::Started => api::Missing::MISSING_STARTED,
                }
            }
            Obstacle::Start => api::Missing::MISSING_START,
            Obstacle::BackOff => api::Missing::MISSING_BACK_OFF,
            Obstacle::StartupProbe {
                failures,
                threshold,
            } => {
                message.failures = Some(*failures);
                message.threshold = Some(*threshold);
                api::Missing::MISSING_STARTUP_PROBE
            }
            Obstacle::Exit => api::Missing::MISSING_EXIT,
            Obstacle::Work => api::Missing::MISSING_WORK,
            Obstacle::TurnToStop { step, defer } => {
                set_turn(&mut message, *step, defer.as_deref());
                api::Missing::MISSING_TURN_TO_STOP
            }
            Obstacle::TurnAtTheEnd { step, defer } => {
                if let Some(step) = step {
                    set_turn(&mut message, *step, defer.as_deref());
                }
                api::Missing::MISSING_TURN_AT_THE_END
            }
            Obstacle::TerminationWindow => api::Missing::MISSING_TERMINATION_WINDOW,
        };
        message.missing = missing.into();
        message
    }
}

/// Sets the termination step that is under way, and the defer container that runs in it.
fn set_turn(message: &mut api::Obstacle, step: Step, defer: Option<&str>) {
    if let (Some(name), Some(turn)) = (defer, step.defer_turn()) {
        let its = role(ContainerKind::Workload, Role::Defer(turn));
        message.role = Some(its.into());
        message.container = name.to_owned();
    }
    message.step = Some(api::StepName::from(step).into());
}

/// Returns the progress of the container that another container waits for. `None` if the obstacle
/// is something else, or if this version of usher does not know the progress.
pub fn missing_of(told: &api::Obstacle) -> Option<Missing> {
    let state = told.state.unwrap_or_default().enum_value_or_default();
    Some(match told.missing.enum_value_or_default() {
        api::Missing::MISSING_NEVER_CREATED => Missing::NeverCreated,
        api::Missing::MISSING_ENDED => Missing::Ended(told.exit_code.unwrap_or_default()),
        api::Missing::MISSING_NOT_EXECUTED => Missing::NotExecuted(state_of(state)?),
        api::Missing::MISSING_NOT_STARTED => Missing::NotStarted,
        api::Missing::MISSING_NOT_DONE => Missing::NotDone,
        api::Missing::MISSING_STARTED => Missing::Started,
        api::Missing::MISSING_UNKNOWN
        | api::Missing::MISSING_START
        | api::Missing::MISSING_BACK_OFF
        | api::Missing::MISSING_STARTUP_PROBE
        | api::Missing::MISSING_EXIT
        | api::Missing::MISSING_TURN_TO_STOP
        | api::Missing::MISSING_TURN_AT_THE_END
        | api::Missing::MISSING_TERMINATION_WINDOW
        | api::Missing::MISSING_WORK => return None,
    })
}

impl From<&Remedy> for api::Remedy {
    fn from(remedy: &Remedy) -> api::Remedy {
        let (annotation, list) = remedy.annotation();
        let (helps, container) = match remedy {
            Remedy::NativeInit { container, .. } => {
                (api::RemedyFor::REMEDY_FOR_NATIVE_INIT, container.clone())
            }
            Remedy::Guest { container, .. } => {
                (api::RemedyFor::REMEDY_FOR_GUEST, container.clone())
            }
            Remedy::Group { container } => (api::RemedyFor::REMEDY_FOR_GROUP, container.clone()),
            Remedy::Complete { .. } => (api::RemedyFor::REMEDY_FOR_COMPLETE, String::new()),
        };
        api::Remedy {
            for_: helps.into(),
            container,
            annotation,
            value: list.join(NAMES),
            ..api::Remedy::new()
        }
    }
}

/// Separator of names in an annotation's value.
const NAMES: &str = ", ";

/// Converts a remedy; `None` if this version of usher does not know it.
pub fn remedy_of(told: &api::Remedy) -> Option<Remedy> {
    let container = told.container.clone();
    let list = told.value.split(NAMES).map(str::to_owned).collect();
    Some(match told.for_.enum_value_or_default() {
        api::RemedyFor::REMEDY_FOR_NATIVE_INIT => Remedy::NativeInit { container, list },
        api::RemedyFor::REMEDY_FOR_GUEST => Remedy::Guest { container, list },
        api::RemedyFor::REMEDY_FOR_COMPLETE => Remedy::Complete { list },
        api::RemedyFor::REMEDY_FOR_GROUP => Remedy::Group { container },
        api::RemedyFor::REMEDY_FOR_UNKNOWN => return None,
    })
}

impl From<SignalReason> for api::Why {
    fn from(why: SignalReason) -> api::Why {
        match why {
            SignalReason::Other | SignalReason::PassedOn => api::Why::WHY_CALLER,
            SignalReason::Alone => api::Why::WHY_ALONE,
            SignalReason::Turn => api::Why::WHY_TURN,
            SignalReason::TimeShort => api::Why::WHY_TIME_SHORT,
            SignalReason::GraceOver => api::Why::WHY_GRACE_OVER,
            SignalReason::Held => api::Why::WHY_HELD,
            SignalReason::ProbeFailed(ProbeKind::Startup) => api::Why::WHY_STARTUP_PROBE_FAILED,
            SignalReason::ProbeFailed(ProbeKind::Liveness) => api::Why::WHY_LIVENESS_PROBE_FAILED,
            SignalReason::PostStartFailed => api::Why::WHY_POST_START_FAILED,
            SignalReason::StartsAnew => api::Why::WHY_STARTS_ANEW,
        }
    }
}

impl From<ProbeKind> for api::Probe {
    fn from(probe: ProbeKind) -> api::Probe {
        match probe {
            ProbeKind::Startup => api::Probe::PROBE_STARTUP,
            ProbeKind::Liveness => api::Probe::PROBE_LIVENESS,
        }
    }
}

impl From<HookKind> for api::Hook {
    fn from(hook: HookKind) -> api::Hook {
        match hook {
            HookKind::Termination => api::Hook::HOOK_TERMINATION,
            HookKind::PreStop => api::Hook::HOOK_PRE_STOP,
        }
    }
}

/// Converts a hook to the core's type. `None` for a postStart handler, which has no `HookKind`, or
/// if this version of usher does not know the hook.
pub fn hook_of(told: api::Hook) -> Option<HookKind> {
    match told {
        api::Hook::HOOK_TERMINATION => Some(HookKind::Termination),
        api::Hook::HOOK_PRE_STOP => Some(HookKind::PreStop),
        api::Hook::HOOK_UNKNOWN | api::Hook::HOOK_POST_START => None,
    }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use protobuf::Enum;

    use super::*;

    #[test]
    fn every_state_step_and_hook_survives_a_round_trip() {
        for told in api::State::VALUES {
            let again = state_of(*told).map(api::State::from);
            match told {
                api::State::STATE_UNKNOWN | api::State::STATE_GONE => assert_eq!(again, None),
                _ => assert_eq!(again, Some(*told)),
            }
        }
        for told in api::StepName::VALUES {
            let known = Some(*told).filter(|told| told.value() != 0);
            assert_eq!(step_of(*told).map(api::StepName::from), known);
        }
        for hook in [HookKind::Termination, HookKind::PreStop] {
            assert_eq!(hook_of(hook.into()), Some(hook));
        }
    }

    #[test]
    fn an_obstacle_of_a_container_survives_a_round_trip() {
        for missing in [
            Missing::NeverCreated,
            Missing::Ended(3),
            Missing::NotExecuted(StateSummary::Held),
            Missing::NotStarted,
            Missing::NotDone,
            Missing::Started,
        ] {
            let told = api::Obstacle::from(&Obstacle::Container {
                name: "proxy".to_owned(),
                role: Role::Sidecar,
                missing,
            });
            assert_eq!(missing_of(&told), Some(missing));
        }
        assert_eq!(missing_of(&api::Obstacle::from(&Obstacle::Start)), None);
    }

    #[test]
    fn every_cause_survives_a_round_trip() {
        for told in api::Cause::VALUES {
            let understood = cause_of(*told, "web", 3);
            let again = understood.as_ref().map(cause);
            match told {
                api::Cause::CAUSE_UNKNOWN => assert_eq!(understood, None),
                _ => assert_eq!(again.map(|(again, _)| again), Some(*told)),
            }
            let whose = again.and_then(|(_, whose)| whose);
            assert!(matches!(whose, None | Some(("web", 3))), "{whose:?}");
        }
    }
}
