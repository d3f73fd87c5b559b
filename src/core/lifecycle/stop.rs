//! Stopping: signals in, and how they are delivered.

use std::time::Duration;

use crate::plan::{GracePolicy, Role, Signal};
use crate::process::ExitStatus;

use super::action::{Action, Cause, ContainerId, Refusal, RequestId};
use super::container::{Container, State, StopRequest, Stopping};
use super::grace::LEAST;
use super::start::NOT_STARTED;
use super::termination::Termination;
use super::time::Time;
use super::{DEFAULT_REQUEST_TIMEOUT, Pod, Timer};

/// The code of a container that was asked to stop before its program was executed.
pub(super) const STOPPED: u32 = 143;

/// As what the end of a program counts that was never executed, and is not to be any more.
pub(super) const NEVER_EXECUTED: ExitStatus = ExitStatus::Signal(15);

/// The code of a container that was killed before its program was executed.
const KILLED: u32 = 137;

/// A Kill of a container's init process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kill {
    pub signal: Signal,
    /// It is meant for all processes of the container.
    pub all: bool,
    /// What the call is willing to wait: kubelet's tells the real grace period.
    pub patience: Option<Duration>,
}

impl StopRequest {
    pub(super) fn new(at: Time, grace: Duration) -> StopRequest {
        StopRequest {
            at,
            deadline: at.after(grace),
            signal: None,
            all: false,
            disproved: false,
            forced: false,
        }
    }
}

impl Stopping {
    /// SIGKILL comes at `at`, if it does not come before.
    fn kill_at_latest(&mut self, at: Time) {
        self.kill_at = Some(self.kill_at.map_or(at, |earlier| earlier.min(at)));
    }
}

impl Container {
    /// The request that is open at `now`: the one there was, unless that proves nothing any more.
    pub(super) fn renew_request(&mut self, fresh: StopRequest, now: Time) -> &mut StopRequest {
        let over = |request: &StopRequest| request.disproved || request.deadline <= now;
        if self.request.as_ref().is_some_and(over) {
            self.request = None;
        }
        self.request.get_or_insert(fresh)
    }
}

// === what happened ===

impl Pod {
    /// The caller sends a signal. The answer comes as [`Action::AnswerKill`], or with what becomes
    /// of an [`Action::Signal`] that names the request.
    pub fn handle_kill(&mut self, now: Time, id: &ContainerId, request: RequestId, kill: Kill) {
        let refusal = match self.containers.get(id) {
            None => Some(Refusal::NotFound { id: id.clone() }),
            Some(container) if !container.is_ordered() || !container.is_alive() => {
                self.pass_on(id, request, kill);
                None
            }
            Some(_) if kill.signal == Signal::KILL => {
                self.kill(now, id, request, kill);
                None
            }
            Some(container) if self.is_stop_signal(container, kill.signal) => {
                self.request_stop(now, id, kill);
                self.answer_stop(now, id, request, kill.patience);
                None
            }
            Some(container) if container.is_parked() => {
                let waits_for = self.describe(&self.missing(container));
                Some(Refusal::Held {
                    name: container.name.clone(),
                    waits_for,
                })
            }
            Some(_) => {
                self.pass_on(id, request, kill);
                None
            }
        };
        if let Some(refusal) = refusal {
            self.actions.push_back(Action::AnswerKill {
                request,
                answer: Err(refusal),
            });
        }
        self.settle(now);
    }
}

// === what follows ===

impl Pod {
    fn pass_on(&mut self, id: &ContainerId, request: RequestId, kill: Kill) {
        self.actions.push_back(Action::Signal {
            id: id.clone(),
            signal: kill.signal,
            all: kill.all,
            request: Some(request),
        });
    }

    /// Under the CRI an image chooses its own stop signal, so any may be one; elsewhere only those
    /// that are never anything else.
    fn is_stop_signal(&self, container: &Container, signal: Signal) -> bool {
        let own = self
            .plan
            .as_ref()
            .and_then(|plan| plan.container(&container.name).stop_signal);
        let usual = [
            Signal::TERM,
            Signal::INT,
            Signal::QUIT,
            Signal::PWR,
            Signal::RTMIN_3,
        ]
        .contains(&signal);
        signal != Signal::KILL && (usual || own == Some(signal) || self.has_sandbox())
    }

