//! The results of operations, and what becomes of results that arrive too late.

use std::io;
use std::sync::Arc;

use containerd_shim_protos::events::task::TaskCreate;

use usher_core::plan::Signal;
use usher_core::process::ExitStatus;
use usher_engine::{
    Attempted, Created, Init, InitialState, NewExec, NewInit, Process, ScoreOutcome, SignalProgress,
};
use usher_linux::stdio::Streams;

/// The result of an operation.
pub trait Outcome: Send + 'static {
    /// Drops a stale result, whose operation was canceled before the result arrived. If the result
    /// has a new process, kills this process.
    fn discard(self)
    where
        Self: Sized,
    {
    }
}

impl Outcome for () {}
impl Outcome for ExitStatus {}
impl Outcome for Attempted {}
impl Outcome for ScoreOutcome {}
impl Outcome for Vec<u8> {}

impl Outcome for NewInit {
    fn discard(self) {
        kill_init(&*self.init);
    }
}

impl Outcome for Created {
    fn discard(self) {
        if let InitialState::Parked(new_init) = self.initial_state {
            new_init.discard();
        }
    }
}

impl Outcome for NewExec {
    fn discard(self) {
        kill_exec_process(&self.process);
    }
}

impl Outcome for (Created, TaskCreate) {
    fn discard(self) {
        self.0.discard();
    }
}

impl<T: Outcome> Outcome for (T, Streams) {
    fn discard(self) {
        self.0.discard();
    }
}

impl<T: Outcome> Outcome for (T, Option<Streams>) {
    fn discard(self) {
        self.0.discard();
    }
}

impl<T: Outcome, E: Send + 'static> Outcome for Result<T, E> {
    fn discard(self) {
        if let Ok(outcome) = self {
            outcome.discard();
        }
    }
}

/// Kills an init process, which may have exited already.
pub fn kill_init(init: &dyn Init) {
    if let Err(error) = init.end() {
        tracing::debug!(?init, %error, "the process has exited already");
    }
}

/// Kills the process of an exec, which may have exited already.
pub fn kill_exec_process(process: &Arc<dyn Process>) {
    let outcome = match process.kill(Signal::KILL) {
        SignalProgress::Done(outcome) => outcome,
        // Not reached: the engine sends SIGKILL to an exec at once.
        SignalProgress::UnderWay(_) => Ok(()),
    };
    if let Err(error) = outcome {
        tracing::debug!(?process, %error, "the process has exited already");
    }
}

/// Returns the exit status of a process. If waiting for the process has failed, kills the process
/// by calling `end`, because it must not run on unobserved, and returns the status of a SIGKILL.
pub fn status_or_kill<T>(outcome: io::Result<ExitStatus>, end: impl FnOnce() -> T) -> ExitStatus {
    outcome.unwrap_or_else(|error| {
        tracing::error!(%error, "cannot wait for a process; killing it");
        end();
        ExitStatus::Signal(Signal::KILL.number())
    })
}
