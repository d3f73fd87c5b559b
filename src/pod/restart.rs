//! Restart in place: another process in the same container, as far as anybody can see.
//!
//! The OCI runtime knows no second life: the container is deleted there and created again, from the
//! same bundle, on the root file system that is still mounted, with the streams of the first.

use std::mem;
use std::sync::Arc;

use crate::caught::Panicked;
use crate::engine::{Born, LastLife};
use crate::lifecycle::{ContainerId, Wanted};

use super::Actor;

impl Actor {
    /// Begins the next life of a container whose process has ended.
    pub(super) fn restart(&mut self, id: &ContainerId, is_cleaned_up: bool) {
        let oom_score = self.score_for_bundle(id);
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        let last = LastLife {
            cgroup: task.handles.cgroup().cloned(),
            is_forgotten: is_cleaned_up,
            resources: task.lives.resources().cloned(),
            oom_score,
        };
        let (container, halt) = (task.container.clone(), task.handles.renew_halt());
        // What the caller wants of them meanwhile is asked of others in their place.
        let mut streams = mem::take(&mut task.init.streams);
        let work = async move {
            let created = container.create_again(last, &mut streams, &halt).await;
            Ok::<_, Panicked>((created, streams))
        };
        // Nothing of the last process matters from now on.
        self.operations.cancel_at_replacement(id);
        self.operate(
            id,
            Wanted::UntilReplaced,
            work,
            |actor, id, outcome| match outcome {
                Ok((created, streams)) => {
                    if let Some(task) = actor.tasks.get_mut(id) {
                        task.init.take_streams(streams);
                    }
                    actor.created_again(id, created.map_err(|error| error.to_string()));
                }
                Err(panicked) => actor.created_again(id, Err(panicked.to_string())),
            },
        );
    }

    /// The next life of a container is not to be: whatever of it is there ends, and whatever is under
    /// way for it.
    pub(super) fn halt(&mut self, id: &ContainerId) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        task.handles.halt().call();
        if task.handles.is_releasing() {
            task.handles.kill_init();
        }
    }

    /// The next init process of a container is parked, or could not be made.
    fn created_again(&mut self, id: &ContainerId, created: Result<Born, String>) {
        let born = match created {
            Ok(born) => born,
            Err(error) => return self.restarted(id, Err(error)),
        };
        let init = Arc::clone(&born.init);
        self.take_init(id, born);
        self.core.handle_created_again(id);
        self.watch_cgroup(id);
        self.execute(id, move |actor, id, outcome| {
            if outcome.is_err()
                && let Err(error) = init.end()
            {
                // It would be parked, and nobody would release it.
                tracing::debug!(container = %id, %error, "it has ended already");
            }
            actor.restarted(id, outcome);
        });
    }

    fn restarted(&mut self, id: &ContainerId, outcome: Result<(), String>) {
        self.core.handle_restarted(self.now(), id, outcome);
    }
}
