//! Signals: how they are delivered, and what becomes of them.

use tracing::{info, warn};

use crate::engine::{EngineError, Killing};
use crate::lifecycle::{ContainerId, RequestId, Wanted, Why};
use crate::plan::Signal;

use super::{Actor, CallError};

/// A signal that is to be delivered.
#[derive(Clone, Copy, Debug)]
pub(super) struct SignalOrder {
    pub signal: Signal,
    /// To all processes of the container, not to its init alone.
    pub all: bool,
    /// The Kill that is answered with what becomes of it.
    pub request: Option<RequestId>,
    pub why: Why,
}

impl Actor {
    pub(super) fn signal(&mut self, id: &ContainerId, order: SignalOrder) {
        if self.signal_unborn(id, order) {
            return;
        }
        let SignalOrder { signal, all, .. } = order;
        let Some(task) = self.tasks.get(id) else {
            return self.signalled(id, order, Err(CallError::not_found(id.as_str(), "")));
        };
        // What is under way for a container that is to be killed is of no use any more, whoever delivers
        // the signal and whether its init is still there; but what it is written to is kept whole.
        if signal == Signal::KILL && !self.core.is_being_cleaned_up(id) {
            task.handles.halt().call();
        }
        // With a PID namespace of its own everything in the container has died with its init.
        let has_exited = self.core.has_exited(id);
        let is_gone = has_exited && (!all || task.facts.has_own_pid_namespace);
        let Some(init) = task.handles.init().filter(|_| !is_gone) else {
            return self.signalled(id, order, Err(CallError::finished(id.as_str())));
        };
        // containerd sends SIGKILL to each task before it deletes it, also to one that has ended: that is no
        // part of how it ended.
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
            Killing::Done(killed) => signalled(self, id, killed),
            Killing::UnderWay(work) => {
                let stale = move |actor: &mut Actor, id: &ContainerId, killed| {
                    actor.signalled(id, order, named(killed, id.as_str()));
                };
                self.operate_or(id, Wanted::UntilDeleted, work, signalled, stale);
            }
        }
    }

    /// Answers the Kill that a signal belongs to, or logs its outcome.
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

/// What has become of a signal to the process that the caller knows by this name.
pub(super) fn named(killed: Result<(), EngineError>, name: &str) -> Result<(), CallError> {
    killed.map_err(|error| match error {
        EngineError::Gone(_) => CallError::finished(name),
        error => CallError::unknown(error),
    })
}
