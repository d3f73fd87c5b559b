//! Whose turn it is to stop, and when.

use crate::lifecycle::action::{Cause, Step, Why};
use crate::lifecycle::life::Stop;
use crate::lifecycle::rules::{Deed, Due, Subject};
use crate::lifecycle::time::Time;

use super::{Ends, place};

impl Subject<'_> {
    /// Rule: at the end of the grace period everything that is alive gets its last chance, where no
    /// step has any time of its own.
    pub(in crate::lifecycle) fn time_is_short(&self) -> Option<Due<Deed>> {
        let (pod, life) = (self.pod, &self.container.life);
        let termination = pod.termination.as_ref()?;
        let is_for_it = !termination.is_over()
            && pod.is_to_be_stopped(self.container)
            && self.round.budget?.tells_all_at_the_end();
        let (deadline, stop) = (termination.deadline, life.stop());
        // What was being executed when it was to be told is told as soon as it runs.
        if let Stop::Condemned { at, .. } = stop
            && life.is_running()
            && at > pod.now
        {
            return Some(Due::Now(self.last_chance(at)));
        }
        let is_settled = matches!(stop, Stop::LastChance { .. } | Stop::Condemned { .. });
        if !is_for_it || !life.is_alive() || is_settled || stop.is_killed() || life.is_ending() {
            return None;
        }
        Some(pod.due(deadline, || {
            match life.is_parked() || life.is_between_lives() {
                true => self.told(Why::TimeShort),
                false => self.last_chance(termination.last_moment()),
            }
        }))
    }

    /// Rule: in the steps of apps and sidecars, those are told whose turn it is.
    pub(in crate::lifecycle) fn stop_has_its_turn(&self) -> Option<Due<Deed>> {
        let (pod, life) = (self.pod, &self.container.life);
        let step = pod.termination.as_ref()?.step;
        let is_member = matches!(step, Step::Apps | Step::Sidecars)
            && pod.is_to_be_stopped(self.container)
            && life.is_alive()
            && pod.step_of(self.container) == Some(step);
        let ends = self.round.ends.filter(|_| is_member)?;
        let late = self.is_late(ends.kill);
        if !self.can_be_told() {
            return late;
        }
        let told = || {
            let at = self.told_at(step, ends).unwrap_or(ends.ask_all);
            pod.due(at, || self.told(Why::Turn))
        };
        let first = self.pre_stop(step, ends).unwrap_or_else(told);
        Some(match late {
            Some(late) => late.or_sooner(first),
            None => first,
        })
    }

    /// What is done about a container that is alive at `kill`.
    pub(in crate::lifecycle) fn is_late(&self, kill: Time) -> Option<Due<Deed>> {
        let life = &self.container.life;
        let has_it_coming = match life.stop() {
            Stop::Killed { .. } | Stop::GivenUp { .. } => true,
            stop => stop.kill_at().is_some_and(|at| at <= kill) || life.is_ending(),
        };
        let is_late = || match life.is_parked() || life.is_between_lives() {
            true => self.told(Why::GraceOver),
            false => Deed::Kill,
        };
        (!has_it_coming).then(|| self.pod.due(kill, is_late))
    }

    /// When it is told to stop, in its step; none if its turn has not come.
    fn told_at(&self, step: Step, ends: Ends) -> Option<Time> {
        let (pod, container) = (self.pod, self.container);
        let is_its_turn = match step {
            Step::Sidecars => {
                let is_next = pod.last_place() == Some(place(container));
                container.life.is_unexecuted() || pod.is_parallel() || is_next
            }
            _ => true,
        };
        // The last ones are asked together, where their turn has not come.
        is_its_turn.then(|| self.stop_is_due_at().min(ends.ask_all))
    }

    /// From when on a container whose turn has come is told: it was asked to stop, or nobody will ask.
    fn stop_is_due_at(&self) -> Time {
        // Between two lives there is nothing that could be asked, and a caller does not ask for the stop of what
        // it has not started.
        let life = &self.container.life;
        match self.container.is_asked() || life.is_between_lives() || life.is_created() {
            true => Time::default(),
            false => self.unasked_until().unwrap_or_default(),
        }
    }

    /// Until when the request for a container may still come, with the signal of its own choice:
    /// kubelet's come within milliseconds, but after the container's preStop handler.
    fn unasked_until(&self) -> Option<Time> {
        let termination = self.pod.termination.as_ref()?;
        let container = self.container;
        match (&container.facts.pre_stop, &termination.cause) {
            (Some(_), cause) if cause.is_callers() => Some(termination.deadline),
            (None, Cause::Inferred) => Some(termination.known.after(self.pod.termination_window())),
            // Kubelet asks these too, but there is nothing to wait for.
            (None, Cause::SandboxDied) => None,
            // Kubelet does not know of it: it will ask for nothing. But it may have begun before with a
            // preStop handler, which its request follows.
            _ => {
                let request = container.request.as_ref();
                request
                    .filter(|request| request.signal().is_none() && !request.is_forced())
                    .map(|request| request.deadline().min(termination.deadline))
            }
        }
    }

    /// A preStop handler that nobody else runs comes first: it is run, or waited for.
    fn pre_stop(&self, step: Step, ends: Ends) -> Option<Due<Deed>> {
        let due = self.told_at(step, ends)?;
        if due > self.pod.now || self.pod.now >= ends.ask_all {
            return None;
        }
        match self.container.life.stop() {
            Stop::Preparing { is_over: false, .. } => {
                Some(self.pod.due(ends.ask_all, || self.told(Why::Turn)))
            }
            Stop::Untold => {
                let deed = self.pre_stop_hook(ends.ask_all)?;
                Some(Due::Now(deed))
            }
            _ => None,
        }
    }
}
