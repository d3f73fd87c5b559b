//! The start of a termination, and its progress from step to step.

use crate::lifecycle::Pod;
use crate::lifecycle::action::{Cause, Step};
use crate::lifecycle::report::Report;
use crate::lifecycle::rules::{Due, PodDecision};
use crate::lifecycle::time::Time;

use super::{Defers, STUCK, Termination};

impl Pod {
    /// Rule: a termination begins when an event ends the pod, or when stop requests show that the
    /// caller ends the pod. `usher stop` begins a termination without this rule.
    pub(in crate::lifecycle) fn termination_begins(&self) -> Option<Due<PodDecision>> {
        if self.termination.is_some() || !self.has_orders() {
            return None;
        }
        let dues = [self.sandbox_died(), self.completed(), self.inferred()];
        // If several terminations are due now, prefer a decided one to an inferred one.
        let (at, termination) = dues
            .into_iter()
            .flatten()
            .min_by_key(|(at, ended)| (self.now.max(*at), !ended.cause().is_decided()))?;
        Some(self.due(at, || PodDecision::Terminate(Box::new(termination))))
    }

    pub(in crate::lifecycle) fn terminate(&mut self, mut termination: Termination) {
        termination.step_began = self.now;
        self.out.report(Report::Terminating {
            because: termination.cause.clone(),
            grace: termination.deadline.since(termination.since),
        });
        let is_left_to_caller = termination.cause.is_left_to_caller();
        self.termination = Some(termination);
        // While the pod waited for its defer containers, the caller may have created containers for
        // the next run. This termination stops these containers, too.
        if is_left_to_caller {
            self.move_next_run_to_current();
        }
        self.step_begins();
    }

    /// A termination that begins now because the sandbox has died, and the present time. The
    /// containers have lost their network and are to stop in order. `None` while the sandbox lives,
    /// or if no container that usher orders is alive.
    fn sandbox_died(&self) -> Option<(Time, Termination)> {
        let alive = self
            .containers
            .values()
            .find(|container| container.is_ordered() && container.state.is_alive());
        let alive = alive.filter(|_| self.sandbox_is_gone)?;
        let deadline = self.now.after(self.annotated_grace(alive));
        let termination = Termination::new(Cause::SandboxDied, self.now, deadline, self.now);
        Some((self.now, termination))
    }

    /// Rule: a stop request can show that the grace period of the termination is shorter than known
    /// before. It can also show that the caller leaves time for hooks and defer containers after
    /// all. The shim then changes the termination.
    pub(in crate::lifecycle) fn deadline_is_learned(&self) -> Option<Due<PodDecision>> {
        let termination = self.termination.as_ref()?;
        let open: Vec<_> = self
            .open_requests()
            // Containers that only the caller starts and stops get their signals at once in any
            // case.
            .filter(|open| !open.container.role_policy().is_left_to_caller())
            // A container that was asked to stop before the termination, and has no process now,
            // needs no time.
            .filter(|open| {
                let comes_later = open.request.at() >= termination.since;
                comes_later || !open.container.state.is_between_executions()
            })
            .map(|open| open.request)
            .filter(|request| request.is_of_end_since(termination.since))
            .collect();
        let deadline = open.iter().map(|request| request.deadline()).min()?;
        // As soon as one stop request leaves time for hooks and defer containers, they are no
        // longer left out.
        let forced =
            termination.defers == Defers::Forced && open.iter().all(|request| request.is_forced());
        let is_news = deadline < termination.deadline
            || deadline.since(termination.since) < termination.grace
            || forced != (termination.defers == Defers::Forced);
        is_news.then_some(Due::Now(PodDecision::LearnDeadline { deadline, forced }))
    }

    pub(in crate::lifecycle) fn learn_deadline(&mut self, deadline: Time, forced: bool) {
        let now = self.now;
        if let Some(termination) = &mut self.termination {
            termination.shorten(deadline, now);
            termination.force(forced);
        }
    }

