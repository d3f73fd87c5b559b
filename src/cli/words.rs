//! Conversion of values in the shims' answers to words for scripts and sentences for people.
//!
//! A value that this version does not know comes from a newer shim; its word is `unknown`.

use protobuf::reflect::EnumDescriptor;
use protobuf::{Enum, EnumFull, EnumOrUnknown};

use usher_api as api;
use usher_core::plan::Signal;

/// Suffix of the name of value 0 in every enum. All names of an enum begin with the enum's prefix:
/// `PHASE_UNKNOWN` is the prefix `PHASE_` and this suffix.
const UNKNOWN: &str = "UNKNOWN";

/// The word for a value, such as `backing-off`.
pub(super) fn word<E: EnumFull>(value: EnumOrUnknown<E>) -> String {
    word_in(&E::enum_descriptor(), value.value())
}

/// The word for the enum value with this number.
pub(super) fn word_in(all: &EnumDescriptor, number: i32) -> String {
    let (unknown, value) = (all.default_value(), all.value_by_number_or_default(number));
    let prefix = unknown.name().trim_end_matches(UNKNOWN);
    let name = value.name();
    let name = name.strip_prefix(prefix).unwrap_or(name);
    let word = name.to_ascii_lowercase().replace('_', "-");
    match *all == api::Phase::enum_descriptor() {
        true => capital(&word),
        false => word,
    }
}

