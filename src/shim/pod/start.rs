//! The Start call: the core decides when a container's program is executed, and this module
//! executes it.

use std::time::Duration;

use tokio::sync::oneshot;

use crate::calls::{CallError, Reply};
use crate::events;
use crate::record::What;
use crate::sizing::OwnCgroup;
use usher_core::lifecycle::{ActionError, ContainerId, RequestId, Wanted};
use usher_engine::{CancelToken, EngineError};

use super::Actor;
use super::operations::infallible;

impl Actor {
    /// Hands a Start to the core, which decides when the program is executed, and when the call is
    /// answered with the process id of the init. The answer can precede the execution.
    /// `call_timeout` is the time until the caller's deadline. `gone` completes when the caller
    /// stops waiting. The core then cancels a Start whose container still waits for its turn.
    pub fn start(
        &mut self,
        id: &str,
        call_timeout: Option<Duration>,
        gone: oneshot::Receiver<()>,
        reply: Reply<i32>,
    ) {
        match self.task_mut(id) {
            Ok(task) => task.init.connect_stdin(),
            Err(error) => return drop(reply.send(Err(error))),
        }
        let id = ContainerId::from(id);
        let request = self.callers.add_start(reply);
        self.core
            .handle_start(self.now(), &id, request, call_timeout);
        // No value is ever sent: the receiver ends when the sender is dropped.
        self.spawn(infallible(gone), move |actor, _| {
            actor.callers.remove_start(request);
            actor.core.handle_start_abandoned(actor.now(), &id, request);
        });
    }

    pub(super) fn answer_start(
        &mut self,
        id: &ContainerId,
        request: RequestId,
        answer: Result<(), CallError>,
    ) {
        let answer = match (answer, self.tasks.get_mut(id)) {
            (Err(error), _) => Err(error),
            (Ok(()), None) => Err(CallError::not_found(id.as_str(), "")),
            (Ok(()), Some(task)) => {
                let pid = task.init.pid;
                self.node.publish(events::task::started(id, pid));
                Ok(pid)
            }
        };
        self.callers.answer_start(request, answer);
    }

    pub(super) fn release(&mut self, id: &ContainerId) {
        if self.core.is_to_be_restored(id) {
            return self.restore(id);
        }
        self.execute(id, |actor, id, outcome| {
            actor.core.handle_released(actor.now(), id, outcome);
        });
    }

    /// Releases an init process, which then executes the container's program. Calls `then` with the
    /// outcome, unless the process is replaced or the task is deleted first.
    pub(super) fn execute(
        &mut self,
        id: &ContainerId,
        then: impl FnOnce(&mut Actor, &ContainerId, Result<(), ActionError>) + Send + 'static,
    ) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        let Some(init) = task.handles.init().cloned() else {
            return then(self, id, Err(ActionError::NoInitProcess));
        };
        let (mut gone, token) = (
            task.handles.begin_release(),
            task.handles.cancel_token().clone(),
        );
        let raised = self.pod_cgroup.as_ref().and_then(OwnCgroup::memory_raised);
        let release = async move {
            if let Some(raised) = raised {
                wait_for(raised, &mut gone, &token).await?;
            }
            init.release(gone, &token).await
        };
        let released = move |actor: &mut Actor, id: &ContainerId, outcome: Result<_, _>| {
            if let Some(task) = actor.tasks.get_mut(id) {
                task.handles.end_release();
            }
            if outcome.is_ok() {
                actor.record.note(actor.now(), id, What::Executed);
            }
            then(actor, id, outcome.map_err(ActionError::reported));
        };
        self.operate(id, Wanted::UntilReplaced, release, released);
    }
}

/// Waits for the end of the time in which systemd may write a memory limit that is too low for the
/// program. Also returns if `token` is canceled: the release then ends as a canceled one does.
///
/// # Errors
///
/// [`EngineError::Gone`] if the init process exits.
async fn wait_for(
    raised: impl Future<Output = ()>,
    gone: &mut oneshot::Receiver<()>,
    token: &CancelToken,
) -> Result<(), EngineError> {
    tokio::select! {
        biased;
        () = raised => Ok(()),
        () = token.canceled() => Ok(()),
        _ = gone => Err(EngineError::init_gone()),
    }
}
