//! What a process does.

use std::time::Duration;

use crate::plan::Signal;
use crate::process::ExitStatus;

/// What a process does from its execution on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// After how long it ends by itself, and how; never if it is none.
    pub ends: Option<(Duration, ExitStatus)>,
    pub on_stop: OnStop,
    /// The only stop signal that it heeds; any if it is none.
    pub heeds: Option<Signal>,
    /// From when on, after its execution, a probe of it succeeds; never if it is none.
    pub ready_after: Option<Duration>,
    /// From when on it does not any more.
    pub unwell_after: Option<Duration>,
    /// How long a hook of it takes.
    pub hook_takes: Duration,
    /// Its program ends with 0 when its client closes stdin.
    pub reads_stdin: bool,
    /// How long its client reads its output after the exit.
    pub is_read_for: Option<Duration>,
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

    /// Exits after so long with this code.
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

    /// What a probe finds that is made so long after its execution.
    ///
    /// # Errors
    ///
    /// One sentence if it fails.
    pub fn probed(&self, after: Duration) -> Result<(), String> {
        let is_ready = self.ready_after.is_some_and(|ready| ready <= after);
        match self.unwell_after.is_some_and(|unwell| unwell <= after) {
            true => Err("it is not well any more".to_owned()),
            false if is_ready => Ok(()),
            false => Err("it is not ready yet".to_owned()),
        }
    }
}