    /// The signal to stop a container with: the one the caller asked for, else its own, else TERM.
    pub(super) fn stop_signal(&self, container: &Container) -> Signal {
        let asked = container
            .request
            .as_ref()
            .and_then(|request| request.signal);
        let own = || self.plan.as_ref()?.container(&container.name).stop_signal;
        asked.or_else(own).unwrap_or(Signal::TERM)
    }

    /// The grace period that the caller of a Kill really gives: it waits that long and a fixed time
    /// more for the answer. What the annotation says is what the pod was made with.
    fn real_grace(&self, container: &Container, patience: Option<Duration>) -> Duration {
        let annotated = self.annotated_grace(container);
        let base = self.request_timeout.unwrap_or(DEFAULT_REQUEST_TIMEOUT);
        match patience.and_then(|patience| patience.checked_sub(base)) {
            // Kubelet counts whole seconds, and a moment has gone by since it sent the call.
            Some(real) if !real.is_zero() => whole_seconds(real).min(annotated),
            _ => annotated,
        }
    }

    fn request_stop(&mut self, now: Time, id: &ContainerId, kill: Kill) {
        let Some(container) = self.containers.get(id) else {
            return;
        };
        let grace = self.real_grace(container, kill.patience);
        let unasked = self.stop_signal(container);
        // Also by a request that is over by now, or proves nothing any more.
        let asked_before = container.is_asked();
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let fresh = StopRequest {
            // Kubelet gives as much to whom it gives nothing.
            forced: grace <= LEAST,
            ..StopRequest::new(now, grace)
        };
        let request = container.renew_request(fresh, now);
        request.deadline = request.deadline.min(now.after(grace));
        request.signal = Some(kill.signal);
        request.all = kill.all;
        // Whoever asks a second time means it: the first signal may have been overheard. What the
        // shim has sent unasked is not repeated: many programs take a second one for `now`.
        let again = asked_before || kill.signal != unasked;
        let Some(container) = self.containers.get(id) else {
            return;
        };
        if again && container.stopping.signalled && matches!(container.state, State::Running(_)) {
            self.push_signal(id, kill.signal, kill.all);
        }
    }

    fn kill(&mut self, now: Time, id: &ContainerId, request: RequestId, kill: Kill) {
        let Some(container) = self.containers.get(id) else {
            return;
        };
        let grace = self.real_grace(container, kill.patience);
        if let Some(container) = self.containers.get_mut(id) {
            container.request.get_or_insert_with(|| StopRequest {
                forced: true,
                ..StopRequest::new(now, grace)
            });
        }
        // Whether the pod terminates decides what a sidecar is granted.
        self.settle_termination(now);
        self.learn_of_kill(now, id);
        let Some(container) = self.containers.get(id) else {
            return;
        };
        if container.defer_turn().is_some()
            && !container.is_parked()
            && let Some(termination) = &mut self.termination
        {
            termination.kill_defers();
        }
        if container.is_between_lives() {
            self.dismiss(id, now);
            self.answer_kill(request);
        } else if container.is_parked() {
            let code = match container.defer_turn() {
                Some(_) => self.code_of_defer(container, ExitStatus::Signal(9), now),
                None => KILLED,
            };
            self.end(id, code, None);
            self.answer_kill(request);
        } else if matches!(container.state, State::Restarting { .. }) {
            if let Some(container) = self.containers.get_mut(id) {
                container.stopping.kill_at = Some(now);
            }
            self.answer_kill(request);
        } else if self.grants_last_chance(container) {
            self.last_chance(id, now.after(LEAST), now);
            self.answer_kill(request);
        } else {
            if let Some(container) = self.containers.get_mut(id) {
                container.stopping.killed = true;
            }
            self.pass_on(id, request, kill);
        }
    }

    /// A sidecar that is killed before its turn gets its stop signal and a moment.
    fn grants_last_chance(&self, container: &Container) -> bool {
        let strict = self
            .budget()
            .is_some_and(|budget| budget.policy == GracePolicy::Strict);
        let stopping = &container.stopping;
        self.termination.is_some()
            && !strict
            && container.role == Role::Sidecar
            && !stopping.killed
            && (!stopping.signalled || stopping.last_chance)
    }

