//! The OCI runtime's commands with their time limits, and the errors of these commands.

use std::fmt;
use std::io;
use std::time::Duration;

use thiserror::Error;

use usher_core::text::Shortened;
use usher_engine::EngineError;
use usher_engine::Panicked;
use usher_linux::stdio::Streams;

use super::runtime::is_shortage;

/// The error of a command of the OCI runtime that failed.
#[derive(Debug, Error)]
pub enum RuntimeError {
    #[error("cannot run OCI runtime {binary:?}: {source}")]
    NotRun { binary: String, source: io::Error },
    #[error("OCI runtime {verb} failed: {message}", message = said(.message))]
    Failed { verb: Verb, message: String },
    #[error("OCI runtime {verb} failed: {why}")]
    Silent { verb: Verb, why: String },
    #[error("OCI runtime {verb} wrote {written:?} to its pid file; expected a PID")]
    NoPid { verb: Verb, written: String },
    #[error("OCI runtime {verb} did not end within {limit:?} and was killed")]
    Late { verb: Verb, limit: Duration },
    #[error("OCI runtime {verb} canceled: the caller has gone, or the container has to end")]
    Canceled { verb: Verb },
    #[error("the outcome of the OCI runtime is unknown: {0}")]
    Unseen(String),
}

/// Maximum number of characters of the runtime's message that an error quotes, because a message
/// may contain long names that a container has chosen.
const SAID_CHARS: usize = 4096;

fn said(text: &str) -> Shortened<'_> {
    Shortened {
        text,
        chars: SAID_CHARS,
        quotes: false,
    }
}

impl RuntimeError {
    /// Passes the output in `streams` on to the client. So far, only the runtime itself has written
    /// output there. Does nothing if this error already quotes the runtime's message.
    pub(super) fn unless_said(&self, streams: &mut Streams) {
        if !matches!(self, RuntimeError::Failed { .. }) {
            streams.pass_on();
        }
    }

    /// True if the runtime does not know the container.
    pub fn is_unknown_container(&self) -> bool {
        matches!(self, RuntimeError::Failed { message, .. } if message.contains("does not exist"))
    }

    /// True if the command was killed before it had finished. It may have left processes and
    /// cgroups behind.
    pub fn is_cut_short(&self) -> bool {
        matches!(
            self,
            RuntimeError::Late { .. } | RuntimeError::Canceled { .. }
        )
    }

    /// True if the command could not be run because descriptors, memory or processes were
    /// exhausted.
    pub fn is_shortage(&self) -> bool {
        matches!(self, RuntimeError::NotRun { source, .. } if is_shortage(source))
    }

    /// True if the runtime refuses to remove the container because it is paused.
    pub(super) fn is_frozen(&self) -> bool {
        matches!(self, RuntimeError::Failed { message, .. }
            if message.contains("not stopped: paused"))
    }

    /// True if the process that should get the signal is gone, or if its container is gone.
    pub fn is_process_gone(&self) -> bool {
        self.is_unknown_container()
            || matches!(self, RuntimeError::Failed { message, .. }
            if ["process already finished", "container not running", "no such process"]
                .iter()
                .any(|words| message.contains(words)))
    }
}

impl From<Panicked> for RuntimeError {
    fn from(panicked: Panicked) -> RuntimeError {
        RuntimeError::Unseen(panicked.to_string())
    }
}

impl From<RuntimeError> for EngineError {
    fn from(error: RuntimeError) -> EngineError {
        let words = error.to_string();
        match error {
            error if error.is_cut_short() => EngineError::CutShort(words),
            error if error.is_process_gone() => EngineError::Gone(words),
            _ => EngineError::Failed(words),
        }
    }
}

/// A command of the OCI runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Create,
    Start,
    Exec,
    Kill,
    Pause,
    Resume,
    Update,
    Checkpoint,
    Restore,
    Delete,
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verb::Create => "create",
            Verb::Start => "start",
            Verb::Exec => "exec",
            Verb::Kill => "kill",
            Verb::Pause => "pause",
            Verb::Resume => "resume",
            Verb::Update => "update",
            Verb::Checkpoint => "checkpoint",
            Verb::Restore => "restore",
            Verb::Delete => "delete",
        })
    }
}

impl Verb {
    /// Default time limit of the command. Each limit is shorter than the time that the caller
    /// allows. kubelet allows two minutes for Create and Start together. containerd allows ten
    /// seconds for all work that follows an exit.
    pub(super) fn limit(self) -> Duration {
        Duration::from_secs(match self {
            Verb::Create | Verb::Start | Verb::Exec => 100,
            Verb::Pause | Verb::Resume | Verb::Update => 30,
            // Long enough to write or read the memory of a large container.
            Verb::Checkpoint | Verb::Restore => 600,
            Verb::Kill => 5,
            Verb::Delete => 8,
        })
    }

    /// True if the command may be canceled when the container is to be removed.
    pub(super) fn is_cancelable(self) -> bool {
        !matches!(self, Verb::Kill | Verb::Delete)
    }
}
