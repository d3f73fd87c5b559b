//! The delivery of signals to a container's processes.
//!
//! A container that is created from a checkpoint has no process at first. While the process is
//! being restored, signals wait for it.

use serde::{Deserialize, Serialize};

use crate::lifecycle::Pod;
use crate::lifecycle::action::{
    Action, ActionError, ContainerId, Refusal, RequestId, SignalReason,
};
use crate::lifecycle::effects::ContainerContext;
use crate::lifecycle::time::Time;
use crate::plan::Signal;
use crate::process::ExitStatus;

/// Maximum number of signals that wait for a container's process. A further signal is dropped, and
/// its Kill call is refused.
const WAIT_AT_MOST: usize = 64;

/// A signal to deliver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SignalOrder {
    pub signal: Signal,
    /// True if all processes of the container get the signal, not only its init.
    pub all: bool,
    /// The Kill call that gets the outcome as its answer. `None` if no call waits for the outcome,
    /// for example if the shim itself sends the signal.
    pub request: Option<RequestId>,
    pub why: SignalReason,
}

impl Pod {
    /// Records the outcome of a container's restore from its checkpoint, which is also the outcome
    /// of its [`Action::Release`]. After a success, delivers the signals that have waited for the
    /// process. After a failure, there is no process to signal, so Kill calls that wait are
    /// refused. If the shim itself has decided on a SIGKILL, an exit by SIGKILL is reported.
    pub fn handle_restored(
        &mut self,
        now: Time,
        id: &ContainerId,
        outcome: Result<(), ActionError>,
    ) {
        self.now = now;
        self.with_container(id, |context| {
            context.container.state.finish_restore(outcome.is_ok());
            for order in std::mem::take(&mut context.container.pending_signals) {
                context.deliver(order);
            }
        });
        self.handle_released(now, id, outcome);
    }
}

impl ContainerContext<'_> {
    /// Lets the driver deliver a signal. Refuses the signal's Kill call if no process can get the
    /// signal. While the process is being restored, the signal waits. SIGKILL also cancels all
    /// other work for the container.
    pub(in crate::lifecycle) fn deliver(&mut self, order: SignalOrder) {
        if self.container.state.has_no_process_yet() {
            return self.deliver_without_process(order);
        }
        // After SIGKILL all other work for the container is useless, even if its init process has
        // already exited. While a cleanup is under way, nothing is canceled: the cleanup must write
        // its state completely.
        if order.signal == Signal::KILL && !self.container.is_cleanup_under_way() {
            self.cancel_work();
        }
        // If the container has its own PID namespace, all its processes died with its init.
        let has_rest = order.all && !self.container.bundle.has_own_pid_namespace;
        let id = self.id.clone();
        match self.container.state.has_exited() && !has_rest {
            true => self.refuse_signal(order, Refusal::Finished { id }),
            false => self.out.push(Action::Signal { id, order }),
        }
    }

    fn deliver_without_process(&mut self, order: SignalOrder) {
        let (id, is_kill) = (self.id.clone(), order.signal == Signal::KILL);
        if !self.container.state.is_being_restored() {
            match order.request {
                // There is no process to kill, so the driver only reports an exit by SIGKILL. Two
                // SIGKILLs may have waited for a restore that failed, but the exit is reported only
                // once.
                None if is_kill => {
                    let status = ExitStatus::Signal(order.signal.number());
                    let exit = Action::ExitUnrestored { id, status };
                    if !self.out.iter().any(|action| *action == exit) {
                        self.out.push(exit);
                    }
                }
                _ => self.refuse_signal(order, Refusal::NotRestored { id }),
            }
            return;
        }
        if self.container.pending_signals.len() >= WAIT_AT_MOST {
            return self.refuse_signal(order, Refusal::NotRestored { id });
        }
        self.container.pending_signals.push(order);
        if is_kill {
            self.cancel_work();
        }
    }

    fn refuse_signal(&mut self, order: SignalOrder, refusal: Refusal) {
        if let Some(request) = order.request {
            let answer = Err(refusal);
            self.out.push(Action::AnswerKill { request, answer });
        }
    }

    fn cancel_work(&mut self) {
        let id = self.id.clone();
        self.out.push(Action::CancelWork { id });
    }
}
