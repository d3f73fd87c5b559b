//! What comes after the end: the pod starts over, or its caller starts it again from the beginning.

use crate::lifecycle::Pod;
use crate::lifecycle::action::{Cause, ContainerId, Why};
use crate::lifecycle::report::Report;
use crate::lifecycle::rules::{Due, PodDeed};
use crate::plan::{ContainerKind, Signal};

impl Pod {
    /// Rule: what was created while the pod ended, or after that, is a new beginning.
    pub(in crate::lifecycle) fn pod_starts_over(&self) -> Option<Due<PodDeed>> {
        let termination = self.termination.as_ref()?;
        if !termination.is_over() || self.sandbox_to_be_killed().is_some() || self.sandbox_is_gone {
            return None;
        }
        let mut next = self.containers.values().filter(|container| {
            container.is_of_next_run && container.is_ordered() && !container.life.is_exited()
        });
        let with = next.next()?.name.clone();
        Some(Due::Now(PodDeed::StartOver { with }))
    }

    pub(in crate::lifecycle) fn start_over(&mut self, with: String) {
        let ended = self.termination.take();
        let by_hand = ended.as_ref().is_some_and(|ended| ended.by_hand);
        let is_complete = ended.is_some_and(|ended| ended.cause == Cause::Completed);
        // Nothing else is created again under `Never`, nor what a complete run has done its work with:
        // what has done its part has done it.
        let is_anew = by_hand || !is_complete && self.is_restarted_by_its_caller();
        self.history.start_over(is_anew);
        self.has_released &= !is_anew;
        self.begin_next_run();
        self.out.report(Report::StartsOver { with });
    }

    /// What was created for what comes after the end is of the pod that there is.
    pub(in crate::lifecycle) fn begin_next_run(&mut self) {
        let mut next: Vec<_> = self
            .containers
            .values_mut()
            .filter(|container| container.is_of_next_run)
            .collect();
        next.sort_by_key(|container| container.number);
        for container in next {
            container.is_of_next_run = false;
            self.history.created(&container.name, container.number);
        }
    }

    /// Rule: under a policy by which the caller starts a failed pod again, it does so when the sandbox
    /// is gone (KEP-753 draft: "kill the entire pod and start again").
    pub(in crate::lifecycle) fn sandbox_is_killed(&self) -> Option<Due<PodDeed>> {
        let is_due = self
            .termination
            .as_ref()
            .is_some_and(|termination| termination.is_over() && !termination.is_sandbox_killed);
        let id = self.sandbox_to_be_killed().filter(|_| is_due)?;
        Some(Due::Now(PodDeed::KillSandbox(id.clone())))
    }

    fn sandbox_to_be_killed(&self) -> Option<&ContainerId> {
        let starts_anew = self.termination.as_ref().is_some_and(|termination| {
            matches!(termination.cause, Cause::EssentialFailed { .. }) && !termination.by_hand
        });
        let mut sandboxes = self.containers.iter().filter(|(_, container)| {
            container.kind == ContainerKind::Sandbox && container.life.is_alive()
        });
        let (id, _) = sandboxes.next()?;
        (starts_anew && self.is_restarted_by_its_caller()).then_some(id)
    }

    pub(in crate::lifecycle) fn kill_sandbox(&mut self, id: &ContainerId) {
        if let Some(termination) = &mut self.termination {
            termination.is_sandbox_killed = true;
        }
        self.out.report(Report::SandboxKilled);
        self.out.signal(id, Signal::KILL, false, Why::StartsAnew);
    }
}
