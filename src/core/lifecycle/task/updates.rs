//! Updates: changes of a container's resources, one at a time.
//!
//! A failed Update restores the size that the container had before. So each Update begins only when
//! all earlier Updates of its container are over. An Update that raises a container's memory limit
//! also waits while the pod's limit is being lowered. Otherwise the container could get a higher
//! limit than its pod.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::lifecycle::Pod;
use crate::lifecycle::action::{Action, ContainerId, Refusal, RequestId};
use crate::lifecycle::effects::ContainerContext;
use crate::lifecycle::rules::{Decision, Due, Subject};
use crate::lifecycle::time::Time;
use crate::sizing::{Size, SizeChange};

use super::Call;

/// Maximum number of Updates of one container that wait.
pub const UPDATES_AT_MOST: usize = 64;

/// The Updates of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(in crate::lifecycle) struct Updates {
    under_way: Option<UnderWay>,
    waiting: VecDeque<Update>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Update {
    request: RequestId,
    change: SizeChange,
}

/// An Update under way. If it succeeds, the container's size changes from `before` to `after`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct UnderWay {
    before: Size,
    after: Size,
}

impl Updates {
    /// The requests of the Updates that have not begun.
    pub fn waiting(&self) -> impl Iterator<Item = RequestId> {
        self.waiting.iter().map(|update| update.request)
    }
}

impl Pod {
    /// Queues an Update call of the caller, which changes the container's size as `change` says.
    /// When its turn comes, the driver gets [`Action::Update`]. If the container's state then
    /// allows no Update, the driver gets [`Action::RefuseUpdate`].
    ///
    /// # Errors
    ///
    /// [`Refusal::NotFound`], and [`Refusal::TooManyUpdates`].
    pub fn handle_update(
        &mut self,
        now: Time,
        id: &ContainerId,
        request: RequestId,
        change: SizeChange,
    ) -> Result<(), Refusal> {
        self.now = now;
        let is_full = self.task(id)?.updates.waiting.len() >= UPDATES_AT_MOST;
        if is_full {
            return Err(Refusal::TooManyUpdates { id: id.clone() });
        }
        self.with_container(id, |context| {
            let update = Update { request, change };
            context.container.updates.waiting.push_back(update);
        });
        self.settle(now);
        Ok(())
    }

    /// Drops an Update that has not begun, because its caller is gone. An Update under way goes on.
    pub fn handle_update_abandoned(&mut self, request: RequestId) {
        for container in self.containers.values_mut() {
            let waiting = &mut container.updates.waiting;
            waiting.retain(|update| update.request != request);
        }
    }

    /// Records the end of the container's Update under way. During the Update, the larger of both
    /// sizes counted. Now the new size counts if the Update `is_done`, otherwise the old one. The
    /// container's next Update may then begin.
    pub fn handle_updated(&mut self, now: Time, id: &ContainerId, is_done: bool) {
        self.now = now;
        self.with_container(id, |context| {
            if let Some(update) = context.container.updates.under_way.take() {
                context.resize(match is_done {
                    true => update.after,
                    false => update.before,
                });
            }
        });
        self.settle(now);
    }

    /// Records whether the driver is lowering the pod's memory limit, which may take long.
    /// Meanwhile, Updates that raise a container's memory limit wait.
    pub fn handle_memory_lowering(&mut self, now: Time, is_under_way: bool) {
        let was_under_way = std::mem::replace(&mut self.is_lowering_memory, is_under_way);
        // The pod's limit is lowered, so Updates that waited for this may begin.
        if was_under_way && !is_under_way {
            self.settle(now);
        }
    }
}

impl Subject<'_> {
    /// Rule: an Update begins when all earlier Updates of its container are over. An Update that
    /// raises the container's memory limit also waits while the pod's limit is being lowered.
    pub(in crate::lifecycle) fn update_begins(&self) -> Option<Due<Decision>> {
        let updates = &self.container.updates;
        let next = updates.waiting.front()?;
        let before = self.container.demands.size;
        let raises = before.changed(next.change).limits.memory > before.limits.memory;
        let waits = updates.under_way.is_some() || raises && self.pod.is_lowering_memory;
        (!waits).then_some(Due::Now(Decision::BeginUpdate))
    }
}

impl ContainerContext<'_> {
    pub(in crate::lifecycle) fn begin_update(&mut self) {
        let Some(update) = self.container.updates.waiting.pop_front() else {
            return;
        };
        let (id, request) = (self.id.clone(), update.request);
        if let Err(refusal) = self.container.allows(&id, Call::Update) {
            return self.out.push(Action::RefuseUpdate { request, refusal });
        }
        let before = self.container.demands.size;
        let after = before.changed(update.change);
        let for_next_process = self.container.is_between_processes();
        // The pod's limits are raised before the container's, and lowered after them. So during the
        // Update, the larger of both sizes counts.
        self.resize(match for_next_process {
            true => after,
            false => before.or(after),
        });
        if !for_next_process {
            self.container.updates.under_way = Some(UnderWay { before, after });
        }
        self.out.push(Action::Update {
            id,
            request,
            for_next_process,
        });
    }
}
