//! What the OCI runtime is asked, how long it may take, and why it fails.

use std::fmt;
use std::io;
use std::time::Duration;

use thiserror::Error;

use crate::caught::Panicked;
use crate::engine::EngineError;
use crate::stdio::Streams;
use crate::text::Shortened;

use super::runtime::is_shortage;

/// A command of the OCI runtime failed.
#[derive(Debug, Error)]
pub enum RuntimeError {
    #[error("OCI runtime {binary:?} cannot be run: {source}")]
    NotRun { binary: String, source: io::Error },
    #[error("OCI runtime {verb} failed: {message}", message = said(.message))]
    Failed { verb: Verb, message: String },
    #[error("OCI runtime {verb} failed: {why}")]
    Silent { verb: Verb, why: String },
    #[error("OCI runtime {verb} wrote {written:?} to its pid file, expected a process id")]
    NoPid { verb: Verb, written: String },
    #[error("OCI runtime {verb} did not end within {limit:?}, and was ended")]
    Late { verb: Verb, limit: Duration },
    #[error("OCI runtime {verb} was ended: nobody wants it any more")]
    Halted { verb: Verb },
    #[error("OCI runtime was not seen to its end: {0}")]
    Unseen(String),
}

/// How much of what the runtime has said is repeated, in characters. What it says may have names in it
/// that a container has chosen.
const SAID_CHARS: usize = 4096;

fn said(text: &str) -> Shortened<'_> {
    Shortened {
        text,
        chars: SAID_CHARS,
        quotes: false,
    }
}

impl RuntimeError {
    /// Has the caller hear what the runtime has written to the streams of the process it was to make,
    /// unless the error says it.
    pub(super) fn unless_said(&self, streams: &mut Streams) {
        if !matches!(self, RuntimeError::Failed { .. }) {
            streams.pass_on();
        }
    }

    /// Whether the runtime says that it knows no such container.
    pub fn is_unknown_container(&self) -> bool {
        matches!(self, RuntimeError::Failed { message, .. } if message.contains("does not exist"))
    }

    /// Whether the command was ended before it was done: what it has begun may be there still.
    pub fn is_cut_short(&self) -> bool {
        matches!(
            self,
            RuntimeError::Late { .. } | RuntimeError::Halted { .. }
        )
    }

    /// Whether the command could not be run for want of descriptors, memory or processes.
    pub fn is_shortage(&self) -> bool {
        matches!(self, RuntimeError::NotRun { source, .. } if is_shortage(source))
    }

    /// Whether the runtime says that it does not remove a container for being paused.
    pub(super) fn is_frozen(&self) -> bool {
        matches!(self, RuntimeError::Failed { message, .. }
            if message.contains("not stopped: paused"))
    }

    /// Whether the runtime says that the process to be signalled is gone, or the whole container.
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

/// What the OCI runtime was asked to do.
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
    /// How long the runtime may take. Each is shorter than what waits for it: kubelet gives Create and
    /// Start two minutes together, containerd ten seconds to all that follows an exit.
    pub(super) fn limit(self) -> Duration {
        Duration::from_secs(match self {
            Verb::Create | Verb::Start | Verb::Exec => 100,
            Verb::Pause | Verb::Resume | Verb::Update => 30,
            // However much memory there is to be written, or read.
            Verb::Checkpoint | Verb::Restore => 600,
            Verb::Kill => 5,
            Verb::Delete => 8,
        })
    }

    /// Whether it is of no use any more when the container is to go.
    pub(super) fn can_be_halted(self) -> bool {
        !matches!(self, Verb::Kill | Verb::Delete)
    }
}
