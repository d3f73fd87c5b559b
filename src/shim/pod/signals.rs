//! Delivers signals, and reports the outcome.

use tracing::{info, warn};

use usher_core::lifecycle::{ContainerId, RequestId, Wanted, Why};
use usher_core::plan::Signal;
use usher_engine::{EngineError, SignalProgress};

use super::{Actor, CallError};

/// A signal to deliver.
#[derive(Clone, Copy, Debug)]
pub(super) struct SignalOrder {
    pub signal: Signal,
    /// True if all processes of the container get the signal, not only its init.
    pub all: bool,
    /// The Kill call that gets the outcome as its answer.
    pub request: Option<RequestId>,
    pub why: Why,
}

impl Actor {
    pub(super) fn signal(&mut self, id: &ContainerId, order: SignalOrder) {
        if self.signal_before_restoration(id, order) {
            return;
        }
        let SignalOrder { signal, all, .. } = order;
        let Some(task) = self.tasks.get(id) else {
            return self.signalled(id, order, Err(CallError::not_found(id.as_str(), "")));
        };
        // After SIGKILL all other work for the container is useless, even if its init has exited
        // before. A cleanup is not canceled, because it must write its state completely.
        if signal == Signal::KILL && !self.core.is_being_cleaned_up(id) {
            task.handles.cancel_token().cancel();
        }
        // If the container has its own PID namespace, all its processes died with its init.
        let has_exited = self.core.has_exited(id);
        let is_gone = has_exited && (!all || task.facts.has_own_pid_namespace);
        let Some(init) = task.handles.init().filter(|_| !is_gone) else {
            return self.signalled(id, order, Err(CallError::finished(id.as_str())));
        };
        // Before each deletion of a task containerd sends SIGKILL, even if the task has exited. In
        // that case the signal is not the cause of the exit.
        let precedes_exit = !has_exited;
        let signalled = move |actor: &mut Actor, id: &ContainerId, killed| {
            let outcome = named(killed, id.as_str());
            if outcome.is_ok() && precedes_exit {
                let now = actor.now();
                actor.record.delivered(now, id, signal, order.why);
            }
            actor.signalled(id, order, outcome);
        };
        match init.kill(signal, all) {
            SignalProgress::Done(killed) => signalled(self, id, killed),
            SignalProgress::UnderWay(work) => {
                let stale = move |actor: &mut Actor, id: &ContainerId, killed| {
                    actor.signalled(id, order, named(killed, id.as_str()));
                };
                self.operate_or(id, Wanted::UntilDeleted, work, signalled, stale);
            }
        }
    }

    /// Answers the Kill that the signal came from. A signal without a Kill has its outcome logged.
    pub(super) fn signalled(
        &mut self,
        id: &ContainerId,
        order: SignalOrder,
        outcome: Result<(), CallError>,
    ) {
        let SignalOrder { signal, why, .. } = order;
        match (order.request, outcome) {
            (Some(request), outcome) => self.answer_kill(request, outcome),
            (None, Ok(())) => info!(container = %id, %signal, ?why, "signalled"),
            (None, Err(error)) => warn!(container = %id, %signal, ?why, %error, "not signalled"),
        }
    }

    pub(super) fn answer_kill(&mut self, request: RequestId, outcome: Result<(), CallError>) {
        if let Some(reply) = self.callers.kills.remove(&request) {
            let _ = reply.send(outcome);
        }
    }
}

/// Converts the outcome of a signal to an answer for the caller, who knows the process by `name`.
pub(super) fn named(killed: Result<(), EngineError>, name: &str) -> Result<(), CallError> {
    killed.map_err(|error| match error {
        EngineError::Gone(_) => CallError::finished(name),
        error => CallError::unknown(error),
    })
}
