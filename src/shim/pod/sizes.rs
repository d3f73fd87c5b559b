//! Gives the pod's cgroup the size that the core wants. A value is raised at once, and lowered when
//! the lower value harms no container.

use std::io;

use tokio::time::sleep;

use crate::sizing::{OwnCgroup, SizeWork};
use usher_core::lifecycle::{ContainerId, PodSize};
use usher_engine::EngineError;

use super::Actor;
use super::operations::infallible;

impl Actor {
    /// Finds the pod's cgroup through the init process of container `id`, and reads its values if
    /// the shim may size it. Called for each new init process. Does nothing if the cgroup is known,
    /// or if usher keeps no order in this pod.
    pub(super) fn find_pod_cgroup(&mut self, id: &ContainerId) {
        if self.pod_cgroup.is_some() || !self.core.has_orders() {
            return;
        }
        let Some(task) = self.tasks.get(id) else {
            return;
        };
        let init = task.handles.init();
        let cgroup = init.and_then(|init| init.pod_cgroup(&self.meta.identity().uid));
        let is_ours = self.core.may_be_sized();
        let allotment = Some(&task.facts.allotment).filter(|_| is_ours);
        self.pod_cgroup = cgroup.map(|cgroup| OwnCgroup::new(cgroup, allotment));
    }

    /// Gives the pod's cgroup the size that the core wants now, if that size has changed. Called
    /// before the core's actions are carried out. Forgets the cgroup of a pod without containers.
    pub(super) fn settle_size(&mut self) {
        if let Some(cgroup) = &self.pod_cgroup
            && cgroup.is_outdated(|| self.core.pod_size())
        {
            self.settle_new_size();
        }
        self.let_go_of_pod_cgroup();
    }

    /// Gives the pod's cgroup the size that the core wants now, even if that size is unchanged,
    /// because kubelet resizes the pod. Does so several times, because kubelet may write other
    /// values afterwards.
    pub(super) fn settle_resize(&mut self) {
        if let Some(cgroup) = &mut self.pod_cgroup {
            cgroup.note_resize();
        }
        self.settle_new_size();
    }

    /// Gives the pod's cgroup the size that the core wants now. If a value cannot be set yet, tries
    /// again after the shortest pause.
    fn settle_new_size(&mut self) {
        if let Some(cgroup) = &mut self.pod_cgroup {
            cgroup.reset_pause();
        }
        self.settle_size_now();
    }

    /// Gives the pod's cgroup the size that the core wants now, even if that size is unchanged.
    /// Does not shorten the pause before the next retry.
    fn settle_size_now(&mut self) {
        let wanted = self.core.pod_size();
        let charged = wanted.as_ref().map_or(0, |wanted| self.memory_of(wanted));
        let noted_with = self.core.container_for_note();
        let note_bundle = noted_with.and_then(|id| Some(self.tasks.get(id)?.bundle.clone()));
        let Some(cgroup) = &mut self.pod_cgroup else {
            return;
        };
        let Some(work) = cgroup.settle(wanted, charged, note_bundle) else {
            return;
        };
        let is_lowering = cgroup.is_lowering_memory();
        self.begin_size_work(work);
        self.core.handle_memory_lowering(self.now(), is_lowering);
    }

    fn begin_size_work(&self, work: SizeWork) {
        let SizeWork {
            cgroup,
            retry_after,
            memory,
            news,
        } = work;
        if let Some((after, id)) = retry_after {
            self.spawn(infallible(sleep(after)), move |actor, _| {
                let cgroup = actor.pod_cgroup.as_mut();
                if cgroup.is_some_and(|cgroup| cgroup.begin_retry(id)) {
                    actor.settle_size_now();
                }
            });
        }
        if let Some(bytes) = memory {
            let cgroup = cgroup.clone();
            let lowered = async move { cgroup.lower_memory(bytes).await };
            self.spawn(lowered, |actor, lowered: io::Result<()>| {
                actor.note_size_work(|cgroup| cgroup.note_lowered(lowered));
                actor.let_go_of_pod_cgroup();
            });
        }
        if let Some(news) = news {
            let notified = async move { cgroup.notify_manager(news).await };
            self.spawn(notified, |actor, notified: Result<(), EngineError>| {
                actor.note_size_work(|cgroup| cgroup.note_notified(notified));
            });
        }
    }

    /// Calls `note`, which records that a piece of work for the cgroup's size has ended. Then gives
    /// the cgroup the wanted size again, because this size may have changed meanwhile.
    fn note_size_work(&mut self, note: impl FnOnce(&mut OwnCgroup)) {
        if let Some(cgroup) = &mut self.pod_cgroup {
            note(cgroup);
        }
        self.settle_size_now();
    }

    /// Forgets the pod's cgroup if the pod has no container left, unless the cgroup's memory limit
    /// is being lowered.
    fn let_go_of_pod_cgroup(&mut self) {
        if self.tasks.is_empty() {
            self.pod_cgroup
                .take_if(|cgroup| !cgroup.is_lowering_memory());
        }
    }

    /// Bytes of memory charged to the containers in `size`.
    fn memory_of(&self, size: &PodSize) -> u64 {
        let ids = size.counted.iter().chain(&size.held);
        let usage = ids.filter_map(|id| self.tasks.get(id)?.handles.cgroup()?.memory_usage());
        usage.fold(0, u64::saturating_add)
    }
}