    /// Rule: the log says once that the grace period is over.
    pub(in crate::lifecycle) fn grace_is_over(&self) -> Option<Due<PodDecision>> {
        let termination = self.termination.as_ref()?;
        let is_to_be_said = !termination.is_grace_over && !termination.is_over();
        is_to_be_said.then(|| self.due(termination.deadline, || PodDecision::NoteGraceOver))
    }

    pub(in crate::lifecycle) fn note_grace_over(&mut self) {
        let mut alive: Vec<_> = self
            .containers
            .values()
            .filter(|container| self.is_to_be_stopped(container) && container.state.is_alive())
            .collect();
        alive.sort_by_key(|container| container.number);
        let alive = alive.iter().map(|container| container.name.clone());
        let report = Report::GraceOver {
            alive: alive.collect(),
        };
        self.out.report(report);
        if let Some(termination) = &mut self.termination {
            termination.is_grace_over = true;
        }
    }

    /// Rule: the next step begins when the hooks or containers of this step have ended, or at once
    /// if the step is skipped. The step waits for hooks until its deadline, and about a second for
    /// a container that SIGKILL does not end. After the last step, the rule begins another
    /// termination for containers that were started too late. `None` while a container of the step
    /// has not got SIGKILL, or while a defer container of the step is left.
    pub(in crate::lifecycle) fn step_is_over(&self) -> Option<Due<PodDecision>> {
        let termination = self.termination.as_ref()?;
        if termination.is_over() {
            return self.end_comes_again(termination);
        }
        let next = |at| Some(self.due(at, || PodDecision::NextStep));
        let at_once = || Some(Due::Now(PodDecision::NextStep));
        let Some(ends) = self.ends() else {
            return match termination.step {
                Step::Over => None,
                Step::PreExit | Step::PostExit if self.is_a_defer_held() => None,
                _ => at_once(),
            };
        };
        match termination.step {
            Step::Over => None,
            Step::Hooks if termination.leaves_hooks_out() || !self.is_a_hook_left() => at_once(),
            Step::Hooks => next(ends.kill),
            Step::PreExit | Step::PostExit => match self.is_a_defer_left() {
                true => None,
                false => at_once(),
            },
            Step::Apps | Step::Sidecars => {
                let left = self.members().map(|(_, container)| &container.state);
                // The step waits for a living container at least until this container has got
                // SIGKILL.
                let stuck = left.map(|state| match state.stop().killed_at() {
                    Some(at) => Some(ends.stuck().max(at.after(STUCK))),
                    None => state.is_ending().then(|| ends.stuck()),
                });
                let stuck: Option<Vec<_>> = stuck.collect();
                match stuck.map(|times| times.into_iter().max()) {
                    Some(Some(at)) => next(at),
                    Some(None) => at_once(),
                    None => None,
                }
            }
        }
    }

    /// Decides on another termination if containers are still held after the termination `ended`,
    /// for example because their Start came too late. `None` if no container is held, if the
    /// sandbox has exited, or if the shim had not decided `ended`.
    fn end_comes_again(&self, ended: &Termination) -> Option<Due<PodDecision>> {
        let is_due = ended.is_shims() && !self.sandbox_is_gone && self.has_a_latecomer();
        let container = self.containers.values().find(|it| it.is_ordered())?;
        let again = || ended.again(self.now, self.annotated_grace(container));
        is_due.then(|| Due::Now(PodDecision::Terminate(Box::new(again()))))
    }

    pub(in crate::lifecycle) fn next_step(&mut self) {
        let now = self.now;
        let Some(termination) = &mut self.termination else {
            return;
        };
        let step = termination.step;
        let took = now.since(termination.step_began);
        let used = std::mem::take(&mut termination.used);
        termination.step = step.next();
        termination.step_began = now;
        if matches!(step, Step::Apps | Step::Sidecars) || !used.is_empty() {
            self.out.report(Report::StepOver { step, took, used });
        }
        self.step_begins();
    }

    fn step_begins(&mut self) {
        if let Some(termination) = &mut self.termination {
            termination.is_under_way = false;
        }
        let is_under_way = self.ends().is_some();
        if let Some(termination) = &mut self.termination {
            termination.is_under_way = is_under_way;
        }
    }
}
