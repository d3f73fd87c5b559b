//! The order in which apps and sidecars are stopped: a container gets its stop signal when its turn
//! comes.

use crate::lifecycle::action::{Cause, SignalReason, Step};
use crate::lifecycle::rules::{Decision, Due, Subject};
use crate::lifecycle::state::Stop;
use crate::lifecycle::time::Time;

use super::{StepDeadlines, place};

impl Subject<'_> {
    /// Rule: when the grace period ends, every container that is still alive gets its stop signal,
    /// even if it got the signal before. SIGKILL follows two seconds later. A container whose
    /// program neither runs nor is being executed ends without a signal. The rule applies only if
    /// the grace policy gives no step its own time.
    pub(in crate::lifecycle) fn last_chance_is_given(&self) -> Option<Due<Decision>> {
        let (pod, state) = (self.pod, &self.container.state);
        let termination = pod.termination.as_ref()?;
        let is_for_it = !termination.is_over()
            && pod.is_to_be_stopped(self.container)
            && self.pod_facts.budget?.signals_all_at_deadline();
        let (deadline, stop) = (termination.deadline, state.stop());
        // If SIGKILL was scheduled while the program was being executed, the container is signaled
        // as soon as the program runs.
        if let Stop::KillScheduled { at, .. } = stop
            && state.is_running()
            && at > pod.now
        {
            return Some(Due::Now(self.last_chance(at)));
        }
        let is_settled = matches!(stop, Stop::LastChance { .. } | Stop::KillScheduled { .. });
        if !is_for_it || !state.is_alive() || is_settled || stop.is_killed() || state.is_ending() {
            return None;
        }
        Some(pod.due(deadline, || {
            match state.is_parked() || state.is_between_executions() {
                true => self.deliver_stop(SignalReason::TimeShort),
                false => self.last_chance(termination.last_moment()),
            }
        }))
    }

    /// Rule: in the steps of apps and sidecars, a container whose turn has come gets its stop
    /// signal, after its preStop handler if the shim has to run this handler. A container that is
    /// still alive at the `kill` time of the step gets SIGKILL.
    pub(in crate::lifecycle) fn stop_is_due(&self) -> Option<Due<Decision>> {
        let (pod, state) = (self.pod, &self.container.state);
        let step = pod.termination.as_ref()?.step;
        let is_member = matches!(step, Step::Apps | Step::Sidecars)
            && pod.is_to_be_stopped(self.container)
            && state.is_alive()
            && pod.step_of(self.container) == Some(step);
        let ends = self.pod_facts.ends.filter(|_| is_member)?;
        let late = self.is_late(ends.kill);
        if !self.can_be_stopped_now() {
            return late;
        }
        let deliver = || {
            let at = self.signal_at(step, ends).unwrap_or(ends.ask_all);
            pod.due(at, || self.deliver_stop(SignalReason::Turn))
        };
        let first = self.pre_stop_wait(step, ends).unwrap_or_else(deliver);
        Some(match late {
            Some(late) => late.or_sooner(first),
            None => first,
        })
    }

    /// The decision to end a container that is still alive at the time `kill`. A running program
    /// gets SIGKILL. A container without a running program ends without a signal. `None` if SIGKILL
    /// was delivered, or is scheduled for `kill` or earlier. Also `None` if the container is
    /// already ending.
    pub(in crate::lifecycle) fn is_late(&self, kill: Time) -> Option<Due<Decision>> {
        let state = &self.container.state;
        let has_it_coming = match state.stop() {
            Stop::Killed { .. } | Stop::GivenUp { .. } => true,
            stop => stop.kill_at().is_some_and(|at| at <= kill) || state.is_ending(),
        };
        let is_late = || match state.is_parked() || state.is_between_executions() {
            true => self.deliver_stop(SignalReason::GraceOver),
            false => Decision::Kill,
        };
        (!has_it_coming).then(|| self.pod.due(kill, is_late))
    }

    /// The time of the container's stop signal in its step, without regard to a preStop handler
    /// that the shim runs. A past time means now. `None` if the container's turn has not come.
    fn signal_at(&self, step: Step, ends: StepDeadlines) -> Option<Time> {
        let (pod, container) = (self.pod, self.container);
        let is_its_turn = match step {
            Step::Sidecars => {
                let is_next = pod.next_sidecar_to_stop() == Some(place(container));
                container.state.is_unexecuted() || pod.is_parallel() || is_next
            }
            _ => true,
        };
        // At `ask_all` all remaining containers are signaled together, even if their turn has not
        // come.
        is_its_turn.then(|| self.stop_is_due_at().min(ends.ask_all))
    }

    /// The earliest time to signal a container whose turn has come. As long as the shim expects a
    /// stop request of the caller, the signal waits for this request. A past time means now.
    fn stop_is_due_at(&self) -> Time {
        // A container between two executions cannot be signaled, and a caller does not stop a
        // container that it has not started.
        let state = &self.container.state;
        match self.container.is_asked() || state.is_between_executions() || state.is_created() {
            true => Time::default(),
            false => self.unasked_until().unwrap_or_default(),
        }
    }

    /// The time until which the shim waits for the caller's stop request, because the request may
    /// name another signal than the default. kubelet sends its requests within milliseconds, or
    /// after the preStop handler if there is one. In a termination that the caller does not know
    /// of, the shim waits only if the caller has already run the container's preStop handler.
    /// `None` if the shim does not wait for a request. Does not check if the request has come.
    fn unasked_until(&self) -> Option<Time> {
        let termination = self.pod.termination.as_ref()?;
        let container = self.container;
        match (&container.facts.pre_stop, &termination.cause) {
            (Some(_), cause) if cause.is_left_to_caller() => Some(termination.deadline),
            (None, Cause::Inferred) => Some(termination.known.after(self.pod.termination_window())),
            // After the death of the sandbox, kubelet also sends stop requests. The shim does not
            // wait for them.
            (None, Cause::SandboxDied) => None,
            // Kubelet does not know of this termination and sends no stop request for it. But
            // kubelet may have begun to stop the container before, with its preStop handler. Then a
            // stop request follows the handler.
            _ => {
                let request = container.request.as_ref();
                request
                    .filter(|request| request.signal().is_none() && !request.is_forced())
                    .map(|request| request.deadline().min(termination.deadline))
            }
        }
    }

    /// The next decision about a preStop handler. The shim runs this handler itself, because the
    /// caller does not know of the termination. The decisions are:
    ///
    /// - before the handler: run the handler now;
    /// - while the handler runs: deliver the stop signal at `ends.ask_all`, even if the handler is
    ///   not over by then.
    ///
    /// `None` if the container's turn has not come, if no time is left, or if the handler is
    /// missing or over.
    fn pre_stop_wait(&self, step: Step, ends: StepDeadlines) -> Option<Due<Decision>> {
        let due = self.signal_at(step, ends)?;
        if due > self.pod.now || self.pod.now >= ends.ask_all {
            return None;
        }
        match self.container.state.stop() {
            Stop::Preparing { is_over: false, .. } => Some(
                self.pod
                    .due(ends.ask_all, || self.deliver_stop(SignalReason::Turn)),
            ),
            Stop::Undelivered => {
                let decision = self.pre_stop_decision(ends.ask_all)?;
                Some(Due::Now(decision))
            }
            _ => None,
        }
    }
}
