//! Actions, the decisions of the core that the driver carries out, and refusals.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use thiserror::Error;

use crate::plan::{Hook, Signal};
use crate::process::ExitStatus;

use super::report::Report;
use super::state::StateSummary;
use super::task::{Deletion, IllegalCall, IllegalExecCall, SignalOrder, UPDATES_AT_MOST};

/// The id of a container as containerd knows it; cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ContainerId(Arc<str>);

impl ContainerId {
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

/// The number of a Start, Kill or Update call that the driver has to answer. The driver assigns the
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RequestId(pub u64);

/// An instruction for the driver. The driver begins actions in the order in which it polls them. It
/// may poll the next action while an earlier one is still under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Execute the program of a created container, or restore the container from its checkpoint.
    /// Report with [`handle_released`](super::Pod::handle_released).
    Release { id: ContainerId },
    /// Answer a Start. If the answer is `Ok`, publish TaskStart first: containerd has to see the
    /// container as running, even if the shim does not execute its program yet.
    AnswerStart {
        id: ContainerId,
        request: RequestId,
        answer: Result<(), Refusal>,
    },
    /// Answer a Kill, and deliver no signal. `Ok` says that the core has recorded the request. If a
    /// signal is due for it, the core orders a separate [`Signal`](Action::Signal), before or after
    /// this answer.
    AnswerKill {
        request: RequestId,
        answer: Result<(), Refusal>,
    },
    /// Deliver a signal to the container's init process, or to all of its processes. If
    /// `order.request` is the number of a Kill call, answer this call with the outcome.
    Signal { id: ContainerId, order: SignalOrder },
    /// Cancel all work that is under way for the container, because the container is being killed.
    CancelWork { id: ContainerId },
    /// Kill the processes that the init process of a container has left behind, and then report
    /// with [`handle_container_exited`](super::Pod::handle_container_exited).
    KillRest { id: ContainerId, status: ExitStatus },
    /// Report with [`handle_init_exited`](super::Pod::handle_init_exited) that a container was
    /// killed before it was restored.
    ExitUnrestored { id: ContainerId, status: ExitStatus },
    /// Restart a container in place after its process has exited: execute its program in a new
    /// process with the same streams. The OCI runtime's state of the last process has to be removed
    /// before; `is_cleaned_up` is true if this was [done](Action::CleanUp). Report with
    /// [`handle_restarted`](super::Pod::handle_restarted).
    Restart {
        id: ContainerId,
        is_cleaned_up: bool,
    },
    /// Kill a restart in place that is under way, and report its failure with
    /// [`handle_restarted`](super::Pod::handle_restarted).
    CancelRestart { id: ContainerId },
    /// Run the container's postStart handler again after a restart in place, by repeating the Exec
    /// that was taken for this handler. `execution` is the number of the container's new execution.
    /// Report with [`handle_post_started`](super::Pod::handle_post_started).
    PostStart { id: ContainerId, execution: u64 },
    /// Make one attempt of the container's [`probe`](super::Pod::probe), bounded by its timeout,
    /// and report with [`handle_probed`](super::Pod::handle_probed). `execution` says which
    /// execution of the container is probed: the container may be restarted before the result
    /// arrives.
    Probe { id: ContainerId, execution: u64 },
    /// Run a hook of the container, for example a command in the container or an HTTP request to
    /// it. `limit` bounds the hook. Report with [`handle_hooked`](super::Pod::handle_hooked).
    Hook {
        id: ContainerId,
        kind: HookKind,
        hook: Hook,
        limit: Duration,
    },
    /// End the container's output: its process has exited for good with `code`. When the caller has
    /// read the rest of the output, report with
    /// [`handle_output_read`](super::Pod::handle_output_read).
    EndOutput { id: ContainerId, code: u32 },
    /// Publish the container's exit with this code and the time at which it really exited, and
    /// answer the open Waits for the container.
    PublishExit { id: ContainerId, code: u32 },
    /// Publish the exit of an exec with this code, and answer the open Waits for the exec.
    PublishExecExit {
        id: ContainerId,
        exec_id: String,
        code: u32,
    },
    /// Carry out an Update of the container's resources, and report with
    /// [`handle_updated`](super::Pod::handle_updated). With `for_next_process`, the container has
    /// no process just now: only keep the change, and answer the caller at once.
    Update {
        id: ContainerId,
        request: RequestId,
        for_next_process: bool,
    },
    /// Answer an Update that cannot be carried out.
    RefuseUpdate {
        request: RequestId,
        refusal: Refusal,
    },
    /// Clean up the runtime state of an exited container except its root file system, and report
    /// with [`handle_cleaned_up`](super::Pod::handle_cleaned_up).
    CleanUp { id: ContainerId },
    /// Kill the init process of a container that is to be deleted and whose program was never
    /// executed. Cancel all work that is under way for the container.
    KillParked { id: ContainerId },
    /// Delete a container, and report with [`handle_removed`](super::Pod::handle_removed) or
    /// [`handle_not_deleted`](super::Pod::handle_not_deleted).
    Delete { id: ContainerId, how: Deletion },
    /// Write a line to the container's stderr. With `last_words` the line is the reason why the
    /// shim ended the container: write it to the termination message as well, and report with
    /// [`handle_last_words_written`](super::Pod::handle_last_words_written).
    WriteMessage {
        id: ContainerId,
        message: String,
        last_words: bool,
    },
    /// Write a decision to the log.
    Report(Report),
}

