//! Attempts of probes and hooks, made in a container or from the cgroup of its pod.

use std::sync::Arc;
use std::time::Duration;

use tracing::debug;

use crate::sizing::OwnCgroup;
use usher_core::lifecycle::{ActionError, ContainerId, HookKind, Wanted};
use usher_core::plan::Hook;
use usher_engine::{Attempted, CancelToken, Init, Panicked, ProbeEnvironment};

use super::Actor;
use super::operations::infallible;

impl Actor {
    pub(super) fn probe(&mut self, id: ContainerId, execution: u64) {
        let now = self.now();
        let target = self.target(&id);
        let (Some((init, from, token)), Some(probe)) = (target, self.core.probe(now, &id)) else {
            let gone = Err(ActionError::ContainerGone);
            let cost = Duration::ZERO;
            return self.core.handle_probed(now, &id, execution, gone, cost);
        };
        self.probe_cpu.mark_for_probe();
        let attempt = infallible(async move { init.probe(&probe, &from, &token).await });
        let then = move |actor: &mut Actor, id: &ContainerId, attempted: Result<_, Panicked>| {
            let Attempted { outcome, cost } = attempted.unwrap_or_else(Attempted::from);
            actor.probe_cpu.mark_for_probe();
            let cost = actor.probe_cpu.take_charge(cost);
            debug!(container = %id, ?outcome, ?cost, "probed");
            let now = actor.now();
            actor.core.handle_probed(now, id, execution, outcome, cost);
        };
        self.operate(&id, Wanted::UntilDeleted, attempt, then);
    }

    pub(super) fn hook(&mut self, id: ContainerId, kind: HookKind, hook: Hook, limit: Duration) {
        let Some((init, from, token)) = self.target(&id) else {
            let gone = Err(ActionError::ContainerGone);
            return self.core.handle_hooked(self.now(), &id, kind, gone);
        };
        let run = async move { init.hook(&hook, limit, &from, &token).await };
        self.operate(&id, Wanted::UntilDeleted, run, move |actor, id, outcome| {
            actor.core.handle_hooked(actor.now(), id, kind, outcome);
        });
    }

    /// Returns what an attempt of a probe or hook needs: the container's init, the facts of the pod
    /// and the container, and the token that cancels the attempt. `None` if the container is
    /// deleted, or has no process yet.
    fn target(&self, id: &ContainerId) -> Option<(Arc<dyn Init>, ProbeEnvironment, CancelToken)> {
        let task = self.tasks.get(id)?;
        let from = ProbeEnvironment {
            place: self.pod_cgroup.as_ref().and_then(OwnCgroup::place),
            ports: task.facts.ports.clone(),
            // The attempt's process gets the container's OOM score, because the OOM killer may kill
            // the whole container together with this process.
            oom_score: self.core.oom_score(id),
        };
        let (init, token) = task.handles.init_and_cancel_token().ok()?;
        Some((init, from, token))
    }
}