/// The number of the enum value with this word. For an unknown word, the number of the enum's
/// unknown value.
pub(super) fn number_in(all: &EnumDescriptor, word: &str) -> i32 {
    let mut numbers = all.values().map(|value| value.value());
    let number = numbers.find(|number| word_in(all, *number) == word);
    number.unwrap_or_else(|| all.default_value().value())
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

/// The pod's status in the format of `kubectl get pods`: `Init:1/2`, `Running`, `Completed`.
pub(super) fn status(status: &api::Status) -> String {
    let word = capital(&word(status.doing));
    match status.doing.enum_value_or_default() {
        api::Doing::DOING_INIT | api::Doing::DOING_SIDECAR | api::Doing::DOING_DEFER => {
            format!("{word}:{}/{}", status.done, status.total)
        }
        api::Doing::DOING_INIT_ERROR => "Init:Error".to_owned(),
        _ => word,
    }
}

/// Parses the text of [`status`].
pub(super) fn status_of(said: &str) -> api::Status {
    let counts = said.split_once(':').and_then(|(_, counts)| {
        let (done, total) = counts.split_once('/')?;
        Some((done.parse().ok()?, total.parse().ok()?))
    });
    let (done, total) = counts.unwrap_or_default();
    let all = api::Doing::VALUES.iter().map(|doing| api::Status {
        doing: (*doing).into(),
        done,
        total,
        ..api::Status::new()
    });
    all.into_iter()
        .find(|one| status(one) == said)
        .unwrap_or_default()
}

pub(super) fn signal(number: u32) -> String {
    let signal = i32::try_from(number).ok().and_then(Signal::new);
    signal.map_or_else(|| number.to_string(), |signal| signal.to_string())
}

/// True if the status is an error.
pub(super) fn is_bad(status: &api::Status) -> bool {
    matches!(
        status.doing.enum_value_or_default(),
        api::Doing::DOING_INIT_ERROR | api::Doing::DOING_ERROR | api::Doing::DOING_FAILED
    )
}

/// True for roles that run during the pod's termination.
pub(super) fn is_defer(role: EnumOrUnknown<api::Role>) -> bool {
    matches!(
        role.enum_value_or_default(),
        api::Role::ROLE_PRE_EXIT | api::Role::ROLE_POST_EXIT
    )
}

/// Describes the thing that a container waits for.
pub(super) fn obstacle(obstacle: &api::Obstacle) -> String {
    let missing = missing(obstacle);
    match obstacle.container.as_str() {
        "" => missing,
        name => {
            let role = obstacle.role.unwrap_or_default();
            format!("{} {name} ({missing})", word(role))
        }
    }
}

fn missing(obstacle: &api::Obstacle) -> String {
    use api::Missing::*;
    if let Some(missing) = api::missing_of(obstacle) {
        return missing.to_string();
    }
    let failures = obstacle.failures.unwrap_or_default();
    let sentence = match obstacle.missing.enum_value_or_default() {
        MISSING_START => "the caller's Start",
        MISSING_BACK_OFF => "the back-off before its restart in place",
        MISSING_STARTUP_PROBE if failures == 0 => "its startup probe, which has not succeeded yet",
        MISSING_STARTUP_PROBE => {
            let threshold = obstacle.threshold.unwrap_or_default();
            return format!("its startup probe, which has failed {failures} of {threshold} times");
        }
        MISSING_EXIT => "its exit after its stop signal",
        MISSING_TURN_TO_STOP => {
            let step = step(obstacle.step.unwrap_or_default());
            return format!("its turn to stop; it is now the turn of the {step}");
        }
        MISSING_TURN_AT_THE_END => match obstacle.step {
            Some(step) => {
                return format!(
                    "its turn to run; it is now the turn of the {}",
                    self::step(step)
                );
            }
            None => "its turn during the pod's termination",
        },
        MISSING_TERMINATION_WINDOW => {
            "the end of the termination window, which shows whether the pod ends"
        }
        MISSING_WORK => "its program to finish",
        MISSING_NOT_EXECUTED => return state(obstacle.state.unwrap_or_default()),
        MISSING_UNKNOWN
        | MISSING_NEVER_CREATED
        | MISSING_ENDED
        | MISSING_NOT_STARTED
        | MISSING_NOT_DONE
        | MISSING_STARTED => "something that this version of usher does not know",
    };
    sentence.to_owned()
}

/// A sentence about an annotation that the pod may lack, and the effect of adding it.
pub(super) fn remedy(remedy: &api::Remedy) -> String {
    let (annotation, value) = (&remedy.annotation, &remedy.value);
    api::remedy_of(remedy).map_or_else(
        || format!("perhaps the pod needs the annotation {annotation}: {value}"),
        |remedy| remedy.to_string(),
    )
}

/// Sentences about annotations that would help several waiting containers. Each annotation has one
/// sentence.
pub(super) fn remedies(all: &[&api::Remedy]) -> Vec<String> {
    use api::RemedyFor::*;
    let of = |helps: api::RemedyFor| {
        let of = all
            .iter()
            .filter(move |it| it.for_.enum_value() == Ok(helps));
        of.map(|it| it.container.as_str()).collect::<Vec<_>>()
    };
    let native = of(REMEDY_FOR_NATIVE_INIT).join(", ");
    let native = (!native.is_empty()).then(|| {
        format!(
            "the annotation usher/native-init lets those of {native} run at once that are the pod's own \
             initContainers, if it names them"
        )
    });
    let guest = (!of(REMEDY_FOR_GUEST).is_empty()).then(|| {
        "the annotation usher/apps lets containers that were added to the pod (kubectl debug) run at once, \
         if it names only the pod's apps"
            .to_owned()
    });
    native.into_iter().chain(guest).collect()
}

/// The words for a container state within a sentence, such as "waiting to be restarted".
pub(super) fn state(state: EnumOrUnknown<api::State>) -> String {
    let known = api::state_of(state.enum_value_or_default());
    known.map_or_else(|| word(state), |state| state.to_string())
}

/// The effect when a wait reaches its time limit, worded as the end of a sentence like "in 5s at
/// the latest …".
pub(super) fn then(then: EnumOrUnknown<api::Then>) -> &'static str {
    match then.enum_value_or_default() {
        api::Then::THEN_START_FAILS => "its Start fails",
        api::Then::THEN_HELD => "its Start succeeds, but its program stays held",
        api::Then::THEN_ENDED => "it ends with exit code 1 (usher/startup-timeout)",
        api::Then::THEN_EXECUTED_ANEW => "its program is executed again",
        api::Then::THEN_STOPPED => "it is stopped, since its startup probe has failed too often",
        api::Then::THEN_STOP_SIGNAL => "it gets its stop signal",
        api::Then::THEN_LAST_SIGNAL => "it gets a last signal, and SIGKILL within two seconds",
        api::Then::THEN_KILLED => "it is killed",
        api::Then::THEN_ITS_TURN => "its program is executed",
        api::Then::THEN_LEFT_OUT => {
            "its program is never executed, since too little of the grace period is left"
        }
        api::Then::THEN_UNKNOWN => "something happens that this version of usher does not know",
    }
}

fn step(step: EnumOrUnknown<api::StepName>) -> String {
    let known = api::step_of(step.enum_value_or_default());
    known.map_or_else(|| word(step), |step| step.to_string())
}