/// The reason why the driver could not carry out an action.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Error)]
pub enum ActionError {
    #[error("the container is gone")]
    ContainerGone,
    #[error("the container has no init process")]
    NoInitProcess,
    /// A container is restored from its checkpoint only once.
    #[error("an earlier restore failed")]
    RestoreFailedBefore,
    /// Text from outside of the core, for example from the OCI runtime or from a server in a
    /// container.
    #[error("{0}")]
    Reported(String),
}

impl ActionError {
    /// Returns an error with the text of `error`.
    pub fn reported(error: impl fmt::Display) -> ActionError {
        ActionError::Reported(error.to_string())
    }
}

/// The reason for a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum SignalReason {
    /// The caller sent a signal that is not meant to stop the container; it is passed on unchanged.
    Other,
    /// The caller sent a stop signal or SIGKILL, and the shim passes it on at once. This holds for
    /// SIGKILL, for a repeated stop signal, and for containers that usher does not order.
    PassedOn,
    /// The caller stops only this container. Also used for a container whose stop requests the shim
    /// never delays.
    Alone,
    /// The container's turn to stop has come in the termination. Also used for a container that has
    /// no turn to wait for.
    Turn,
    /// The stop signal comes shortly before SIGKILL: the grace period or a defer container's own
    /// time is over, or the caller kills the container before its turn.
    TimeShort,
    /// SIGKILL: the grace period of the container or of its pod is over.
    GraceOver,
    /// SIGKILL for an init process that has not executed the container's program, and will not.
    Held,
    /// A probe of the container has failed too often.
    ProbeFailed(ProbeKind),
    /// The postStart handler failed after a restart in place.
    PostStartFailed,
    /// The sandbox is killed so that its caller starts the pod again in another sandbox.
    StartsAnew,
}

impl SignalReason {
    /// True if the signal is meant to stop the container.
    pub fn is_stop(self) -> bool {
        self != SignalReason::Other
    }

    /// True if the signal is sent because the container has failed, and not for a stop request.
    pub fn is_failure(self) -> bool {
        matches!(
            self,
            SignalReason::ProbeFailed(_) | SignalReason::PostStartFailed
        )
    }
}

/// The purpose of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ProbeKind {
    /// Checks if the container has started up.
    Startup,
    /// Checks if the container still works.
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

/// The purpose of a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HookKind {
    /// The termination hook from the annotations, run first when the pod terminates.
    Termination,
    /// The preStop handler, run by the shim if the caller does not run it.
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
            Cause::Stopped => f.write_str("usher stop requested it"),
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

/// The reason why a pod terminates.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Cause {
    /// The shim has inferred the termination from stop requests for the pod's containers. If the
    /// caller then creates a container, the inference was a mistake.
    Inferred,
    /// The sandbox container has exited.
    SandboxDied,
    /// All apps have exited, and the restart policy restarts none of them.
    Completed,
    /// A container listed in `usher/essential` has failed.
    EssentialFailed { name: String, code: u32 },
    /// An init container has failed, and the caller will not restart it.
    InitFailed { name: String, code: u32 },
    /// A sidecar has exited before its startup was complete, and will not be restarted.
    SidecarFailed { name: String, code: u32 },
    /// A person has run `usher stop`.
    Stopped,
}

impl Cause {
    /// True if the cause is certain. An inferred termination is dropped when the caller creates a
    /// container.
    pub fn is_decided(&self) -> bool {
        *self != Cause::Inferred
    }

    /// True if the caller knows of the termination. The caller then stops the containers, too,
    /// after it has run their preStop handlers.
    pub fn is_left_to_caller(&self) -> bool {
        matches!(self, Cause::Inferred | Cause::SandboxDied)
    }

