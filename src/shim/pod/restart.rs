//! Restart in place: a new process in the same task, which containerd does not notice.
//!
//! An OCI runtime cannot restart a container. So the shim has the runtime delete the container and
//! create it again from the same bundle, on the root file system that is still mounted, with the
//! same streams.

use std::mem;
use std::sync::Arc;

use crate::task_table::outcome::kill_init;
use usher_core::lifecycle::{ActionError, ContainerId, Wanted};
use usher_engine::{EngineError, NewInit, Panicked, PreviousInit};
use usher_linux::stdio::Streams;

use super::Actor;
use super::operations::infallible;

/// The outcome of a creation for a restart in place, and the task's streams.
type CreatedAgain = (Result<NewInit, EngineError>, Streams);

impl Actor {
    /// Begins the restart in place of a container whose process has exited, as the core has
    /// decided. `is_cleaned_up` is true if the OCI runtime has deleted the container already.
    pub(super) fn restart(&mut self, id: &ContainerId, is_cleaned_up: bool) {
        let oom_score = self.score_for_bundle(id);
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        let last = PreviousInit {
            cgroup: task.handles.cgroup().cloned(),
            is_forgotten: is_cleaned_up,
            resources: task.carryover.resources().cloned(),
            oom_score,
        };
        let (container, token) = (task.container.clone(), task.handles.renew_cancel_token());
        // Until the new process exists, stand-ins remember the caller's requests about the streams.
        let mut streams = mem::take(&mut task.init.streams);
        let work = async move {
            let created = container.create_again(last, &mut streams, &token).await;
            (created, streams)
        };
        // From now on, outcomes of work for the exited process are stale, because the next process
        // replaces it.
        self.operations.cancel_at_replacement(id);
        self.operate(
            id,
            Wanted::UntilReplaced,
            infallible(work),
            Actor::finish_recreate,
        );
    }

    /// Cancels a restart in place that is under way: cancels the engine's calls for it, and kills
    /// the new process if it exists. The core then gets the report of a failed restart.
    pub(super) fn cancel_restart(&mut self, id: &ContainerId) {
        if let Some(task) = self.tasks.get(id) {
            task.handles.cancel_token().cancel();
            if task.handles.is_releasing() {
                task.handles.kill_init();
            }
        }
    }

    /// Handles the outcome of a creation for a restart in place. Gives the task its streams back;
    /// if the creation has panicked, they are lost. Reports a failed creation to the core. After a
    /// successful creation, executes the program in the new init process, and reports to the core
    /// whether this has succeeded.
    fn finish_recreate(&mut self, id: &ContainerId, outcome: Result<CreatedAgain, Panicked>) {
        let created = outcome.map_err(EngineError::from);
        let created = created.and_then(|(created, streams)| {
            if let Some(task) = self.tasks.get_mut(id) {
                task.init.set_streams(streams);
            }
            created
        });
        let new_init = match created.map_err(ActionError::reported) {
            Ok(new_init) => new_init,
            Err(error) => return self.core.handle_restarted(self.now(), id, Err(error)),
        };
        let init = Arc::clone(&new_init.init);
        self.take_init(id, new_init);
        self.core.handle_created_again(id);
        self.watch_cgroup(id);
        self.execute(id, move |actor, id, outcome| {
            if outcome.is_err() {
                // Kill the new process. It still waits to execute the program, and nothing will
                // release it.
                kill_init(&*init);
            }
            actor.core.handle_restarted(actor.now(), id, outcome);
        });
    }
}