/// The exit code, and the code reported to containerd if it is different.
pub(super) fn exit(container: &api::Container) -> String {
    match (container.exit_code, container.reported_code) {
        (None, None) => "-".to_owned(),
        (Some(code), Some(reported)) if code != reported => {
            format!("{code}, reported as {reported}")
        }
        (Some(code), _) | (None, Some(code)) => code.to_string(),
    }
}

/// The version of a pod's shim, or `unknown`.
pub(super) fn shim_version(pod: &api::Pod) -> &str {
    match pod.shim_version.as_str() {
        "" => "unknown",
        version => version,
    }
}

/// The reason why a pod terminates.
pub(super) fn because(cause: EnumOrUnknown<api::Cause>, failed: Option<&str>, code: u32) -> String {
    let cause = api::cause_of(
        cause.enum_value_or_default(),
        failed.unwrap_or_default(),
        code,
    );
    cause.map_or_else(|| "unknown reason".to_owned(), |cause| cause.to_string())
}

/// The reason for a signal.
pub(super) fn why(why: EnumOrUnknown<api::Why>) -> &'static str {
    match why.enum_value_or_default() {
        api::Why::WHY_CALLER => "requested by its caller",
        api::Why::WHY_ALONE => "its caller stops only this container",
        api::Why::WHY_TURN => "its turn has come",
        api::Why::WHY_TIME_SHORT => "SIGKILL follows soon",
        api::Why::WHY_GRACE_OVER => "the grace period was over",
        api::Why::WHY_HELD => "its program was not executed",
        api::Why::WHY_STARTUP_PROBE_FAILED => "its startup probe has failed",
        api::Why::WHY_LIVENESS_PROBE_FAILED => "its liveness probe has failed",
        api::Why::WHY_POST_START_FAILED => "its postStart handler has failed",
        api::Why::WHY_STARTS_ANEW => "its pod starts again",
        api::Why::WHY_UNKNOWN => "unknown reason",
    }
}