    /// Delivers the stop signal, or TERM where that was delivered before, and sees to it that
    /// SIGKILL follows at `kill_at`.
    pub(super) fn last_chance(&mut self, id: &ContainerId, kill_at: Time, now: Time) {
        let Some(container) = self.containers.get(id) else {
            return;
        };
        if container.stopping.last_chance || container.stopping.killed {
            return;
        }
        if container.is_between_lives() {
            return self.dismiss(id, now);
        }
        let executing = matches!(
            container.state,
            State::Releasing { .. } | State::Restarting { .. }
        );
        let signal = match container.stopping.signalled {
            true => Signal::TERM,
            false => self.stop_signal(container),
        };
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let stopping = &mut container.stopping;
        stopping.kill_at_latest(kill_at);
        // The runtime's parked init would take the signal for its own.
        if executing {
            return;
        }
        stopping.signalled = true;
        stopping.last_chance = true;
        stopping.told_at.get_or_insert(now);
        self.push_signal(id, signal, false);
    }

    /// Delivers the stop signal. A container whose program is just being executed gets it when that
    /// is done: the runtime's parked init would take it for its own.
    pub(super) fn deliver_stop(&mut self, id: &ContainerId, now: Time) {
        let Some(container) = self.containers.get(id) else {
            return;
        };
        if container.is_parked() && container.defer_turn().is_some() {
            return self.skip_defer(id, now);
        }
        if container.is_parked() {
            return match self.termination.as_ref().map(Termination::cause) {
                Some(cause @ Cause::InitFailed { .. }) if !container.is_asked() => {
                    let name = &container.name;
                    let message =
                        format!("usher: {name} is not started: the pod terminates: {cause}");
                    self.end(id, NOT_STARTED, Some(message));
                }
                _ => {
                    let code = match container.role {
                        Role::Sidecar if !container.is_asked() => {
                            self.code_of_one_told_to_go(container, NEVER_EXECUTED, now)
                        }
                        _ => STOPPED,
                    };
                    self.end(id, code, None)
                }
            };
        }
        if container.is_between_lives() {
            return self.dismiss(id, now);
        }
        if container.stopping.signalled || !matches!(container.state, State::Running(_)) {
            return;
        }
        let signal = self.stop_signal(container);
        let all = container
            .request
            .as_ref()
            .is_some_and(|request| request.all);
        let cap = self
            .plan
            .as_ref()
            .and_then(|plan| plan.container(&container.name).grace_period)
            // That of a defer container is for its whole turn.
            .filter(|_| container.defer_turn().is_none());
        if let Some(container) = self.containers.get_mut(id) {
            let stopping = &mut container.stopping;
            stopping.signalled = true;
            let began = *stopping.told_at.get_or_insert(now);
            if let Some(kill_at) = cap.map(|cap| began.after(cap)) {
                stopping.kill_at_latest(kill_at);
            }
        }
        self.push_signal(id, signal, all);
    }

    /// The time of a container was over at `due`.
    pub(super) fn kill_now(&mut self, id: &ContainerId, due: Time, now: Time) {
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        if container.is_between_lives() {
            self.dismiss(id, now);
        } else if container.is_parked() {
            self.deliver_stop(id, now);
        } else {
            container.stopping.kill_at_latest(due);
            container.stopping.told_at.get_or_insert(now);
        }
    }

    pub(super) fn settle_kills(&mut self, now: Time) {
        for id in self.ids() {
            let Some(container) = self.containers.get_mut(&id) else {
                continue;
            };
            let stopping = &mut container.stopping;
            let due = stopping.kill_at.is_some_and(|kill_at| kill_at <= now);
            if !due || stopping.killed {
                continue;
            }
            if container.has_process() {
                container.stopping.killed = true;
                self.push_signal(&id, Signal::KILL, false);
            } else if matches!(container.state, State::Restarting { .. }) {
                container.stopping.killed = true;
                self.actions.push_back(Action::Halt { id });
            }
        }
    }

    pub(super) fn stop_timers(&self, timers: &mut Vec<(Time, Timer)>) {
        for (id, container) in &self.containers {
            if !container.has_process() && !matches!(container.state, State::Restarting { .. }) {
                continue;
            }
            if let Some(kill_at) = container.stopping.kill_at
                && !container.stopping.killed
            {
                timers.push((kill_at, Timer::Kill));
            }
            if container.is_asked()
                && container.is_ordered()
                && self.termination.is_none()
                && let Some(due) = self.lone_stop_due(id, container)
            {
                timers.push((due, Timer::LoneStop));
            }
        }
    }
}

fn whole_seconds(time: Duration) -> Duration {
    let part = u64::from(time.subsec_nanos() > 0);
    Duration::from_secs(time.as_secs().saturating_add(part))
}
