//! The state of a container in one word.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The state of a container in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum StateSummary {
    /// The OCI runtime is creating it.
    Creating,
    /// The init process is parked; no Start has come.
    Created,
    /// The init process is parked; the Start waits for its turn and for its answer.
    Starting,
    /// The init process is parked; the Start has been answered.
    Held,
    /// The program runs, or is being executed.
    Running,
    /// The stop signal was delivered, or the container is being killed.
    Stopping,
    /// The program has exited and will be restarted in place; the caller learns of neither.
    BackingOff,
    /// The program is being restarted in place.
    Restarting,
    /// The program has succeeded, which is withheld from the caller because it would restart the
    /// container.
    Completed,
    /// The container has exited.
    Stopped,
}

impl StateSummary {
    /// The reason why a Start is refused in this state.
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

/// The words of the OCI runtime specification where it has one.
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
