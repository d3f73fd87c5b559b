//! What the core wants done, and what it refuses.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::plan::{Hook, Role, Signal};

use super::life::State;

/// The id of a container as containerd knows it; cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerId(Arc<str>);

impl ContainerId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for ContainerId {
    fn from(id: &str) -> ContainerId {
        ContainerId(Arc::from(id))
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A call of the caller that is to be answered, numbered by the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// One thing for the driver to do. Actions are to be carried out in the order they are polled;
/// none of them may make the driver wait before it polls the next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Let the parked program of a container be executed, and say so with
    /// [`handle_released`](super::Pod::handle_released).
    Release { id: ContainerId },
    /// Answer a Start. Where it is `Ok`, TaskStart is published first: the program runs, or the
    /// container is held and the caller's bookkeeping needs to see it running.
    AnswerStart {
        id: ContainerId,
        request: RequestId,
        answer: Result<(), Refusal>,
    },
    /// Answer a Kill whose signal is not delivered now.
    AnswerKill {
        request: RequestId,
        answer: Result<(), Refusal>,
    },
    /// Deliver a signal to the container's init process, or to `all` of its processes. Where the
    /// signal belongs to a request, that is answered with what became of it.
    Signal {
        id: ContainerId,
        signal: Signal,
        all: bool,
        request: Option<RequestId>,
        why: Why,
    },
    /// Execute the program of a container anew whose process has ended, and say so with
    /// [`handle_restarted`](super::Pod::handle_restarted): with the same streams, and with nothing
    /// left of what ran before.
    Restart { id: ContainerId },
    /// End what is under way to execute a container's program anew: it is to be killed. That its
    /// restart has come to nothing is then said with [`handle_restarted`](super::Pod::handle_restarted).
    Halt { id: ContainerId },
    /// Execute once more what was taken for the container's postStart handler, in this `life` of it,
    /// and say with [`handle_post_started`](super::Pod::handle_post_started) when it is over.
    PostStart { id: ContainerId, life: u64 },
    /// Make one attempt of the container's [`probe`](super::Pod::probe), bounded by its timeout, and
    /// report it with [`handle_probed`](super::Pod::handle_probed): as that of this `life`, for the
    /// container may have been restarted by then.
    Probe { id: ContainerId, life: u64 },
    /// Run a hook in the container or against it, bounded by `limit`, and say with
    /// [`handle_hooked`](super::Pod::handle_hooked) when it is over.
    Hook {
        id: ContainerId,
        kind: HookKind,
        hook: Hook,
        limit: Duration,
    },
    /// Publish the container's exit, with this code and the time it really exited.
    ReportExit { id: ContainerId, code: u32 },
    /// Write a line to the container's stderr; the reason why it was ended (`last_words`) goes to
    /// its termination message as well.
    Tell {
        id: ContainerId,
        message: String,
        last_words: bool,
    },
    /// A decision worth a line in the log.
    Report(Report),
}

/// Why a signal is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Why {
    /// The caller has sent it, and it is passed on as it came: it is not meant to stop the container.
    Other,
    /// The caller has asked for it, and it is passed on as it came.
    PassedOn,
    /// The caller has asked for it, and it is a stop of this container alone.
    Alone,
    /// It is the container's turn in the termination of its pod.
    Turn,
    /// The grace period ends, or its caller kills it before its turn: SIGKILL follows in a moment.
    TimeShort,
    /// Its grace period is over, its own or that of its pod: SIGKILL.
    GraceOver,
    /// Its program is not to be executed any more: its parked process is killed.
    Held,
    /// A probe of it has failed too often.
    ProbeFailed(ProbeKind),
    /// Its postStart handler has failed when it was restarted in place.
    PostStartFailed,
    /// Its pod is to start again from the beginning, in another sandbox.
    StartsAnew,
}

impl Why {
    /// Whether the signal is meant to stop the container.
    pub fn is_stop(self) -> bool {
        self != Why::Other
    }

    /// Whether the container has failed: then it was not told to go.
    pub fn is_failure(self) -> bool {
        matches!(self, Why::ProbeFailed(_) | Why::PostStartFailed)
    }
}

/// Which probe of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProbeKind {
    /// Tells that it is started.
    Startup,
    /// Tells that it still does its work.
    Liveness,
}

impl fmt::Display for ProbeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            ProbeKind::Startup => "startup",
            ProbeKind::Liveness => "liveness",
        })
    }
}

