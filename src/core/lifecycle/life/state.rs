//! The state of a container in a word.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The state in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum State {
    /// The OCI runtime is creating it.
    Creating,
    /// Its init process is parked; nobody has asked for its start yet.
    Created,
    /// Its init process is parked; its Start waits for its turn and for its answer.
    Starting,
    /// Its init process is parked; its Start has been answered.
    Held,
    /// Its program runs, or is being executed.
    Running,
    /// It has been told to stop, or is being killed.
    Stopping,
    /// Its program has ended, and it is executed anew in a while; the caller is told of neither.
    BackingOff,
    /// Its program is being executed anew.
    Restarting,
    /// It has succeeded, and the caller must not know yet, or it would be restarted.
    Completed,
    /// It is over, and the caller knows.
    Stopped,
}

/// As the OCI runtime specification has it where it has one.
impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            State::Creating => "creating",
            State::Created => "created",
            State::Starting => "starting",
            State::Held => "held",
            State::Running => "running",
            State::Stopping => "stopping",
            State::BackingOff => "waiting to be restarted",
            State::Restarting => "restarting",
            State::Completed => "completed",
            State::Stopped => "stopped",
        })
    }
}
