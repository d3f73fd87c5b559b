//! Bounds for the status: the latest time of a container's next event, and the kind of event
//! ([`Then`]). The bounds apply in a termination, and while the caller stops a single container. No
//! signal depends on these bounds.
//!
//! The times for the step under way come from the rules that deliver its signals. The times for
//! later steps are computed from them: each step is assumed to take as long as it may.

use crate::lifecycle::Pod;
use crate::lifecycle::action::{ContainerId, Step};
use crate::lifecycle::container::Container;
use crate::lifecycle::grace::{MIN_GRACE, STEPS};
use crate::lifecycle::rules::{Due, Subject};
use crate::lifecycle::time::Time;
use crate::lifecycle::view::Then;

use super::{StepDeadlines, Termination, place};

impl Pod {
    /// The next stop signal or SIGKILL that the container gets, and the latest time at which it
    /// comes. `usher inspect` shows both. `None` if no signal is to come.
    ///
    /// The reason for the signal is a termination, or a stop request for this container alone. A
    /// stop signal at most two seconds before SIGKILL is [`Then::LastSignal`].
    pub(in crate::lifecycle) fn next_stop_signal(
        &self,
        now: Time,
        id: &ContainerId,
        container: &Container,
    ) -> Option<(Time, Then)> {
        let pod_facts = self.pod_facts();
        let subject = Subject {
            pod: self,
            pod_facts: &pod_facts,
            id,
            container,
        };
        let killed = subject
            .kill_is_due()
            .map(|due| (self.time(&due), Then::Killed));
        let last = subject
            .last_chance_is_given()
            .map(|due| (self.time(&due), Then::LastSignal));
        let bounds = [killed, last, subject.next_signal_in_step()];
        let soonest = bounds.into_iter().flatten().min_by_key(|(at, _)| *at);
        soonest.or_else(|| subject.next_signal_of_lone_stop(now))
    }

    /// The latest time at which the wait of a held defer container ends, and the event that ends
    /// it. The event is that the container is run, or that it is left out. `None` if no termination
    /// under way applies to the container, or if its step is over.
    pub(in crate::lifecycle) fn turn_comes(&self, container: &Container) -> Option<(Time, Then)> {
        let termination = self.termination_for(container)?;
        let turn = container.defer_turn()?;
        let step = Step::of(turn);
        let began = self.latest_start(termination, step)?;
        let Some(ends) = self.ends_from(step, began) else {
            return Some((began, Then::LeftOut));
        };
        let at = self.latest_end_of_defers(turn, began, ends, Some(container));
        let is_left_out = self.leaves_defers_out()
            || self.history.was_deferred(&container.name)
            || at >= ends.ask_all;
        let all_are_told = self.budget()?.signals_all_at_deadline();
        Some(match termination.deadline {
            deadline if all_are_told && deadline <= at => (deadline, Then::LeftOut),
            _ if is_left_out => (at, Then::LeftOut),
            _ => (at, Then::ItsTurn),
        })
    }

    /// The termination under way, if it [applies](Pod::is_to_be_stopped) to the container. `None`
    /// also when the termination is over.
    pub(in crate::lifecycle) fn termination_for(
        &self,
        container: &Container,
    ) -> Option<&Termination> {
        let termination = self.termination.as_ref()?;
        let is_for_it = !termination.is_over() && self.is_to_be_stopped(container);
        is_for_it.then_some(termination)
    }

    /// The latest time at which a step begins. For the step under way, the time at which it began.
    /// `None` if the step is over.
    fn latest_start(&self, termination: &Termination, step: Step) -> Option<Time> {
        if step <= termination.step {
            return (step == termination.step).then_some(termination.step_began);
        }
        let has_members = |step: &Step| {
            let mut containers = self.containers.values();
            containers.any(|container| self.is_alive_in(*step, container))
        };
        let before = STEPS
            .into_iter()
            .filter(|it| *it > termination.step && *it < step);
        let under_way = self.latest_end(termination.step, termination.step_began);
        Some(
            before
                .filter(has_members)
                .fold(under_way, |at, it| self.latest_end(it, at)),
        )
    }