/// Which hook of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HookKind {
    /// What its author wants done first when the pod terminates.
    Termination,
    /// Its preStop handler, where its caller does not run it.
    PreStop,
}

/// Decisions for the log, so that somebody who reads it at night knows why.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Report {
    /// Start was answered though the container's turn has not come.
    Held {
        name: String,
        waits_for: Vec<String>,
    },
    /// The container's turn has come.
    Released {
        name: String,
        role: Role,
        waited: Duration,
    },
    /// A sidecar is started: what waited for it may go on.
    Started { name: String, took: Duration },
    /// An attempt of a probe failed.
    ProbeFailed {
        name: String,
        probe: ProbeKind,
        failures: u32,
        threshold: u32,
    },
    /// The postStart handler of a container that was restarted in place is over, well or not.
    PostStarted {
        name: String,
        outcome: Result<(), String>,
    },
    /// The attempts of this container's probe, and of others, come less often than they should: they
    /// would take more of the CPU than a pod's probes may.
    Stretched {
        name: String,
        period: Duration,
        to: Duration,
    },
    /// A sidecar has ended and is restarted in place, or a defer container has failed and is run
    /// again.
    Restarts {
        name: String,
        code: u32,
        wait: Duration,
    },
    /// A restart in place has failed.
    NotRestarted { name: String, reason: String },
    /// The pod terminates.
    Terminating { because: Cause, grace: Duration },
    /// What looked like a termination was none: the caller has created a container.
    NotTerminating { disproved_by: String },
    /// The pod has ended, and its caller has created a container again.
    StartsOver { with: String },
    /// The sandbox is killed, so that its caller starts the whole pod again.
    SandboxKilled,
    /// Something happened that is not on the drawing of a container's life.
    Misplaced { name: String, what: String },
    /// A container's turn has not come, and it is released by hand.
    Overridden {
        name: String,
        waited_for: Vec<String>,
    },
    /// A step of the termination is over, for which each of these used so much time.
    StepOver {
        step: Step,
        took: Duration,
        used: Vec<(String, Duration)>,
    },
    /// A hook is over, well or not.
    HookOver {
        name: String,
        kind: HookKind,
        outcome: Result<(), String>,
    },
    /// A defer container has ended, with this code; its caller may be told of another.
    DeferOver {
        name: String,
        code: u32,
        took: Duration,
    },
    /// A defer container is not run.
    DeferSkipped { name: String },
    /// The running defer container may go on beyond the grace period.
    Extended { name: String, by: Duration },
    /// The grace period is over, and containers are still alive.
    GraceOver { alive: Vec<String> },
    /// A container brought other annotations than its pod's sandbox.
    OtherPlan { name: String },
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
            } => {
                write!(
                    f,
                    "{probe} probe of {name} failed {failures} of {threshold} times"
                )
            }
            Report::PostStarted {
                name,
                outcome: Ok(()),
            } => write!(f, "postStart of {name} is over again"),
            Report::PostStarted {
                name,
                outcome: Err(reason),
            } => write!(
                f,
                "postStart of {name} failed when it was restarted: {reason}"
            ),
            Report::Stretched { name, period, to } => {
                write!(
                    f,
                    "the pod's probes cost too much for their periods: that of {name} is due every \
                     {period:?}, and made every {to:?} or so"
                )
            }
            Report::Restarts { name, code, wait } => {
                write!(
                    f,
                    "{name} ended with {code} and is restarted in place in {wait:?}"
                )
            }
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
            Report::StartsOver { with } => {
                write!(f, "the pod starts over: {with} was created")
            }
            Report::SandboxKilled => {
                f.write_str("the sandbox is killed: its caller is to start the whole pod again")
            }
            Report::Misplaced { name, what } => write!(f, "{name}: {what}"),
            Report::Overridden { name, waited_for } => {
                write!(
                    f,
                    "{name} is released by hand though it waits for {}",
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
            Report::OtherPlan { name } => write!(
                f,
                "{name} brings other usher annotations than its sandbox, whose plan stands"
            ),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Inferred => f.write_str("its containers are asked to stop"),
            Cause::SandboxDied => f.write_str("its sandbox has died"),
            Cause::Completed => f.write_str("its apps have done their work"),
            Cause::EssentialFailed { name, code } => {
                write!(f, "its essential container {name} failed with {code}")
            }
            Cause::InitFailed { name, code } => write!(
                f,
                "its init container {name} failed with {code}, and is never restarted"
            ),
            Cause::SidecarFailed { name, code } => write!(
                f,
                "its sidecar {name} ended with {code} before it was started, and is never restarted"
            ),
            Cause::Stopped => f.write_str("it was asked for by hand"),
        }
    }
}

