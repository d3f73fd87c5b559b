//! Gives the pod's cgroup the size that the core wants. A value is raised at once, and lowered when
//! the lower value harms no container.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::time::sleep;

use usher_core::lifecycle::{ContainerId, PodSize};
use usher_engine::Panicked;
use usher_engine::{Place, PodCgroup};

use crate::sizing::{Sizing, TRY_AGAIN_AFTER, TRY_AGAIN_AFTER_AT_MOST};

use super::Actor;

/// A cgroup that belongs to this pod alone. The shim's commands for the pod run there.
#[derive(Debug)]
pub(super) struct OwnCgroup {
    cgroup: Arc<dyn PodCgroup>,
    /// The cgroup's values; `None` if the shim may not size the cgroup.
    sizing: Option<Sizing>,
}

impl Actor {
    /// Finds the pod's cgroup, and reads its values, through the init process of container `id`.
    /// Called for each new init process. Does nothing if the cgroup is known, or if usher orders no
    /// container of the pod.
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
        self.pod_cgroup = cgroup.map(|cgroup| OwnCgroup {
            sizing: is_ours.then(|| Sizing::new(&*cgroup, &task.facts.allotment)),
            cgroup,
        });
    }

    /// Gives the pod's cgroup the size that the core wants now.
    pub(super) fn settle_size(&mut self) {
        if self
            .sizing()
            .is_some_and(|sizing| sizing.last.as_ref() != Some(&self.core.pod_size()))
        {
            self.settle_size_now(true);
        }
        self.let_go_of_pod_cgroup();
    }

    /// Forgets the pod's cgroup when the pod has no container left.
    fn let_go_of_pod_cgroup(&mut self) {
        if self.tasks.is_empty() && !self.is_lowering_memory() {
            self.pod_cgroup = None;
        }
    }

    /// Gives the pod's cgroup the size that the core wants now, even if that size is unchanged.
    pub(super) fn settle_size_now(&mut self, is_new: bool) {
        let wanted = self.core.pod_size();
        let charged = wanted.as_ref().map(|wanted| self.memory_of(wanted));
        let keeper = self.keeper();
        let Some((cgroup, sizing)) = self.pod_cgroup.as_mut().and_then(OwnCgroup::sized) else {
            return;
        };
        let left = sizing.settle(&**cgroup, wanted.as_ref(), charged.unwrap_or_default());
        sizing.last = Some(wanted);
        sizing.take_notes(&**cgroup, keeper);
        if is_new {
            sizing.try_again_after = TRY_AGAIN_AFTER;
        }
        let cgroup = Arc::clone(cgroup);
        let is_due = left.is_due && !sizing.is_due;
        if is_due {
            sizing.is_due = true;
            let after = sizing.try_again_after;
            sizing.try_again_after = after.saturating_mul(2).min(TRY_AGAIN_AFTER_AT_MOST);
            let wait = async move {
                sleep(after).await;
                Ok::<_, Panicked>(())
            };
            self.spawn(wait, |actor, _| {
                if let Some(sizing) = actor.sizing_mut() {
                    sizing.is_due = false;
                }
                actor.settle_size_now(false);
            });
        }
        if let Some(bytes) = left.memory {
            let lowered = async move { cgroup.lower_memory(bytes).await };
            self.spawn(lowered, Actor::memory_lowered);
        }
        self.notify_manager();
        let is_lowering = self.is_lowering_memory();
        self.core.handle_memory_lowering(self.now(), is_lowering);
    }

    /// Handles the outcome of lowering a memory limit. The wanted size may have changed meanwhile.
    fn memory_lowered(&mut self, lowered: io::Result<()>) {
        if let Some((cgroup, sizing)) = self.pod_cgroup.as_mut().and_then(OwnCgroup::sized) {
            sizing.lowered(&**cgroup, lowered);
        }
        self.settle_size_now(false);
        self.let_go_of_pod_cgroup();
    }

    /// True while the pod's memory limit is being lowered.
    pub(super) fn is_lowering_memory(&self) -> bool {
        self.sizing().is_some_and(Sizing::is_lowering)
    }

    /// Returns the bundle in which the original values of the pod's cgroup are recorded. If the
    /// shim dies, containerd runs `delete` for this bundle. The shim chooses the sandbox's bundle
    /// if there is a sandbox: since 2.0, containerd runs `delete` only for the sandbox.
    fn keeper(&self) -> Option<PathBuf> {
        let sandbox = self.tasks.iter().find(|(id, _)| self.core.is_sandbox(id));
        let sandbox = sandbox.map(|(_, task)| task);
        let living = || {
            let mut tasks = self.tasks.iter();
            let living = tasks.find(|(id, _)| !self.core.has_exited(id));
            living.map(|(_, task)| task)
        };
        let any = || self.tasks.values().next();
        let keeper = sandbox.or_else(living).or_else(any)?;
        Some(keeper.bundle.clone())
    }

    fn sizing(&self) -> Option<&Sizing> {
        self.pod_cgroup.as_ref()?.sizing.as_ref()
    }

    fn sizing_mut(&mut self) -> Option<&mut Sizing> {
        self.pod_cgroup.as_mut()?.sizing.as_mut()
    }

    /// Bytes of memory charged to the containers that the size includes.
    fn memory_of(&self, size: &PodSize) -> u64 {
        let ids = size.counted.iter().chain(&size.held);
        let usage = ids.filter_map(|id| self.tasks.get(id)?.handles.cgroup()?.memory_usage());
        usage.fold(0, u64::saturating_add)
    }

    /// Tells systemd the current values if it manages the cgroup. systemd would reset values that
    /// it does not know at its next daemon-reload.
    fn notify_manager(&mut self) {
        let Some(OwnCgroup { cgroup, sizing }) = &mut self.pod_cgroup else {
            return;
        };
        let Some(news) = sizing.as_mut().and_then(|sizing| sizing.news(&**cgroup)) else {
            return;
        };
        let cgroup = Arc::clone(cgroup);
        let notified = async move { cgroup.notify_manager(news).await };
        self.spawn(notified, |actor, outcome| {
            if let Some(sizing) = actor.sizing_mut() {
                sizing.is_notifying = false;
                if let Err(error) = outcome
                    && !std::mem::replace(&mut sizing.has_logged_refusal, true)
                {
                    tracing::warn!(%error, "cannot tell systemd the size of the pod's cgroup");
                }
            }
            // The wanted values may have changed while systemd was told.
            actor.settle_size_now(false);
        });
    }
}

impl OwnCgroup {
    /// The cgroup in which the shim's commands for the pod run.
    pub fn place(&self) -> Option<Place> {
        self.cgroup.place()
    }

    fn sized(&mut self) -> Option<(&Arc<dyn PodCgroup>, &mut Sizing)> {
        Some((&self.cgroup, self.sizing.as_mut()?))
    }
}
