//! The Update call: changes a container's resources, one call at a time.
//!
//! A failed Update restores the size that the container had before. So each Update begins only when
//! all earlier Updates are over. An Update that raises a container's memory limit also waits while
//! the pod's limit is being lowered. Otherwise the container could get a higher limit than its pod.

use std::collections::VecDeque;

use usher_core::lifecycle::{Call, ContainerId, Wanted};
use usher_core::sizing::Size;
use usher_engine::{EngineError, Resources};

use super::{Actor, CallError, Kind, Reply};

/// Maximum number of Updates of one task that wait.
const WAIT_AT_MOST: usize = 64;

/// The Updates of a task.
#[derive(Debug, Default)]
pub(super) struct Updates {
    is_under_way: bool,
    waiting: VecDeque<Update>,
}

/// A change of a task's resources.
#[derive(Debug)]
struct Update {
    /// The OCI specification's `LinuxResources` as JSON.
    resources: Vec<u8>,
    reply: Reply<()>,
}

impl Updates {
    /// Refuses the Updates that wait, because their task is gone.
    pub fn refuse(&mut self, why: &CallError) {
        for update in self.waiting.drain(..) {
            let _ = update.reply.send(Err(why.clone()));
        }
    }

    /// Queues an Update behind the earlier Updates.
    fn queue(&mut self, id: &str, update: Update) {
        // Drop the Updates whose caller no longer waits.
        self.waiting.retain(|waiting| !waiting.reply.is_closed());
        if self.waiting.len() < WAIT_AT_MOST {
            return self.waiting.push_back(update);
        }
        let message = format!("cannot update task {id}: {WAIT_AT_MOST} updates wait already");
        let refusal = CallError::new(Kind::FailedPrecondition, message);
        let _ = update.reply.send(Err(refusal));
    }

    /// Takes the next Update whose caller still waits.
    fn next(&mut self) -> Option<Update> {
        self.waiting.retain(|waiting| !waiting.reply.is_closed());
        self.waiting.pop_front()
    }
}

impl Actor {
    /// Changes a container's resources: the OCI specification's `LinuxResources` as JSON.
    pub fn update(&mut self, id: &str, resources: Vec<u8>, reply: Reply<()>) {
        let task = match self.task_mut(id) {
            Err(error) => return drop(reply.send(Err(error))),
            Ok(task) => task,
        };
        task.updates.queue(id, Update { resources, reply });
        self.begin_updates(&ContainerId::from(id));
    }

    /// Begins the Updates that wait for the end of a change of the pod's memory limit.
    pub(super) fn begin_all_updates(&mut self) {
        let ids: Vec<_> = self.tasks.keys().cloned().collect();
        for id in ids {
            self.begin_updates(&id);
        }
    }

    /// Carries out a task's Updates in their order, until one of them is under way or has to wait.
    fn begin_updates(&mut self, id: &ContainerId) {
        while !self.is_raise_too_early(id)
            && let Some(task) = self.tasks.get_mut(id)
            && !task.updates.is_under_way
            && let Some(update) = task.updates.next()
        {
            self.begin_update(id, update);
        }
    }

    /// True if a task's next Update raises the container's memory limit while the pod's limit is
    /// being lowered.
    fn is_raise_too_early(&self, id: &ContainerId) -> bool {
        if !self.is_lowering_memory() {
            return false;
        }
        let next = self
            .tasks
            .get(id)
            .and_then(|task| task.updates.waiting.front());
        next.is_some_and(|update| {
            let (before, after) = self.change_of_size(id, &update.resources);
            after.limits.memory > before.limits.memory
        })
    }

    /// Begins an Update. An Update that needs no call of the engine is over at once.
    fn begin_update(&mut self, id: &ContainerId, update: Update) {
        let Update { resources, reply } = update;
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        if let Err(error) = self.core.allows(id, Call::Update) {
            return drop(reply.send(Err(error.into())));
        }
        if self.core.is_between_processes(id) {
            task.carryover.keep_resources(&resources);
            let (_, after) = self.change_of_size(id, &resources);
            self.resize_container(id, after);
            return drop(reply.send(Ok(())));
        }
        let (init, token) = match task.handles.init_and_cancel_token() {
            Ok(living) => living,
            Err(error) => return drop(reply.send(Err(error))),
        };
        task.updates.is_under_way = true;
        // Raise the pod's limits before the container's, and lower them after the container's.
        let (before, after) = self.change_of_size(id, &resources);
        self.resize_container(id, before.or(after));
        let update = async move {
            let updated = init.update(&resources, &token).await;
            updated.map(|()| resources)
        };
        let then = move |actor: &mut Actor, id: &ContainerId, outcome, reply| {
            actor.updated(id, (before, after), outcome, reply);
        };
        self.operate_for(id, Wanted::UntilDeleted, reply.into(), update, then);
    }

    /// Ends an Update, and begins the next one.
    fn updated(
        &mut self,
        id: &ContainerId,
        (before, after): (Size, Size),
        outcome: Result<Vec<u8>, EngineError>,
        reply: Reply<()>,
    ) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        task.updates.is_under_way = false;
        if let Ok(resources) = &outcome
            && task.carryover.first_pid().is_some()
        {
            task.carryover.keep_resources(resources);
        }
        let size = if outcome.is_ok() { after } else { before };
        self.core.handle_resized(id, size);
        self.settle_size_now(true);
        let _ = reply.send(outcome.map(drop).map_err(CallError::unknown));
        self.begin_updates(id);
    }

    /// The size of a container before and after an Update.
    fn change_of_size(&self, id: &ContainerId, resources: &[u8]) -> (Size, Size) {
        let before = self.core.size_of(id).unwrap_or_default();
        (before, Resources::parse(resources).change(before))
    }

    /// Sizes the pod for a container with this new size.
    fn resize_container(&mut self, id: &ContainerId, size: Size) {
        self.core.handle_resized(id, size);
        self.settle_size();
    }
}
