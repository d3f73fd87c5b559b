//! The state of a container in one word.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The state of a container in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum StateSummary {
    /// The OCI runtime is creating the container, or its creation is being undone.
    Creating,
    /// The container waits for a Start: none has come, or the last one failed.
    Created,
    /// A Start has come, and waits unanswered for the container's turn.
    Starting,
    /// The Start was answered before the container's turn: the program is not executed yet.
    Held,
    /// The program runs, or is being executed.
    Running,
    /// The program got its stop signal or SIGKILL, or the shim is ending a container whose program
    /// was never executed.
    Stopping,
    /// The program has exited and will be restarted in place; the caller learns of neither.
    BackingOff,
    /// The program is being restarted in place.
    Restarting,
    /// The program has exited with 0. The shim withholds this exit from a caller that would
    /// misinterpret it.
    Completed,
    /// The container has exited for good. Its exit may not be published yet.
    Stopped,
}

impl StateSummary {
    /// The reason why a Start is refused in this state, for the error message.
    pub fn why_not_started(self) -> &'static str {
        match self {
            StateSummary::Creating => "it is still being created",
            StateSummary::Created => "its creation has only just ended; try again",
            StateSummary::Starting => "an earlier Start of it is not answered yet",
            StateSummary::Held
            | StateSummary::Running
            | StateSummary::BackingOff
            | StateSummary::Restarting
            | StateSummary::Completed => "it was started before",
            StateSummary::Stopping => "it is being stopped",
            StateSummary::Stopped => "it has exited; expected a new container",
        }
    }
}

/// Writes `creating`, `created`, `running` and `stopped` as in the OCI runtime specification, which
/// has no words for the other states.
impl fmt::Display for StateSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            StateSummary::Creating => "creating",
            StateSummary::Created => "created",
            StateSummary::Starting => "starting",
            StateSummary::Held => "held",
            StateSummary::Running => "running",
            StateSummary::Stopping => "stopping",
            StateSummary::BackingOff => "waiting to be restarted",
            StateSummary::Restarting => "restarting",
            StateSummary::Completed => "completed",
            StateSummary::Stopped => "stopped",
        })
    }
}
