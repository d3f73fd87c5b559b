//! Errors of containerd's calls.

use std::fmt;

use usher_core::lifecycle::{ContainerId, Refusal};
use usher_engine::EngineError;
use usher_engine::Panicked;

/// The error of a call: one sentence, and the kind of failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallError {
    pub kind: Kind,
    pub message: String,
}

/// The kinds of failure that containerd distinguishes (`errdefs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    NotFound,
    AlreadyExists,
    InvalidArgument,
    FailedPrecondition,
    DeadlineExceeded,
    Unimplemented,
    Unknown,
}

impl CallError {
    /// Makes an error; `message` is one sentence for the caller.
    pub fn new(kind: Kind, message: impl Into<String>) -> CallError {
        CallError {
            kind,
            message: message.into(),
        }
    }

    /// Makes an error of kind Unknown from the failure of another part of the shim.
    pub fn unknown(cause: impl fmt::Display) -> CallError {
        CallError::new(Kind::Unknown, cause.to_string())
    }

    /// The error for a task that does not exist. If `exec_id` is not empty, the error for an exec
    /// that does not exist.
    pub fn not_found(id: &str, exec_id: &str) -> CallError {
        let message = match exec_id {
            "" => format!("task {id} does not exist"),
            exec_id => format!("process {exec_id} of task {id} does not exist"),
        };
        CallError::new(Kind::NotFound, message)
    }

    /// The error for the Start of an exec in a container that has exited.
    pub fn task_is_stopped(id: &ContainerId, exec_id: &str) -> CallError {
        let message = format!("exec {exec_id:?}: task {id} is stopped");
        CallError::new(Kind::FailedPrecondition, message)
    }

    /// The error for a call to a process that has exited, for example Kill.
    pub fn finished(id: &str) -> CallError {
        CallError::new(Kind::NotFound, format!("{id}: process already finished"))
    }
}

/// Converts the outcome of sending a signal to an answer for the caller of Kill. `name` is the name
/// of the process in an error message.
///
/// # Errors
///
/// [`CallError::finished`] if the process has exited; the engine's error if the signal could not be
/// sent.
pub fn signal_answer(sent: Result<(), EngineError>, name: &str) -> Result<(), CallError> {
    sent.map_err(|error| match error {
        EngineError::Gone(_) => CallError::finished(name),
        error => CallError::unknown(error),
    })
}

impl From<Panicked> for CallError {
    fn from(panicked: Panicked) -> CallError {
        CallError::unknown(panicked)
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for CallError {}

impl From<EngineError> for CallError {
    fn from(error: EngineError) -> CallError {
        let kind = match &error {
            EngineError::Invalid(_) => Kind::InvalidArgument,
            EngineError::Precondition(_) => Kind::FailedPrecondition,
            EngineError::Gone(_) | EngineError::CutShort(_) | EngineError::Failed(_) => {
                Kind::Unknown
            }
        };
        CallError::new(kind, error.to_string())
    }
}

impl From<Refusal> for CallError {
    fn from(refusal: Refusal) -> CallError {
        let kind = match &refusal {
            Refusal::AlreadyExists { .. } | Refusal::ExecExists { .. } => Kind::AlreadyExists,
            // containerd expects NotFound for a process that has exited.
            Refusal::NotFound { .. }
            | Refusal::ExecNotFound { .. }
            | Refusal::Finished { .. }
            | Refusal::NotRestored { .. } => Kind::NotFound,
            Refusal::OtherPlan { .. } => Kind::InvalidArgument,
            Refusal::StartTimedOut { .. } => Kind::DeadlineExceeded,
            Refusal::SandboxGone { .. }
            | Refusal::NotCreated { .. }
            | Refusal::Terminating { .. }
            | Refusal::NeverComes { .. }
            | Refusal::EndedBeforeStart { .. }
            | Refusal::NotHeld { .. }
            | Refusal::Busy { .. }
            | Refusal::TurnAtTheEnd { .. }
            | Refusal::Held { .. }
            | Refusal::NoProcess { .. }
            | Refusal::TooManyUpdates { .. } => Kind::FailedPrecondition,
            Refusal::NotReleased { .. } => Kind::Unknown,
            Refusal::IllegalCall(call) if call.is_finished() => Kind::NotFound,
            Refusal::IllegalExecCall(call) if call.is_finished() => Kind::NotFound,
            Refusal::IllegalCall(_) | Refusal::IllegalExecCall(_) => Kind::FailedPrecondition,
        };
        CallError::new(kind, refusal.to_string())
    }
}
