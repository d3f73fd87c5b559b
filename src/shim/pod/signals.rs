//! Delivers signals, and reports the outcome.

use tracing::{info, warn};

use usher_core::lifecycle::{ContainerId, RequestId, SignalOrder, Wanted};
use usher_engine::{EngineError, SignalProgress};

use super::{Actor, CallError};

impl Actor {
    pub(super) fn signal(&mut self, id: &ContainerId, order: SignalOrder) {
        let SignalOrder { signal, all, .. } = order;
        let init = self.tasks.get(id).and_then(|task| task.handles.init());
        let Some(init) = init else {
            return self.signalled(id, order, Err(CallError::finished(id.as_str())));
        };
        // Before each deletion of a task containerd sends SIGKILL, even if the task has exited. In
        // that case the signal is not the cause of the exit.
        let precedes_exit = !self.core.has_exited(id);
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

    /// Cancels the work that is under way for a container that is killed.
    pub(super) fn cancel_work(&mut self, id: &ContainerId) {
        if let Some(task) = self.tasks.get(id) {
            task.handles.cancel_token().cancel();
        }
    }

    /// Answers the Kill that the signal came from. A signal without a Kill has its outcome logged.
    fn signalled(&mut self, id: &ContainerId, order: SignalOrder, outcome: Result<(), CallError>) {
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
