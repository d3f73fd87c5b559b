//! The inference of a termination from stop requests.
//!
//! A Kill does not say why it came. Kubelet stops the containers of a living pod one at a time and
//! waits for each. When the pod ends, kubelet asks all of its containers to stop at once. So two
//! stop requests that are open at the same time mean a termination. If a second request could come,
//! but does not come within a short time (the setting `termination-window`), the first request
//! stops only its container. If no second request can come, because no other container runs, the
//! single request means a termination: a cleanup that never runs does more harm than a cleanup that
//! runs twice.

use std::time::Duration;

use crate::plan::PreStop;

use super::Pod;
use super::action::{Cause, SignalReason};
use super::container::Container;
use super::grace::MIN_GRACE;
use super::request::StopRequest;
use super::rules::{Decision, Due, Subject};
use super::termination::Termination;
use super::time::Time;

pub(super) struct OpenRequest<'a> {
    pub container: &'a Container,
    pub request: &'a StopRequest,
}

impl Pod {
    /// The termination implied by the open stop requests, and when it begins. Two or more open
    /// requests mean a termination now. For a single request, `lone_request_ends_pod_at` decides if
    /// and when it means a termination. `None` if the requests mean no termination.
    pub(super) fn inferred(&self) -> Option<(Time, Termination)> {
        let open: Vec<_> = self.open_requests().collect();
        let known = match open.as_slice() {
            [] => return None,
            [lone] => self.lone_request_ends_pod_at(lone)?,
            _ => self.now,
        };
        // usher may have treated an earlier request as the stop of one container, and delivered it
        // long before the others. Such a request counts only if its deadline is the same as the
        // deadline of the others. preStop handlers have then delayed the others.
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
            // Requests for containers that the caller alone starts and stops do not set the
            // deadline of the termination. But if no other request counts, all open requests set
            // it.
            .partition(|open| open.container.role_policy().is_left_to_caller());
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

    /// The open stop requests that may be part of a termination, with their containers. Once the
    /// termination of the current run has begun, requests for containers of the next run are left
    /// out.
    pub(super) fn open_requests(&self) -> impl Iterator<Item = OpenRequest<'_>> {
        self.containers.values().filter_map(|container| {
            let counts = !container.is_of_next_run || self.termination.is_none();
            let request = container.open_request(self.now).filter(|_| counts)?;
            Some(OpenRequest { container, request })
        })
    }

    /// The time when `lone`, the only open stop request, counts as the termination of the pod:
    ///
    /// - If the caller sees no other container as running: the time of the request.
    /// - If the request is for a held defer container, and no app runs: one termination window
    ///   later.
    /// - Otherwise `None`, because a second request can still come.
    ///
    /// Native init containers and containers outside the pod's plan do not count as other
    /// containers. The result is always `None` in these cases:
    ///
    /// - No hook or defer container is left to run.
    /// - The request is a SIGKILL, or is [doubtful](Container::is_request_doubtful).
    /// - The request is for a native init container, or for a container outside the pod's plan.
    /// - The request is for a container that the caller does not see as running.
    fn lone_request_ends_pod_at(&self, lone: &OpenRequest<'_>) -> Option<Time> {
        let OpenRequest { container, request } = lone;
        let may_be = !request.is_kill()
            && !container.is_request_doubtful()
            && !container.role_policy().is_left_to_caller()
            && container.state.is_running_for_caller()
            && self.has_an_ending();
        if !may_be {
            return None;
        }
        let mut others = self.containers.values().filter(|other| {
            // Kubelet stops native init containers only after all others have exited. So they do
            // not count here.
            other.number != container.number
                && other.is_ordered()
                && !other.role_policy().is_left_to_caller()
                && other.state.is_running_for_caller()
        });
        if others.clone().next().is_none() {
            return Some(request.at());
        }
        let is_held_defer = container.defer_turn().is_some() && container.state.is_held();
        let ends = is_held_defer && !others.any(|other| other.role_policy().is_work);
        ends.then(|| request.at().after(self.termination_window()))
    }

    /// True if a termination of this pod would have hooks or defer containers to run: the plan has
    /// a termination hook, or lists a defer container that has not run.
    pub(super) fn has_an_ending(&self) -> bool {
        let Some(plan) = &self.plan else {
            return false;
        };
        let mut defers = plan.pre_exit().iter().chain(plan.post_exit());
        plan.has_termination_hooks() || defers.any(|name| !self.history.was_deferred(name))
    }

    pub(super) fn termination_window(&self) -> Duration {
        self.plan
            .as_ref()
            .map_or(Duration::ZERO, |plan| plan.settings().termination_window)
    }
}

