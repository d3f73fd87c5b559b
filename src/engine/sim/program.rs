//! What a process does.

use std::time::Duration;

use crate::process::ExitStatus;

/// What a process does from its execution on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// After how long it ends by itself, and how; never if it is none.
    pub ends: Option<(Duration, ExitStatus)>,
    pub on_stop: OnStop,
}

/// What it does when it gets a signal that asks a process to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStop {
    /// It ends after so long, with this.
    Ends(Duration, ExitStatus),
    /// It dies of it.
    Dies,
    /// Nothing.
    Ignores,
}

impl Default for Program {
    /// Runs until it is told to stop.
    fn default() -> Program {
        Program {
            ends: None,
            on_stop: OnStop::Ends(Duration::ZERO, ExitStatus::Code(0)),
        }
    }
}

impl Program {
    /// Exits at once with this code.
    pub fn exits(code: u8) -> Program {
        Program::exits_after(Duration::ZERO, code)
    }

    /// Exits after so long with this code.
    pub fn exits_after(after: Duration, code: u8) -> Program {
        Program {
            ends: Some((after, ExitStatus::Code(code))),
            on_stop: OnStop::Dies,
        }
    }

    /// Runs until it is killed.
    pub fn deaf() -> Program {
        Program {
            ends: None,
            on_stop: OnStop::Ignores,
        }
    }
}