pub(super) fn hook(hook: EnumOrUnknown<api::Hook>) -> String {
    let told = hook.enum_value_or_default();
    match (api::hook_of(told), told) {
        (Some(hook), _) => hook.to_string(),
        (None, api::Hook::HOOK_POST_START) => "postStart handler".to_owned(),
        (None, _) => "unknown handler".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use usher_core::lifecycle::Step;

    /// The words of an enum's values, without value 0 (`UNKNOWN`).
    fn words<E: EnumFull>() -> Vec<String> {
        let known = E::VALUES.iter().filter(|value| value.value() != 0);
        known
            .map(|value| word(EnumOrUnknown::new(*value)))
            .collect()
    }

    #[test]
    fn the_words_for_scripts_are_stable() {
        let phases = ["Initializing", "Running", "Terminating", "Terminated"];
        assert_eq!(words::<api::Phase>(), phases);
        let roles = [
            "init",
            "native-init",
            "sidecar",
            "app",
            "pre-exit",
            "post-exit",
            "guest",
            "sandbox",
        ];
        assert_eq!(words::<api::Role>(), roles);
        assert_eq!(words::<api::RoleOrigin>(), ["list", "node", "default"]);
        let states = [
            "creating",
            "created",
            "starting",
            "held",
            "running",
            "stopping",
            "backing-off",
            "restarting",
            "completed",
            "stopped",
            "gone",
        ];
        assert_eq!(words::<api::State>(), states);
        let causes = [
            "inferred",
            "sandbox-died",
            "completed",
            "essential-failed",
            "init-failed",
            "sidecar-failed",
            "stopped",
        ];
        assert_eq!(words::<api::Cause>(), causes);
        let steps = ["hooks", "pre-exit", "apps", "post-exit", "sidecars", "over"];
        assert_eq!(words::<api::StepName>(), steps);
        let told = (0..).map_while(api::StepName::from_i32);
        assert!(told.filter_map(api::step_of).map(Step::word).eq(steps));
        for word in ["caller", "grace-over", "held", "liveness-probe-failed"] {
            assert!(words::<api::Why>().contains(&word.to_owned()), "{word}");
        }
        for word in [
            "oom-killed",
            "backing-off",
            "not-terminating",
            "starts-over",
        ] {
            assert!(words::<api::What>().contains(&word.to_owned()), "{word}");
        }
    }

    #[test]
    fn every_value_has_the_prefix_of_its_enum() {
        let file = api::Phase::enum_descriptor();
        let file = file.full_name();
        assert_eq!(file, "usher.v1.Phase");
        for all in api::file_descriptor().enums() {
            let zero = all.default_value();
            let prefix = zero.name().strip_suffix(UNKNOWN).unwrap();
            assert!(prefix.ends_with('_'), "{prefix}");
            for value in all.values() {
                assert!(value.name().starts_with(prefix), "{}", value.name());
            }
        }
    }

    #[test]
    fn values_of_a_newer_shim_are_unknown_and_fit_into_sentences() {
        assert_eq!(word(EnumOrUnknown::<api::State>::from_i32(99)), "unknown");
        assert_eq!(word(EnumOrUnknown::<api::Phase>::from_i32(-1)), "Unknown");
        let status = api::Status {
            doing: EnumOrUnknown::from_i32(99),
            ..api::Status::new()
        };
        assert_eq!(super::status(&status), "Unknown");
        assert!(!is_bad(&status));
        let obstacle = api::Obstacle {
            container: "web".to_owned(),
            role: Some(EnumOrUnknown::from_i32(99)),
            missing: EnumOrUnknown::from_i32(99),
            ..api::Obstacle::new()
        };
        assert_eq!(
            super::obstacle(&obstacle),
            "unknown web (something that this version of usher does not know)"
        );
        let because = because(EnumOrUnknown::from_i32(99), Some("web"), 1);
        assert_eq!(because, "unknown reason");
        assert!(!then(EnumOrUnknown::from_i32(99)).is_empty());
        assert!(!why(EnumOrUnknown::from_i32(99)).is_empty());
        assert_eq!(hook(EnumOrUnknown::from_i32(99)), "unknown handler");
        let told = api::Remedy {
            for_: EnumOrUnknown::from_i32(99),
            annotation: "usher/new".to_owned(),
            value: "a, b".to_owned(),
            ..api::Remedy::new()
        };
        let expected = "perhaps the pod needs the annotation usher/new: a, b";
        assert_eq!(remedy(&told), expected);
    }

    #[test]
    fn obstacles_have_sentences() {
        let of = |missing: api::Missing| api::Obstacle {
            missing: missing.into(),
            ..api::Obstacle::new()
        };
        let sidecar = |obstacle| api::Obstacle {
            container: "proxy".to_owned(),
            role: Some(api::Role::ROLE_SIDECAR.into()),
            ..obstacle
        };
        let held = api::Obstacle {
            state: Some(api::State::STATE_HELD.into()),
            ..of(api::Missing::MISSING_NOT_EXECUTED)
        };
        let ended = api::Obstacle {
            exit_code: Some(3),
            ..of(api::Missing::MISSING_ENDED)
        };
        let probed = api::Obstacle {
            failures: Some(2),
            threshold: Some(30),
            ..of(api::Missing::MISSING_STARTUP_PROBE)
        };
        let turn = api::Obstacle {
            step: Some(api::StepName::STEP_PRE_EXIT.into()),
            ..of(api::Missing::MISSING_TURN_TO_STOP)
        };
        let to_run = api::Obstacle {
            step: Some(api::StepName::STEP_APPS.into()),
            ..of(api::Missing::MISSING_TURN_AT_THE_END)
        };
        for (told, sentence) in [
            (to_run, "its turn to run; it is now the turn of the apps"),
            (
                sidecar(of(api::Missing::MISSING_NEVER_CREATED)),
                "sidecar proxy (never created)",
            ),
            (sidecar(held), "sidecar proxy (held)"),
            (sidecar(ended), "sidecar proxy (ended with 3)"),
            (probed, "its startup probe, which has failed 2 of 30 times"),
            (
                turn,
                "its turn to stop; it is now the turn of the pre-exit containers",
            ),
        ] {
            assert_eq!(obstacle(&told), sentence);
        }
    }

    #[test]
    fn a_cause_names_its_container() {
        let because = |cause: api::Cause| because(cause.into(), Some("proxy"), 3);
        assert_eq!(
            because(api::Cause::CAUSE_SIDECAR_FAILED),
            "its sidecar proxy ended with 3 before it was started, and is never restarted"
        );
        assert_eq!(
            because(api::Cause::CAUSE_STOPPED),
            "usher stop requested it"
        );
    }

    #[test]
    fn signals_have_names() {
        assert_eq!(signal(28), "SIGWINCH");
        assert_eq!(signal(37), "SIGRTMIN+3");
        assert_eq!(signal(0), "0");
        assert_eq!(signal(u32::MAX), u32::MAX.to_string());
    }
}