    /// The latest time at which a step is over if it begins at `began`. This is `began` itself if
    /// the grace policy skips the step for lack of time. Called only for steps that have
    /// containers, and for the step under way. Does not count the time that defer containers may be
    /// granted later.
    fn latest_end(&self, step: Step, began: Time) -> Time {
        let Some(ends) = self.ends_from(step, began) else {
            return began;
        };
        if let Some(turn) = step.defer_turn() {
            return self.latest_end_of_defers(turn, began, ends, None);
        }
        let members = self.containers.values();
        let members = members.filter(|container| self.is_alive_in(step, container));
        let killed_at = |container: &Container| {
            let stop = container.state.stop();
            let cap = self.cap_of(container).filter(|_| !stop.is_delivered());
            stop.kill_at().or(cap.map(|cap| began.after(cap)))
        };
        let killed: Option<Vec<_>> = members.map(killed_at).collect();
        let last = killed.and_then(|times| times.into_iter().max());
        match step {
            // A hook may take the whole step.
            Step::Hooks => ends.kill,
            _ => last.map_or(ends.kill, |last| last.min(ends.kill)),
        }
    }

    fn is_alive_in(&self, step: Step, container: &Container) -> bool {
        self.is_to_be_stopped(container)
            && container.state.is_alive()
            && self.step_of(container) == Some(step)
    }

    fn time<D>(&self, due: &Due<D>) -> Time {
        match due {
            Due::Now(_) => self.now,
            Due::At(at) => *at,
        }
    }
}

impl Subject<'_> {
    /// The latest time of the container's next signal in its step of the termination, and the kind
    /// of signal. The step may be under way or still to come. `None` if no termination stops the
    /// container, if its step is skipped or over, or if it has got SIGKILL. In the step under way,
    /// also `None` if another rule gives the signal: a SIGKILL that is scheduled (`kill_is_due`),
    /// or any signal of a defer container (`defer_is_due`).
    fn next_signal_in_step(&self) -> Option<(Time, Then)> {
        let (pod, container) = (self.pod, self.container);
        let termination = pod.termination_for(container)?;
        let step = pod.step_of(container)?;
        let is_delivered = container.state.stop().is_delivered();
        let (at, kill) = match step == termination.step {
            true => (pod.time(&self.stop_is_due()?), self.pod_facts.ends?.kill),
            false => {
                let began = pod.latest_start(termination, step)?;
                let ends = pod.ends_from(step, began)?;
                let at = match is_delivered {
                    true => ends.kill,
                    false => self.signaled_by(step, began, ends),
                };
                (at, ends.kill)
            }
        };
        let then = match kill.since(at) {
            _ if is_delivered || kill <= at => Then::Killed,
            left if left <= MIN_GRACE => Then::LastSignal,
            _ => Then::StopSignal,
        };
        Some((at, then))
    }

    /// The latest time at which the container's stop signal is delivered in a step that begins at
    /// `began`. For a sidecar that stops after another sidecar, this is `ends.ask_all`. For any
    /// other container, this is `began`.
    fn signaled_by(&self, step: Step, began: Time, ends: StepDeadlines) -> Time {
        let is_next = self.pod.next_sidecar_to_stop() == Some(place(self.container));
        match step == Step::Sidecars && !is_next && !self.pod.is_parallel() {
            true => ends.ask_all.max(began),
            false => began,
        }
    }

    /// The next signal to a container that the caller stops outside of a termination, and the
    /// latest time of this signal. First comes the stop signal, later the caller's SIGKILL. `None`
    /// if the caller has sent no stop signal, or if a termination stops the container.
    fn next_signal_of_lone_stop(&self, now: Time) -> Option<(Time, Then)> {
        let request = self
            .container
            .request
            .filter(|_| self.container.is_asked())?;
        if self.pod.termination_for(self.container).is_some() {
            return None;
        }
        let signal = self.single_request_is_delivered();
        let signal = signal.map(|due| (self.pod.time(&due), Then::StopSignal));
        Some(signal.unwrap_or((request.deadline().max(now), Then::Killed)))
    }
}
