//! What the core wants done, and what it refuses.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use thiserror::Error;

use crate::plan::{Hook, Signal};

use super::life::State;
use super::report::Report;
use super::task::{Deletion, IllegalCall};

/// The id of a container as containerd knows it; cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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
    /// left of what ran before. Its runtime state may be [cleaned up](Action::CleanUp) already.
    Restart {
        id: ContainerId,
        is_cleaned_up: bool,
    },
    /// End what is under way to execute a container's program anew: it is to be killed. That its
    /// restart has come to nothing is then said with [`handle_restarted`](super::Pod::handle_restarted).
    CancelRestart { id: ContainerId },
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
    /// End the container's output: its process is gone for good, and this is its exit code. Say with
    /// [`handle_output_read`](super::Pod::handle_output_read) when the caller has read the rest.
    EndOutput { id: ContainerId, code: u32 },
    /// Publish the container's exit, with this code and the time it really exited.
    PublishExit { id: ContainerId, code: u32 },
    /// Publish the exit of an exec.
    PublishExecExit { id: ContainerId, exec_id: String },
    /// Clean up the runtime state of a container that has exited, but for its root file system, and say
    /// with [`handle_cleaned_up`](super::Pod::handle_cleaned_up) what came of it.
    CleanUp { id: ContainerId },
    /// Kill the parked process of a container that is to be deleted, and cancel what is under way for it.
    KillParked { id: ContainerId },
    /// Delete a container, and say so with [`handle_removed`](super::Pod::handle_removed), or with
    /// [`handle_not_deleted`](super::Pod::handle_not_deleted).
    Delete { id: ContainerId, how: Deletion },
    /// Write a line to the container's stderr; the reason why it was ended (`last_words`) goes to
    /// its termination message as well, and
    /// [`handle_last_words_written`](super::Pod::handle_last_words_written) says when it is there.
    Tell {
        id: ContainerId,
        message: String,
        last_words: bool,
    },
    /// A decision worth a line in the log.
    Report(Report),
}

/// Why a signal is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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

    /// Its word for scripts: that of the setting whose containers run in it, where there is one.
    pub const fn word(self) -> &'static str {
        match self {
            Step::Hooks => "hooks",
            Step::PreExit => "pre-exit",
            Step::Apps => "apps",
            Step::PostExit => "post-exit",
            Step::Sidecars => "sidecars",
            Step::Over => "over",
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
    #[error("{0}")]
    IllegalCall(IllegalCall),
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
