//! Log messages of the core.

use std::fmt;
use std::time::Duration;

use crate::plan::Role;

use super::action::{ActionError, Cause, ContainerId, HookKind, ProbeKind, Step};

/// Messages for the log: decisions and events, with their reasons.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Report {
    /// Start was answered before the container's turn.
    Held {
        name: String,
        waits_for: Vec<String>,
    },
    /// The program is executed: the container's turn has come, or a person has released it.
    Released {
        name: String,
        role: Role,
        waited: Duration,
    },
    /// A sidecar is started: containers that waited for it may go on.
    Started { name: String, took: Duration },
    /// An attempt of a probe failed.
    ProbeFailed {
        name: String,
        probe: ProbeKind,
        failures: u32,
        threshold: u32,
        reason: ActionError,
    },
    /// The Exec taken for the postStart handler of a container has failed.
    PostStartFailed { name: String, reason: String },
    /// The postStart handler was run again after a restart in place.
    PostStarted {
        name: String,
        outcome: Result<(), ActionError>,
    },
    /// The probes of the pod would use too much CPU time. Attempts for this container, and for
    /// others, are made less often than their periods say.
    Stretched {
        name: String,
        period: Duration,
        to: Duration,
    },
    /// A sidecar has exited and is restarted in place, or a defer container has failed and is run
    /// again. `wait` is `None` if the caller has asked the container to stop: then it is restarted
    /// only if the pod terminates.
    Restarts {
        name: String,
        code: u32,
        wait: Option<Duration>,
    },
    /// A restart in place has failed.
    NotRestarted { name: String, reason: ActionError },
    /// The pod terminates within `grace`.
    Terminating { because: Cause, grace: Duration },
    /// The pod does not terminate: the caller has created the container `disproved_by`. The shim
    /// had inferred the termination by mistake.
    NotTerminating { disproved_by: String },
    /// The caller has created a container after the end of the pod, or restarts the whole pod. With
    /// `from_the_start` the results of the last run are forgotten, as in a new sandbox. Otherwise
    /// containers that are done stay done.
    StartsOver { with: String, from_the_start: bool },
    /// The sandbox is killed so that its caller starts the whole pod again.
    SandboxKilled,
    /// An internal error: a container's state does not allow a transition. Nothing has changed.
    InvalidTransition { name: String, what: String },
    /// An event for a removed container.
    TooLate { id: ContainerId },
    /// A person has released a container before its turn (`usher release`).
    Overridden {
        name: String,
        waited_for: Vec<String>,
    },
    /// A step of the termination is over, with the time used by each container.
    StepOver {
        step: Step,
        took: Duration,
        used: Vec<(String, Duration)>,
    },
    /// A hook has succeeded or failed.
    HookOver {
        name: String,
        kind: HookKind,
        outcome: Result<(), ActionError>,
    },
    /// A defer container has exited with `code`; the code reported to the caller may differ.
    DeferOver {
        name: String,
        code: u32,
        took: Duration,
    },
    /// A defer container is not run.
    DeferSkipped { name: String },
    /// The running defer container may go on for the duration `by` after the end of the grace
    /// period.
    Extended { name: String, by: Duration },
    /// The grace period is over, and containers are still alive.
    GraceOver { alive: Vec<String> },
    /// All known apps are done, and unlisted apps may still be created.
    Late { wait: Duration, remedy: String },
    /// The run is over, and these containers keep the pod alive.
    KeptAlive { by: Vec<String> },
    /// A container has other annotations than its pod's sandbox.
    OtherPlan { name: String },
    /// A rule repeats without effect, which is a bug, and is suspended for the pod or one of its
    /// containers.
    RuleSuspended {
        rule: &'static str,
        name: Option<String>,
        pause: Duration,
    },
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Report::Held { name, waits_for } => {
                write!(f, "{name} is held: it waits for {}", waits_for.join(", "))
            }
            Report::Released { name, role, waited } => {
                write!(f, "{role} {name} is released after {waited:?}")
            }
            Report::Started { name, took } => write!(f, "sidecar {name} is started after {took:?}"),
            Report::ProbeFailed {
                name,
                probe,
                failures,
                threshold,
                reason,
            } => {
                write!(
                    f,
                    "{probe} probe of {name} failed {failures} of {threshold} times: {reason}"
                )
            }
            Report::PostStartFailed { name, reason } => write!(
                f,
                "postStart of {name} failed: {reason}; {name} counts as started only if kubelet does not stop it"
            ),
            Report::PostStarted {
                name,
                outcome: Ok(()),
            } => write!(f, "postStart of {name} succeeded after its restart"),
            Report::PostStarted {
                name,
                outcome: Err(reason),
            } => write!(f, "postStart of {name} failed after its restart: {reason}"),
            Report::Stretched { name, period, to } => {
                write!(
                    f,
                    "the pod's probes need more CPU time than they may use: {name} is probed about \
                     every {to:?}, not every {period:?}"
                )
            }
            Report::Restarts { name, code, wait } => match wait {
                Some(wait) => write!(
                    f,
                    "{name} ended with {code} and is restarted in place in {wait:?}"
                ),
                None => write!(
                    f,
                    "{name} ended with {code} after a stop request and is restarted in place if \
                     the pod terminates"
                ),
            },
            Report::NotRestarted { name, reason } => {
                write!(f, "{name} could not be restarted in place: {reason}")
            }
            Report::Terminating { because, grace } => {
                write!(f, "the pod terminates within {grace:?}: {because}")
            }
            Report::NotTerminating { disproved_by } => {
                write!(
                    f,
                    "the pod does not terminate: {disproved_by} is being created"
                )
            }
            Report::StartsOver {
                with,
                from_the_start: true,
            } => write!(f, "the pod starts over: {with} was created"),
            Report::StartsOver { with, .. } => {
                write!(f, "the pod goes on: {with} was created")
            }
            Report::SandboxKilled => {
                f.write_str("the sandbox is killed so that its caller starts the whole pod again")
            }
            Report::InvalidTransition { name, what } => {
                write!(f, "internal error: {name}: {what}")
            }
            Report::TooLate { id } => write!(f, "ignoring event for removed container {id}"),
            Report::Overridden { name, waited_for } => {
                write!(
                    f,
                    "usher release releases {name}, which waits for {}",
                    waited_for.join(", ")
                )
            }
            Report::StepOver { step, took, used } => {
                write!(f, "{step} over after {took:?}")?;
                let mut mark = ": ";
                for (name, time) in used {
                    write!(f, "{mark}{name} {time:?}")?;
                    mark = ", ";
                }
                Ok(())
            }
            Report::HookOver {
                name,
                kind,
                outcome: Ok(()),
            } => write!(f, "{kind} of {name} is over"),
            Report::HookOver {
                name,
                kind,
                outcome: Err(reason),
            } => write!(f, "{kind} of {name} failed: {reason}"),
            Report::DeferOver { name, code, took } => {
                write!(f, "defer {name} ended with {code} after {took:?}")
            }
            Report::DeferSkipped { name } => write!(f, "defer {name} is not run"),
            Report::Extended { name, by } => write!(
                f,
                "defer {name} still runs and may go on for {by:?} beyond the grace period"
            ),
            Report::GraceOver { alive } => {
                write!(
                    f,
                    "the grace period is over, still alive: {}",
                    alive.join(", ")
                )
            }
            Report::Late { wait, remedy } => write!(
                f,
                "all apps have ended; the run is complete in {wait:?} unless another container is created; \
                 {remedy}"
            ),
            Report::KeptAlive { by } => write!(
                f,
                "the run is over, but the pod cannot end by itself: {} keeps it alive, and usher does not \
                 stop it; list containers that do not exit by themselves in usher/sidecars",
                by.join(", ")
            ),
            Report::OtherPlan { name } => write!(
                f,
                "{name} has other usher annotations than its sandbox; those of the sandbox apply"
            ),
            Report::RuleSuspended { rule, name, pause } => write!(
                f,
                "internal error: the rule {rule:?} repeats without effect for {}; it is suspended for {pause:?}",
                name.as_deref().unwrap_or("the pod")
            ),
        }
    }
}
