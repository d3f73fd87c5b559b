//! Behavior of simulated processes.

use std::time::Duration;

use usher_core::lifecycle::ActionError;
use usher_core::plan::Signal;
use usher_core::process::ExitStatus;

/// Behavior of a process after it has executed its program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Time after which the process exits by itself, and its exit status; `None` if never.
    pub ends: Option<(Duration, ExitStatus)>,
    pub on_stop: OnStop,
    /// The only stop signal that the process reacts to; `None` if it reacts to any.
    pub heeds: Option<Signal>,
    /// Time from the program's execution until probes succeed; `None` if never.
    pub ready_after: Option<Duration>,
    /// Time from the program's start after which all probes fail; `None` if never.
    pub unwell_after: Option<Duration>,
    /// Duration of the container's hooks.
    pub hook_takes: Duration,
    /// True if the process exits with 0 when its client closes stdin.
    pub reads_stdin: bool,
    /// Time for which the client still reads output after the process has exited.
    pub is_read_for: Option<Duration>,
}

/// Reaction to a stop signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStop {
    Ends(Duration, ExitStatus),
    Dies,
    Ignores,
}

impl Default for Program {
    /// Runs until a stop signal.
    fn default() -> Program {
        Program {
            ends: None,
            on_stop: OnStop::Ends(Duration::ZERO, ExitStatus::Code(0)),
            heeds: None,
            ready_after: Some(Duration::ZERO),
            unwell_after: None,
            hook_takes: Duration::ZERO,
            reads_stdin: false,
            is_read_for: None,
        }
    }
}

impl Program {
    /// Exits at once with this code.
    pub fn exits(code: u8) -> Program {
        Program::exits_after(Duration::ZERO, code)
    }

    pub fn exits_after(after: Duration, code: u8) -> Program {
        Program {
            ends: Some((after, ExitStatus::Code(code))),
            on_stop: OnStop::Dies,
            ..Program::default()
        }
    }

    /// Runs until it is killed.
    pub fn deaf() -> Program {
        Program {
            on_stop: OnStop::Ignores,
            ..Program::default()
        }
    }

    /// Outcome of a probe at this time after the program's execution.
    ///
    /// # Errors
    ///
    /// If the probe fails.
    pub fn probed(&self, after: Duration) -> Result<(), ActionError> {
        let is_ready = self.ready_after.is_some_and(|ready| ready <= after);
        match self.unwell_after.is_some_and(|unwell| unwell <= after) {
            true => Err(ActionError::reported("it is no longer healthy")),
            false if is_ready => Ok(()),
            false => Err(ActionError::reported("it is not ready yet")),
        }
    }
}