impl Subject<'_> {
    /// Rule: the stop signal of a request that is not part of a known termination is delivered,
    /// unless the shim waits for a second request (`single_request_due_at`).
    pub(super) fn single_request_is_delivered(&self) -> Option<Due<Decision>> {
        let container = self.container;
        if !container.is_asked() || !container.is_ordered() || !self.can_be_stopped_now() {
            return None;
        }
        // The shim does not delay stop requests for containers that only the caller starts and
        // stops.
        if container.role_policy().is_left_to_caller() {
            return Some(Due::Now(self.deliver_stop(SignalReason::Alone)));
        }
        if self.pod.termination.is_some() {
            // A container of the next run is not part of the termination. Of the containers whose
            // program is not executed yet, only defer containers wait for a turn. All others are
            // stopped at once.
            let is_none_of_it = container.is_of_next_run
                || container.state.is_parked() && container.defer_turn().is_none();
            return is_none_of_it.then(|| Due::Now(self.deliver_stop(SignalReason::Turn)));
        }
        let at = self.single_request_due_at(container.request.as_ref()?);
        Some(self.pod.due(at, || self.deliver_stop(SignalReason::Alone)))
    }

    /// The time at which the shim delivers `request` as the stop of this container alone. A second
    /// request before that time means a termination instead. Called only outside of a termination.
    ///
    /// - While the container still runs the hook of a termination that was inferred by mistake: two
    ///   seconds before the deadline of `request`.
    /// - If a termination would have no hook or defer container to run: the time of `request`. For
    ///   a sidecar or defer container, this applies only if no other container runs.
    /// - Otherwise: the time of `request` plus the setting `termination-window`, or the deadline of
    ///   `request` if that is earlier. For a sidecar or defer container, the time is later if
    ///   preStop handlers may delay the second request.
    fn single_request_due_at(&self, request: &StopRequest) -> Time {
        let container = self.container;
        // The container still runs a termination hook, although the termination was inferred by
        // mistake. The signal waits for the hook, until two seconds before the caller's SIGKILL.
        if container.is_hooked() {
            return request.deadline().before(MIN_GRACE);
        }
        let window = request.at().after(self.pod.termination_window());
        let has_an_ending = self.pod_facts.has_an_ending;
        if !container.role_policy().is_helper && container.defer_turn().is_none() {
            return match has_an_ending {
                true => window.min(request.deadline()),
                false => request.at(),
            };
        }
        let others = || {
            let others = self.pod.containers.iter();
            others.filter(|(other, container)| *other != self.id && container.is_ordered())
        };
        if !has_an_ending && !others().any(|(_, other)| other.state.is_executed()) {
            return request.at();
        }
        // Kubelet stops all containers of a pod at once. So the wait ends as soon as one container
        // should have got a stop request of its own and has not.
        let proofs = others().filter_map(|(_, other)| other.silence_proves_at(request, window));
        let proven = proofs.min().unwrap_or(window);
        proven.max(window).min(request.deadline())
    }

    /// True if the container can be stopped now, in one of three cases. Its program runs and has
    /// not got its stop signal. Or it waits for its Start or its turn. Or its program has exited
    /// without the caller's knowledge, because it is to be restarted in place or its success is
    /// withheld.
    pub(super) fn can_be_stopped_now(&self) -> bool {
        let state = &self.container.state;
        let is_undelivered = state
            .as_running()
            .is_some_and(|running| !running.stop.is_delivered());
        is_undelivered || state.is_parked() || state.is_between_executions()
    }
}

impl Container {
    /// The time by which the caller also asks this container to stop if the caller ends the pod.
    /// `request` is the caller's stop request for another container. If this container gets no stop
    /// request by that time, the pod lives on. `None` if a missing request proves nothing, for
    /// example because the container does not run. `window` is the time of `request` plus the
    /// setting `termination-window`.
    fn silence_proves_at(&self, request: &StopRequest, window: Time) -> Option<Time> {
        let own = self.request.as_ref();
        // Kubelet stops only containers that it has seen running. It stops native init containers
        // after all others have exited.
        let is_asked_at_the_end = self.state.is_running_for_caller()
            && self.state.open_start().is_none()
            && !self.role_policy().is_left_to_caller()
            && !own.is_some_and(|own| own.is_open(request.at()));
        // containerd sends the stop signal of a container once. If the signal was sent already, the
        // lack of another request proves nothing.
        let was_asked = own.is_some_and(|own| own.signal().is_some());
        let grace = request.deadline().since(request.at());
        let last = request.deadline().before(MIN_GRACE);
        match &self.facts.pre_stop {
            _ if !is_asked_at_the_end => None,
            Some(PreStop::Sleep(_)) => Some(window.after(self.hides_a_stop_for(grace)).min(last)),
            Some(PreStop::HttpGet | PreStop::TcpSocket | PreStop::Other) => {
                Some(request.at().after(self.hides_a_stop_for(grace)))
            }
            Some(PreStop::Exec { .. }) | None => (!was_asked).then_some(window),
        }
    }

    /// The longest time for which a preStop handler that the shim does not see can delay the
    /// container's stop request. Zero without a handler, and for an `exec` handler, which the shim
    /// sees. `grace` is the time for the handler and the stop together. A handler other than
    /// `sleep` is assumed to take half of it. The other half is left to the container that was
    /// asked to stop.
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
