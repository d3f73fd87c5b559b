//! Update: changes a container's resources, one call at a time.
//!
//! An Update that fails restores the size that the container had before. That is the size after all
//! earlier Updates only if they are over, so each Update waits for the one before.

use std::collections::VecDeque;

use crate::engine::{EngineError, Resources};
use crate::lifecycle::{Call, ContainerId, Wanted};
use crate::sizing::Size;

use super::{Actor, CallError, Kind, Reply};

/// Updates of one task that may wait.
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

    /// Queues an Update behind the earlier ones.
    fn put_off(&mut self, id: &str, update: Update) {
        // An Update whose caller has given up is dropped.
        self.waiting.retain(|waiting| !waiting.reply.is_closed());
        if self.waiting.len() < WAIT_AT_MOST {
            return self.waiting.push_back(update);
        }
        let message = format!("cannot update task {id}: {WAIT_AT_MOST} updates wait already");
        let refusal = CallError::new(Kind::FailedPrecondition, message);
        let _ = update.reply.send(Err(refusal));
    }

    /// Takes the next Update that still has a caller.
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
        let update = Update { resources, reply };
        match task.updates.is_under_way {
            true => task.updates.put_off(id, update),
            false => self.begin_updates(&ContainerId::from(id), update),
        }
    }

    /// Carries out an Update, then those that wait behind it.
    fn begin_updates(&mut self, id: &ContainerId, update: Update) {
        let mut next = Some(update);
        while let Some(update) = next {
            if self.begin_update(id, update) {
                return;
            }
            let task = self.tasks.get_mut(id);
            next = task.and_then(|task| task.updates.next());
        }
    }

    /// Carries out an Update. Returns true while it is under way, false if it is over.
    fn begin_update(&mut self, id: &ContainerId, update: Update) -> bool {
        let Update { resources, reply } = update;
        let Some(task) = self.tasks.get_mut(id) else {
            return false;
        };
        if let Err(error) = self.core.allows(id, Call::Update) {
            let _ = reply.send(Err(error.into()));
            return false;
        }
        if self.core.is_between_processes(id) {
            task.carryover.keep_resources(&resources);
            let (_, after) = self.change_of_size(id, &resources);
            self.resize_container(id, after);
            let _ = reply.send(Ok(()));
            return false;
        }
        let (init, token) = match task.handles.init_and_cancel_token() {
            Ok(living) => living,
            Err(error) => {
                let _ = reply.send(Err(error));
                return false;
            }
        };
        task.updates.is_under_way = true;
        // Raise the pod before the container, and lower it after.
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
        true
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
        let task = self.tasks.get_mut(id);
        if let Some(next) = task.and_then(|task| task.updates.next()) {
            self.begin_updates(id, next);
        }
    }

    /// The size of a container before and after an Update.
    fn change_of_size(&self, id: &ContainerId, resources: &[u8]) -> (Size, Size) {
        let before = self.core.size_of(id).unwrap_or_default();
        (before, Resources::parse(resources).change(before))
    }

    /// Sizes the pod for a container of this size.
    fn resize_container(&mut self, id: &ContainerId, size: Size) {
        self.core.handle_resized(id, size);
        self.settle_size();
    }
}
