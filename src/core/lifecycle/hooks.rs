//! Termination hooks, and the preStop handlers that nobody else runs.
//!
//! KEP-753 draft, "add a TerminationHook": the first step of a termination runs those of all
//! containers side by side. Where the shim itself has decided that the pod ends, kubelet has run no
//! preStop handler: then each comes before the signal of its container.

use crate::plan::{Hook, Plan, Role};

use super::Pod;
use super::action::{Action, Cause, ContainerId, HookKind, Report};
use super::container::{Container, HookState, Hooks, State};
use super::grace::LEAST;
use super::termination::Ends;
use super::time::Time;

impl Hooks {
    fn of(&mut self, kind: HookKind) -> &mut HookState {
        match kind {
            HookKind::Termination => &mut self.termination,
            HookKind::PreStop => &mut self.pre_stop,
        }
    }
}

impl Pod {
    /// What became of [`Action::Hook`]: it is over, or the reason why it failed.
    pub fn handle_hooked(
        &mut self,
        now: Time,
        id: &ContainerId,
        kind: HookKind,
        outcome: Result<(), String>,
    ) {
        if let Some(container) = self.containers.get_mut(id)
            && *container.hooks.of(kind) == HookState::Running
        {
            *container.hooks.of(kind) = HookState::Over;
            let name = container.name.clone();
            if kind == HookKind::Termination {
                self.note_hook(&name, now);
            }
            self.report(Report::HookOver {
                name,
                kind,
                outcome,
            });
        }
        self.settle(now);
    }

    /// The first step: all hooks, side by side. True when they are over.
    pub(super) fn run_hooks(&mut self, ends: Ends, now: Time) -> bool {
        if now >= ends.kill {
            return true;
        }
        for id in self.ids() {
            self.run_termination_hook(&id, ends.kill, now);
        }
        !self
            .containers
            .values()
            .any(|container| container.has_process() && container.is_hooked())
    }

    /// Runs the container's termination hook if it has one that was not run; true if it runs then.
    pub(super) fn run_termination_hook(
        &mut self,
        id: &ContainerId,
        until: Time,
        now: Time,
    ) -> bool {
        let Some(container) = self.containers.get(id) else {
            return false;
        };
        let may_run = matches!(container.state, State::Running(_))
            && container.is_ordered()
            && !container.stopping.signalled
            && container.hooks.termination == HookState::Pending;
        let hook = self
            .plan
            .as_ref()
            .and_then(|plan| plan.container(&container.name).termination_hook.clone());
        match hook.filter(|_| may_run) {
            Some(hook) => {
                self.run_hook(id, HookKind::Termination, hook, until, now);
                true
            }
            None => false,
        }
    }

    /// Whether any container of the plan has a termination hook.
    pub(super) fn has_termination_hooks(&self) -> bool {
        self.plan.as_ref().is_some_and(Plan::has_termination_hooks)
    }

    /// Runs the preStop handler of a container that the shim stops by its own decision, if it has one
    /// that is still to be waited for; true as long as it is.
    pub(super) fn is_kept_by_pre_stop(&mut self, id: &ContainerId, until: Time, now: Time) -> bool {
        let is_ours = self.termination.as_ref().is_some_and(|termination| {
            !matches!(termination.cause(), Cause::Inferred | Cause::SandboxDied)
        });
        let Some(container) = self.containers.get(id) else {
            return false;
        };
        let counts = is_ours
            && matches!(container.state, State::Running(_))
            && !container.stopping.signalled
            // Whoever asks has run it.
            && container.request.is_none();
        if !counts || now >= until {
            return false;
        }
        let hook = container.facts.pre_stop_hook.clone();
        let plan = self.plan.as_ref();
        let cap = plan.and_then(|plan| plan.container(&container.name).grace_period);
        // Of a grace period of its own a part is left for the signal.
        let hook_until = cap.map_or(until, |cap| {
            let last = cap.checked_div(2).unwrap_or_default().min(LEAST);
            until.min(now.after(cap.saturating_sub(last)))
        });
        match (container.hooks.pre_stop, hook) {
            (HookState::Running, _) => true,
            (HookState::Pending, Some(hook)) => {
                if let Some(container) = self.containers.get_mut(id) {
                    container.stopping.told_at = Some(now);
                }
                self.run_hook(id, HookKind::PreStop, hook, hook_until, now);
                true
            }
            _ => false,
        }
    }

    fn run_hook(&mut self, id: &ContainerId, kind: HookKind, hook: Hook, until: Time, now: Time) {
        if let Some(container) = self.containers.get_mut(id) {
            *container.hooks.of(kind) = HookState::Running;
        }
        self.actions.push_back(Action::Hook {
            id: id.clone(),
            kind,
            hook,
            limit: until.since(now),
        });
    }

    /// Whether the hook of an app comes before its signal though nothing says that the pod
    /// terminates: nothing ever could, since there is no other container to be asked.
    pub(super) fn is_kept_by_lone_hook(&mut self, id: &ContainerId, now: Time) -> bool {
        let Some(container) = self.containers.get(id) else {
            return false;
        };
        let alone = self.containers.iter().all(|(other, container)| {
            other == id || !container.is_ordered() || !container.is_alive()
        });
        let Some(request) = container.request.as_ref().filter(|_| alone) else {
            return false;
        };
        let until = request.deadline.before(LEAST);
        if container.role != Role::App || now >= until {
            return false;
        }
        container.hooks.termination == HookState::Running
            || self.run_termination_hook(id, until, now)
    }
}

impl Container {
    /// Its termination hook runs.
    pub(super) fn is_hooked(&self) -> bool {
        self.hooks.termination == HookState::Running
    }
}
