//! Delivers signals, as the core has decided. The outcome answers the caller's Kill, or goes to the
//! log.

use crate::calls::{CallError, signal_answer};
use usher_core::lifecycle::{ContainerId, SignalOrder, Wanted};
use usher_engine::{EngineError, SignalProgress};

use super::Actor;

impl Actor {
    pub(super) fn signal(&mut self, id: &ContainerId, order: SignalOrder) {
        let SignalOrder { signal, all, .. } = order;
        let init = self.tasks.get(id).and_then(|task| task.handles.init());
        let Some(init) = init else {
            let gone = Err(CallError::finished(id.as_str()));
            return self.callers.answer_signal(id, order, gone);
        };
        // Before each deletion of a task containerd sends SIGKILL, even if the task has exited. In
        // that case the signal is not the cause of the exit.
        let precedes_exit = !self.core.has_exited(id);
        let answer = move |actor: &mut Actor, id: &ContainerId, killed: Result<_, EngineError>| {
            let outcome = signal_answer(killed, id.as_str());
            actor.callers.answer_signal(id, order, outcome);
        };
        let signalled = move |actor: &mut Actor, id: &ContainerId, killed: Result<_, _>| {
            if killed.is_ok() && precedes_exit {
                actor.record.note_signal(actor.now(), id, signal, order.why);
            }
            answer(actor, id, killed);
        };
        match init.kill(signal, all) {
            SignalProgress::Done(killed) => signalled(self, id, killed),
            SignalProgress::UnderWay(work) => {
                self.operate_or(id, Wanted::UntilDeleted, work, signalled, answer);
            }
        }
    }

    /// Cancels the work that is under way for a container, because the container is killed.
    pub(super) fn cancel_work(&mut self, id: &ContainerId) {
        if let Some(task) = self.tasks.get(id) {
            task.handles.cancel_token().cancel();
        }
    }
}
