//! Is the pod terminating?
//!
//! A Kill does not say why it came. Kubelet stops the containers of a living pod one at a time and
//! waits for each; only at the end of the pod it asks all of them at once. So two requests that are
//! open at the same time are a termination, and a lone one is what it says, after a moment in which
//! the second one could still come. Where nothing is left that a second one could come for, the lone
//! one is the end of the pod: a cleanup that never runs is the greater harm.

use std::time::Duration;

use crate::plan::PreStop;

use super::Pod;
use super::action::{Cause, Why};
use super::container::{AtTheEnd, Container, HookState};
use super::grace::LEAST;
use super::report::Report;
use super::request::StopRequest;
use super::rules::{Deed, Due, Subject};
use super::termination::Termination;
use super::time::Time;

/// A request that is open.
pub(super) struct OpenRequest<'a> {
    pub container: &'a Container,
    pub request: &'a StopRequest,
}

impl Pod {
    /// The termination that the requests are which are open now, and from when on they are.
    pub(super) fn inferred(&self) -> Option<(Time, Termination)> {
        let open: Vec<_> = self.open_requests().collect();
        let known = match open.as_slice() {
            [] => return None,
            [lone] => self.lone_end(lone)?,
            _ => self.now,
        };
        // A container that was told alone, long before, has a deadline of its own and is no part of this. But if
        // its deadline is that of the others, all were asked at once, and a preStop handler has hidden it.
        let others = || open.iter().filter(|open| !open.request.is_alone());
        let first = others().map(|open| open.request.at()).min();
        let since = first.map(|at| at.before(self.termination_window()));
        let ends = others().map(|open| open.request.deadline()).min();
        let is_of_it = |request: &StopRequest| {
            let ends_with = ends.is_some_and(|ends| request.ends_with(ends));
            request.is_of_end_since(since.unwrap_or_default()) || ends_with
        };
        let (callers, ours): (Vec<_>, Vec<_>) = open
            .iter()
            // The caller's own are told at once, whatever that means.
            .partition(|open| open.container.duty().is_callers());
        let forced = !ours.is_empty() && ours.iter().all(|open| open.request.is_forced());
        let mut counts: Vec<_> = ours
            .iter()
            .filter(|open| is_of_it(open.request))
            .map(|open| open.request)
            .collect();
        if counts.is_empty() {
            counts.extend(callers.iter().chain(&ours).map(|open| open.request));
        }
        let since = counts.iter().map(|request| request.at()).min();
        let deadline = counts.iter().map(|request| request.deadline()).min();
        let termination = Termination::new(
            Cause::Inferred,
            since.unwrap_or(self.now),
            deadline.unwrap_or(self.now),
            known,
        );
        Some((known, termination.forced(forced)))
    }

    /// The requests that are open now, and whose they are.
    pub(super) fn open_requests(&self) -> impl Iterator<Item = OpenRequest<'_>> {
        self.containers.values().filter_map(|container| {
            let request = container.open_request(self.now)?;
            Some(OpenRequest { container, request })
        })
    }

    /// When a lone request is the end of the pod, if it is.
    fn lone_end(&self, lone: &OpenRequest<'_>) -> Option<Time> {
        let OpenRequest { container, request } = lone;
        let may_be = !request.is_kill()
            && !container.is_hardly_asked()
            && !container.duty().is_callers()
            && container.life.reads_running()
            && self.has_an_ending();
        if !may_be {
            return None;
        }
        let mut others = self.containers.values().filter(|other| {
            other.number != container.number && other.is_ordered() && other.life.reads_running()
        });
        if others.clone().next().is_none() {
            return Some(request.at());
        }
        let is_held_defer = container.defer_turn().is_some() && container.life.is_held();
        let ends = is_held_defer && !others.any(|other| other.duty().is_work);
        ends.then(|| request.at().after(self.termination_window()))
    }

    /// Whether there is something that is to be done when the pod terminates.
    pub(super) fn has_an_ending(&self) -> bool {
        let Some(plan) = &self.plan else {
            return false;
        };
        let mut defers = plan.pre_exit().iter().chain(plan.post_exit());
        plan.has_termination_hooks() || defers.any(|name| !self.history.was_deferred(name))
    }

    /// The caller creates a container, and kubelet creates none in a pod that it ends.
    pub(super) fn disprove_termination(&mut self, by: &str) {
        let is_inferred = |termination: &Termination| !termination.cause().is_decided();
        if !self.termination.as_ref().is_some_and(is_inferred) {
            return;
        }
        let was_over = self.termination.take().is_some_and(|it| it.is_over());
        let mut containers = self.containers.values();
        let is_alive = containers.any(|it| it.is_ordered() && it.life.is_alive());
        // Without a sandbox container a pod that has ended is made anew in its place.
        if was_over && !is_alive && !self.has_sandbox() {
            return self.restart_all(by);
        }
        // What has run in it runs again at the real end.
        self.history.forget_defers();
        for container in self.containers.values_mut() {
            if let Some(request) = &mut container.request {
                request.disprove();
            }
            if container.at_the_end == AtTheEnd::Hook(HookState::Over) {
                container.at_the_end = AtTheEnd::Hook(HookState::Pending);
            }
        }
        self.out.report(Report::NotTerminating {
            disproved_by: by.to_owned(),
        });
    }

    pub(super) fn termination_window(&self) -> Duration {
        self.plan
            .as_ref()
            .map_or(Duration::ZERO, |plan| plan.settings().termination_window)
    }
}

