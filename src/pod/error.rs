//! Why a call of containerd fails.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

use crate::lifecycle::Refusal;
use crate::runtime::RuntimeError;

/// A failed call: one sentence, and what kind of failure it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallError {
    pub kind: Kind,
    pub message: String,
}

/// The kinds of failures that containerd tells apart (`errdefs`).
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
    pub fn new(kind: Kind, message: impl Into<String>) -> CallError {
        CallError {
            kind,
            message: message.into(),
        }
    }

    /// A failure of something else, in its own words.
    pub fn unknown(cause: impl fmt::Display) -> CallError {
        CallError::new(Kind::Unknown, cause.to_string())
    }

    /// There is no such task, or no such exec of it.
    pub fn not_found(id: &str, exec_id: &str) -> CallError {
        let message = match exec_id {
            "" => format!("task {id} does not exist"),
            exec_id => format!("process {exec_id} of task {id} does not exist"),
        };
        CallError::new(Kind::NotFound, message)
    }

    /// The process to be signalled has ended.
    pub fn finished(id: &str) -> CallError {
        CallError::new(Kind::NotFound, format!("{id}: process already finished"))
    }
}

/// A job has panicked, which is a mistake of ours; the log says where. Every job's failure can be
/// this one, so that what follows from a job is never lost with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the shim has made a mistake: its log says where it panicked")]
pub struct Panicked;

impl From<Panicked> for CallError {
    fn from(panicked: Panicked) -> CallError {
        CallError::unknown(panicked)
    }
}

impl From<Panicked> for RuntimeError {
    fn from(panicked: Panicked) -> RuntimeError {
        RuntimeError::Unseen(panicked.to_string())
    }
}

impl From<Panicked> for io::Error {
    fn from(panicked: Panicked) -> io::Error {
        io::Error::other(panicked)
    }
}

impl From<Panicked> for String {
    fn from(panicked: Panicked) -> String {
        panicked.to_string()
    }
}

/// What comes of `work`, even if that is a panic.
pub(super) async fn caught<T, E: From<Panicked>>(
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let mut work = pin!(work);
    poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
        polled.unwrap_or_else(|_| Poll::Ready(Err(Panicked.into())))
    })
    .await
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for CallError {}

impl From<Refusal> for CallError {
    fn from(refusal: Refusal) -> CallError {
        let kind = match refusal {
            Refusal::AlreadyExists { .. } => Kind::AlreadyExists,
            Refusal::NotFound { .. } => Kind::NotFound,
            Refusal::OtherPlan { .. } => Kind::InvalidArgument,
            Refusal::StartTimedOut { .. } => Kind::DeadlineExceeded,
            Refusal::SandboxGone { .. }
            | Refusal::NotCreated { .. }
            | Refusal::Terminating { .. }
            | Refusal::NeverComes { .. }
            | Refusal::EndedBeforeStart { .. }
            | Refusal::NotHeld { .. }
            | Refusal::TurnAtTheEnd { .. }
            | Refusal::Held { .. } => Kind::FailedPrecondition,
            Refusal::NotReleased { .. } => Kind::Unknown,
        };
        CallError::new(kind, refusal.to_string())
    }
}
