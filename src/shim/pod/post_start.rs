//! Runs a container's postStart handler again after a restart in place. The shim repeats the exec
//! by which kubelet ran the handler after the first start.

use usher_core::lifecycle::{ActionError, ContainerId, Wanted};

use super::Actor;

impl Actor {
    /// Runs the handler, and reports the outcome to the core. `execution` is the core's number for
    /// this execution of the container's program. If the shim has not kept the handler, or the
    /// container has no process, reports success.
    pub(super) fn post_start(&mut self, id: ContainerId, execution: u64) {
        let task = self.tasks.get(&id);
        let kept = task.and_then(|task| {
            let init = task.handles.init_and_cancel_token().ok()?;
            Some((init, task.carryover.post_start()?.to_owned()))
        });
        let Some(((init, token), process)) = kept else {
            // The shim has not kept the exec of the handler. The container must not fail for this
            // reason.
            tracing::warn!(container = %id, "postStart handler unknown; not run again");
            let now = self.now();
            return self.core.handle_post_started(now, &id, execution, Ok(()));
        };
        let score = self.core.oom_score(&id);
        let run = async move { init.post_start(process, score, &token).await };
        let then = move |actor: &mut Actor, id: &ContainerId, outcome: Result<_, _>| {
            let now = actor.now();
            let outcome = outcome.map_err(ActionError::reported);
            actor.core.handle_post_started(now, id, execution, outcome);
        };
        self.operate(&id, Wanted::UntilReplaced, run, then);
    }
}