impl fmt::Display for HookKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HookKind::Termination => "termination hook",
            HookKind::PreStop => "preStop handler",
        })
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::Hooks => "termination hooks",
            Step::PreExit => "pre-exit containers",
            Step::Apps => "apps",
            Step::PostExit => "post-exit containers",
            Step::Sidecars => "sidecars",
            Step::Over => "termination",
        })
    }
}

/// Why a pod terminates.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Stop requests of its containers say so: a hypothesis.
    Inferred,
    /// The sandbox container is gone.
    SandboxDied,
    /// All apps have exited as the restart policy wants it.
    Completed,
    /// A container whose failure ends the pod has failed.
    EssentialFailed { name: String, code: u32 },
    /// An init container has failed that the caller will not restart.
    InitFailed { name: String, code: u32 },
    /// A sidecar has ended before it was started, and nobody will start it again.
    SidecarFailed { name: String, code: u32 },
    /// A person has asked for it (`usher stop`).
    Stopped,
}

impl Cause {
    /// Whether the cause leaves no doubt; a mere hypothesis is dropped when the caller creates a
    /// container.
    pub fn is_decided(&self) -> bool {
        *self != Cause::Inferred
    }

    /// Whether its caller stops the containers as well, each with its preStop handler first. Of any
    /// other end it knows nothing.
    pub fn is_callers(&self) -> bool {
        matches!(self, Cause::Inferred | Cause::SandboxDied)
    }

    /// Whether the caller is to start all of the pod again afterwards.
    pub fn is_followed_by_another(&self) -> bool {
        matches!(self, Cause::SandboxDied | Cause::EssentialFailed { .. })
    }
}

/// The steps of a termination, in their order (KEP-753 draft, "shutdown sequence steps", with the
/// defer containers of the defer proposal).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// Termination hooks of all containers, in parallel.
    Hooks,
    /// Defer containers that run before the apps are stopped, one after another.
    PreExit,
    /// The apps, all at once.
    Apps,
    /// Defer containers that run after the apps have stopped, one after another.
    PostExit,
    /// The sidecars.
    Sidecars,
    /// All has been asked to stop and has stopped; only guests may be left.
    Over,
}

impl Step {
    /// The step after this one.
    pub fn next(self) -> Step {
        match self {
            Step::Hooks => Step::PreExit,
            Step::PreExit => Step::Apps,
            Step::Apps => Step::PostExit,
            Step::PostExit => Step::Sidecars,
            Step::Sidecars | Step::Over => Step::Over,
        }
    }
}

/// Why a call is refused, in one sentence for the caller.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Error)]
pub enum Refusal {
    #[error("container {id} already exists in this pod")]
    AlreadyExists { id: ContainerId },
    #[error("container {id} does not exist in this pod")]
    NotFound { id: ContainerId },
    #[error(
        "container {name} brings other usher annotations than the container that opened its pod: without a sandbox container all of them must carry the same"
    )]
    OtherPlan { name: String },
    #[error("container {name} is not created: the sandbox of its pod has ended")]
    SandboxGone { name: String },
    #[error("cannot start container {name}: it is {state}, expected created")]
    NotCreated { name: String, state: State },
    #[error("container {name} was not started within {within:?}: it waits for {waits_for}")]
    StartTimedOut {
        name: String,
        within: Duration,
        waits_for: String,
    },
    #[error("container {name} is not started: its pod terminates: {because}")]
    Terminating { name: String, because: Cause },
    #[error(
        "container {name} is not started: it waits for {waits_for}, which nobody starts any more"
    )]
    NeverComes { name: String, waits_for: String },
    #[error("container {name} ended before its program was executed")]
    EndedBeforeStart { name: String },
    #[error("container {name} could not be released: {reason}")]
    NotReleased { name: String, reason: String },
    #[error("container {name} cannot be released: it is {state}, expected held")]
    NotHeld { name: String, state: State },
    #[error("container {name} cannot be released: its turn is when the pod terminates")]
    TurnAtTheEnd { name: String },
    #[error("container {name} is held and its program does not run yet: it waits for {waits_for}")]
    Held { name: String, waits_for: String },
}