    /// True if the caller is expected to start the whole pod again after the termination.
    pub fn is_followed_by_another(&self) -> bool {
        matches!(self, Cause::SandboxDied | Cause::EssentialFailed { .. })
    }
}

/// The steps of a termination, in order (KEP-753 draft, "shutdown sequence steps", plus the defer
/// containers of the defer proposal).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Step {
    /// Termination hooks of all containers, in parallel.
    Hooks,
    /// Defer containers that run one after another, before the apps are stopped.
    PreExit,
    /// The apps and the init containers that still run are stopped, all at once.
    Apps,
    /// Defer containers that run one after another, after the apps have stopped.
    PostExit,
    Sidecars,
    /// No step is left. Native init containers, containers of the next run, and containers outside
    /// the pod's plan may still run.
    Over,
}

impl Step {
    /// The step that follows; [`Over`](Step::Over) has none and returns itself.
    pub fn next(self) -> Step {
        match self {
            Step::Hooks => Step::PreExit,
            Step::PreExit => Step::Apps,
            Step::Apps => Step::PostExit,
            Step::PostExit => Step::Sidecars,
            Step::Sidecars | Step::Over => Step::Over,
        }
    }

    /// The name of the step in output for scripts. If a setting lists the containers of the step,
    /// the setting has the same name.
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

/// A call that the shim refuses because the container's program has not been executed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Error)]
pub enum HeldCall {
    #[error("execute {exec_id} in")]
    Exec { exec_id: String },
    #[error("deliver {signal} to")]
    Signal { signal: Signal },
}

/// The reason why a call is refused, in one sentence for the caller.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Error)]
pub enum Refusal {
    #[error("container {id} already exists in this pod")]
    AlreadyExists { id: ContainerId },
    #[error("container {id} does not exist in this pod")]
    NotFound { id: ContainerId },
    #[error("{0}")]
    IllegalCall(IllegalCall),
    #[error("cannot update task {id}: {UPDATES_AT_MOST} updates wait already")]
    TooManyUpdates { id: ContainerId },
    #[error("{id}: process already finished")]
    Finished { id: ContainerId },
    #[error("task {id} has no process yet: it is still to be restored")]
    NotRestored { id: ContainerId },
    #[error("process {exec_id} of task {id} does not exist")]
    ExecNotFound { id: ContainerId, exec_id: String },
    #[error("process {exec_id} of task {id} already exists")]
    ExecExists { id: ContainerId, exec_id: String },
    #[error("exec {exec_id:?}: task {id} has no process just now")]
    NoProcess { id: ContainerId, exec_id: String },
    #[error("{0}")]
    IllegalExecCall(IllegalExecCall),
    #[error(
        "container {name} has other usher annotations than the first container of its pod; without a sandbox container, all containers of a pod need the same"
    )]
    OtherPlan { name: String },
    #[error("container {name} is not created: the sandbox of its pod has ended")]
    SandboxGone { name: String },
    #[error("cannot start container {name}: {}", state.why_not_started())]
    NotCreated { name: String, state: StateSummary },
    /// The error of a Start in the start mode `Block`: the container's turn has not come within
    /// the startup timeout, or until shortly before the caller gives up. The container stays
    /// created.
    #[error("container {name} was not started within {within:?}: it waits for {waits_for}")]
    StartTimedOut {
        name: String,
        within: Duration,
        waits_for: String,
    },
    #[error("container {name} is not started: its pod terminates: {because}")]
    Terminating { name: String, because: Cause },
    #[error(
        "container {name} is not started: it waits for {waits_for}, which is never started again"
    )]
    NeverComes { name: String, waits_for: String },
    #[error("cannot start container {name}: it ended before its program was executed")]
    EndedBeforeStart { name: String },
    #[error("cannot start container {name}: its program could not be executed: {reason}")]
    NotReleased {
        name: String,
        #[source]
        reason: ActionError,
    },
    #[error("container {name} cannot be released: it is being deleted or checkpointed; try again")]
    Busy { name: String },
    #[error("container {name} cannot be released: it is {state}, expected held")]
    NotHeld { name: String, state: StateSummary },
    #[error(
        "container {name} cannot be released: it is a defer container, which runs when the pod terminates"
    )]
    TurnAtTheEnd { name: String },
    #[error(
        "cannot {call} container {name}: the container is held, and its program does not run yet; it waits for {waits_for}"
    )]
    Held {
        name: String,
        call: HeldCall,
        waits_for: String,
    },
}
