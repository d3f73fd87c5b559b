//! Restart in place: another process in the same container, as far as anybody can see.
//!
//! The OCI runtime knows no second life: the container is deleted there and created again, from the
//! same bundle, on the root file system that is still mounted, with the streams of the first.

use std::sync::Arc;

use crate::caught::Panicked;
use crate::engine::{Born, Halt, LastLife};
use crate::lifecycle::ContainerId;
use crate::stdio::Streams;

use super::Actor;
use super::life::Remains;

impl Actor {
    /// Begins the next life of a container whose process has ended.
    pub(super) fn restart(&mut self, id: &ContainerId) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        if !task.lives.next_is_wanted(task.life.remains()) {
            return;
        }
        task.halt = Halt::default();
        let (container, halt) = (task.container.clone(), task.halt.clone());
        let mut last = LastLife {
            cgroup: task.cgroup.clone(),
            is_forgotten: task.life.remains() == Remains::Gone,
            resources: task.lives.resources().cloned(),
            oom_score: None,
        };
        last.oom_score = self.score_for_bundle(id);
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        // The engine may know something of it again, whatever comes of this.
        task.life.leaves(Remains::All);
        // What the caller wants of them meanwhile is asked of others in their place.
        let streams = task.init.streams.replace(Streams::default());
        let mut streams = streams.unwrap_or_default();
        let work = async move {
            let created = container.create_again(last, &mut streams, &halt).await;
            Ok::<_, Panicked>((streams, created))
        };
        let id = id.clone();
        self.job(work, move |actor, outcome| match outcome {
            Ok((mut streams, created)) => {
                if let Some(task) = actor.tasks.get_mut(&id) {
                    streams.catch_up(task.init.streams.take());
                    task.init.streams = Some(streams);
                }
                actor.created_again(&id, created.map_err(|error| error.to_string()));
            }
            Err(panicked) => actor.created_again(&id, Err(panicked.to_string())),
        });
    }

    /// The next life of a container is not to be: whatever of it is there ends, and whatever is under
    /// way for it.
    pub(super) fn halt(&mut self, id: &ContainerId) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        task.halt.call();
        if task.lives.next_is_unwanted() {
            return self.restarted(id, Err("it is not wanted any more".to_owned()));
        }
        if let Some(task) = self.tasks.get(id)
            && task.releasing.is_some()
        {
            task.end_init();
        }
    }

    /// The next init process of a container is parked, or could not be made.
    fn created_again(&mut self, id: &ContainerId, created: Result<Born, String>) {
        let born = match created {
            Ok(born) => born,
            Err(error) => return self.restarted(id, Err(error)),
        };
        let Some(task) = self.tasks.get_mut(id) else {
            return self.restarted(id, Ok(()));
        };
        task.last_figures = None;
        task.life.leaves(Remains::All);
        let init = Arc::clone(&born.init);
        self.born(id, born);
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
