//! Termination hooks, and preStop handlers that the shim runs.
//!
//! KEP-753 draft, "add a TerminationHook": the first step of a termination runs the hooks of all
//! containers in parallel. If the shim itself has decided the termination, kubelet runs no preStop
//! handlers: the shim runs each before the signal of its container.

use crate::plan::Hook;

use super::Pod;
use super::action::{ActionError, ContainerId, HookKind, Step};
use super::container::{Container, HookState, TerminationWork};
use super::effects::ContainerContext;
use super::grace::MIN_GRACE;
use super::report::Report;
use super::rules::{Decision, Due, Subject};
use super::time::Time;

impl Pod {
    /// Records the outcome of [`Action::Hook`](super::Action::Hook).
    pub fn handle_hooked(
        &mut self,
        now: Time,
        id: &ContainerId,
        kind: HookKind,
        outcome: Result<(), ActionError>,
    ) {
        self.now = now;
        self.with_container(id, |context| context.record_hook_end(kind, outcome));
        self.settle(now);
    }
}

impl ContainerContext<'_> {
    fn record_hook_end(&mut self, kind: HookKind, outcome: Result<(), ActionError>) {
        let was_running = match (kind, self.container.state.stop_mut()) {
            (HookKind::Termination, _) => self.container.is_hooked(),
            (HookKind::PreStop, None) => false,
            (HookKind::PreStop, Some(stop)) => {
                let prepared = stop.prepared();
                *stop = prepared.unwrap_or(*stop);
                prepared.is_some()
            }
        };
        if !was_running {
            return;
        }
        let name = self.container.name.clone();
        if kind == HookKind::Termination {
            let state = match &mut self.termination {
                Some(termination) => {
                    termination.note_hook(&name, self.now);
                    HookState::Over
                }
                // The shim had inferred the termination by mistake. The hook runs again in the real
                // termination.
                None => HookState::Pending,
            };
            self.container.termination_work = TerminationWork::Hook(state);
        }
        self.out.report(Report::HookOver {
            name,
            kind,
            outcome,
        });
    }
}

impl Subject<'_> {
    /// Rule: in the first step of a termination, the container's termination hook is run. The rule
    /// does not wait for the hooks of other containers, so all hooks run in parallel. `None` in any
    /// other step, if [no hook is to be run](Pod::termination_hook), or if no time is left for it.
    pub(super) fn hook_is_run(&self) -> Option<Due<Decision>> {
        let pod = self.pod;
        let is_its_step = pod.termination.as_ref()?.step() == Step::Hooks;
        let ends = self.pod_facts.ends.filter(|_| is_its_step)?;
        let limit = ends.kill.since(pod.now);
        let hook = pod
            .termination_hook(self.container)
            .filter(|_| !limit.is_zero())?;
        Some(Due::Now(Decision::RunHook {
            kind: HookKind::Termination,
            hook: hook.clone(),
            limit,
        }))
    }

    /// The decision to run the container's preStop handler, until `until` at the latest. `None` if
    /// the caller knows of the termination or has sent a stop request: then the caller runs the
    /// handler. Also `None` if the container does not run, or has no handler that the shim can run.
    pub(super) fn pre_stop_decision(&self, until: Time) -> Option<Decision> {
        let (pod, container) = (self.pod, self.container);
        let is_ours = pod
            .termination
            .as_ref()
            .is_some_and(|termination| !termination.cause().is_left_to_caller());
        // If the caller has begun to stop the container, the caller itself runs the handler.
        let counts = is_ours && container.state.is_running() && container.request.is_none();
        let hook = container.facts.pre_stop_hook.clone().filter(|_| counts)?;
        // A handler may not use the whole grace period that annotations set for its container. Two
        // seconds are left for the stop after the signal. If the period is shorter than four
        // seconds, half of it is left.
        let until = pod.cap_of(container).map_or(until, |cap| {
            let last = cap.checked_div(2).unwrap_or_default().min(MIN_GRACE);
            until.min(pod.now.after(cap.saturating_sub(last)))
        });
        Some(Decision::RunHook {
            kind: HookKind::PreStop,
            hook,
            limit: until.since(pod.now),
        })
    }
}

impl Pod {
    /// The container's termination hook if it is still to be run. `None` if it was begun, if the
    /// container does not run or has got its stop signal, or if the caller leaves no time for
    /// hooks. Also `None` for a container outside the pod's plan and for a container of the next
    /// run.
    pub(super) fn termination_hook(&self, container: &Container) -> Option<&Hook> {
        let running = container.state.as_running()?;
        let may_run = container.is_ordered()
            && !container.is_of_next_run
            && !running.stop.is_delivered()
            && container.termination_work == TerminationWork::Hook(HookState::Pending)
            && !self.leaves_hooks_out();
        let plan = self.plan_of(container).filter(|_| may_run)?;
        plan.termination_hook.as_ref()
    }
}