impl Subject<'_> {
    /// Rule: a request that is not part of a termination, or not of one that is known of, is
    /// delivered.
    pub(super) fn lone_request_is_heeded(&self) -> Option<Due<Deed>> {
        let container = self.container;
        if !container.is_asked() || !container.is_ordered() || !self.can_be_told() {
            return None;
        }
        // The caller's own are not ours to keep waiting.
        if container.duty().is_callers() {
            return Some(Due::Now(self.told(Why::Alone)));
        }
        if self.pod.termination.is_some() {
            // A container that was created for what follows the end is no part of the end. One that is
            // parked has nothing to wait for, unless it is a defer container.
            let is_none_of_it = container.is_of_next_run
                || container.life.is_parked() && container.defer_turn().is_none();
            return is_none_of_it.then(|| Due::Now(self.told(Why::Turn)));
        }
        let at = self.lone_stop_at(container.request.as_ref()?);
        Some(self.pod.due(at, || self.told(Why::Alone)))
    }

    /// When a lone request is delivered: until then a second one may come, which makes it a
    /// termination.
    fn lone_stop_at(&self, request: &StopRequest) -> Time {
        let container = self.container;
        // Its hook began in a termination that was none.
        if container.is_hooked() {
            return request.deadline().before(LEAST);
        }
        let window = request.at().after(self.pod.termination_window());
        let has_an_ending = self.round.has_an_ending;
        if !container.duty().is_helper && container.defer_turn().is_none() {
            return match has_an_ending {
                true => window.min(request.deadline()),
                false => request.at(),
            };
        }
        let others = || {
            let others = self.pod.containers.iter();
            others.filter(|(other, container)| *other != self.id && container.is_ordered())
        };
        if !has_an_ending && !others().any(|(_, other)| other.life.is_executed()) {
            return request.at();
        }
        // At the end of its pod kubelet asks all of them at once: the first whose silence is proof ends the wait.
        let proofs = others().filter_map(|(_, other)| other.silence_proves_at(request, window));
        let proven = proofs.min().unwrap_or(window);
        proven.max(window).min(request.deadline())
    }

    /// Whether it could be told to stop, and was not: it runs, or waits, or is between lives. One that
    /// is being executed, or killed, cannot.
    pub(super) fn can_be_told(&self) -> bool {
        let life = &self.container.life;
        let is_untold = life
            .as_running()
            .is_some_and(|running| !running.stop.is_told());
        is_untold || life.is_parked() || life.is_between_lives()
    }
}

impl Container {
    /// The time from which the silence of this container proves that its pod lives on though `request` was made
    /// of another; `None` if its silence proves nothing. `window` is the end of the termination window.
    fn silence_proves_at(&self, request: &StopRequest, window: Time) -> Option<Time> {
        let own = self.request.as_ref();
        // Kubelet asks only what it has seen running, and its own init containers when the others have ended.
        let is_asked_at_the_end = self.life.reads_running()
            && self.life.open_start().is_none()
            && !self.duty().is_callers()
            && !own.is_some_and(|own| own.is_open(request.at()));
        // containerd sends the stop signal of a container once.
        let was_asked = own.is_some_and(|own| own.signal().is_some());
        let grace = request.deadline().since(request.at());
        let last = request.deadline().before(LEAST);
        match &self.facts.pre_stop {
            _ if !is_asked_at_the_end => None,
            Some(PreStop::Sleep(_)) => Some(window.after(self.hides_a_stop_for(grace)).min(last)),
            Some(PreStop::HttpGet | PreStop::TcpSocket | PreStop::Other) => {
                Some(request.at().after(self.hides_a_stop_for(grace)))
            }
            Some(PreStop::Exec { .. }) | None => (!was_asked).then_some(window),
        }
    }

    /// The longest time for which a preStop handler hides the stop request that follows it, if the caller gives
    /// `grace` for both. The shim sees `exec` handlers, and knows how long a `sleep` takes; of the others it waits
    /// for half of the grace period, so that the other half is left to the container that was asked.
    pub(super) fn hides_a_stop_for(&self, grace: Duration) -> Duration {
        match &self.facts.pre_stop {
            Some(PreStop::Sleep(pause)) => *pause,
            Some(PreStop::HttpGet | PreStop::TcpSocket | PreStop::Other) => {
                grace.checked_div(2).unwrap_or_default()
            }
            Some(PreStop::Exec { .. }) | None => Duration::ZERO,
        }
    }
}
