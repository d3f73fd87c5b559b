//! Startup: when a running sidecar counts as started.
//!
//! KEP-753, "Started condition": the process runs, its startup probe has succeeded, and its
//! postStart handler is over. The core counts and times the attempts; the driver only makes them.

use std::time::Duration;

use crate::plan::{PreStop, Probe, Role, Signal};

use super::action::{Action, ContainerId, Refusal, Report};
use super::container::{Container, Probing, Running, Startup, State, StopRequest};
use super::time::Time;
use super::{Pod, Timer};

/// An Exec without a deadline that comes this soon after Start's answer is taken for postStart.
const POST_START_WITHIN: Duration = Duration::from_secs(1);

/// An Exec that the caller asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exec<'a> {
    pub id: &'a str,
    pub argv: &'a [String],
    /// Kubelet gives its probes a deadline, its handlers and interactive sessions none.
    pub has_deadline: bool,
}

impl Startup {
    /// The startup of a program that is executed at `now`.
    pub(super) fn begin(probe: Option<Probe>, now: Time) -> Startup {
        match probe {
            None => Startup::Done,
            Some(probe) => {
                let next = Some(now.after(probe.initial_delay));
                Startup::Probing(Probing {
                    probe,
                    failures: 0,
                    next,
                    began: now,
                })
            }
        }
    }
}

// === what happened ===

impl Pod {
    /// What became of [`Action::Probe`], and how much CPU time the attempt took of those who do not
    /// belong to the pod.
    pub fn handle_probed(
        &mut self,
        now: Time,
        id: &ContainerId,
        life: u64,
        succeeded: bool,
        cost: Duration,
    ) {
        self.charge(now, id, life, cost);
        self.live_probed(now, id, life, succeeded);
        if let Some(container) = self.containers.get_mut(id)
            && let State::Running(running) = &mut container.state
            // The container may have been restarted since, or had its id from another.
            && running.life == life
            && let Startup::Probing(probing) = &mut running.startup
            && probing.next.is_none()
        {
            if succeeded {
                running.startup = Startup::Done;
                self.report_if_started(now, id);
            } else {
                probing.failures = probing.failures.saturating_add(1);
                // As a ticker does: the next attempt is a period after the last one began.
                probing.next = Some(probing.began.after(probing.probe.period).max(now));
                let report = Report::ProbeFailed {
                    name: container.name.clone(),
                    failures: probing.failures,
                    threshold: probing.probe.failure_threshold,
                };
                self.report(report);
            }
        }
        self.settle(now);
    }

    /// The caller asks for an Exec.
    ///
    /// # Errors
    ///
    /// [`Refusal::Held`] for a probe, or the container's preStop handler, while its program has not
    /// been executed: kubelet discards the result of a probe that could not be made, but counts one
    /// that failed.
    pub fn handle_exec(
        &mut self,
        now: Time,
        id: &ContainerId,
        exec: &Exec<'_>,
    ) -> Result<(), Refusal> {
        let Some(container) = self.containers.get(id) else {
            return Err(Refusal::NotFound { id: id.clone() });
        };
        if !container.is_ordered() {
            return Ok(());
        }
        let is_pre_stop = !exec.has_deadline
            && matches!(
                &container.facts.pre_stop,
                Some(PreStop::Exec { command }) if command.as_slice() == exec.argv
            );
        if container.is_parked() && (exec.has_deadline || is_pre_stop) {
            let waits_for = self.describe(&self.missing(container));
            return Err(Refusal::Held {
                name: container.name.clone(),
                waits_for,
            });
        }
        let grace = self.annotated_grace(container);
        let creations = self.creations;
        let Some(container) = self.containers.get_mut(id) else {
            return Ok(());
        };
        let is_post_start = !exec.has_deadline
            && container.answered.is_some_and(|answered| {
                now.since(answered.at) <= POST_START_WITHIN && answered.creations == creations
            });
        // Both handlers may be the same command: then it is the one whose time it is.
        if is_post_start {
            container.answered = None;
            container.post_start = Some(exec.id.to_owned());
        } else if is_pre_stop {
            container.renew_request(StopRequest::new(now, grace), now);
        }
        self.settle(now);
        Ok(())
    }

    /// An Exec is over, or never came about.
    pub fn handle_exec_over(&mut self, now: Time, id: &ContainerId, exec_id: &str) {
        if let Some(container) = self.containers.get_mut(id)
            && container.post_start.as_deref() == Some(exec_id)
        {
            container.post_start = None;
            self.report_if_started(now, id);
        }
        self.settle(now);
    }
}

// === what follows ===

impl Pod {
    pub(super) fn report_if_started(&mut self, now: Time, id: &ContainerId) {
        if let Some(container) = self.containers.get(id)
            && container.role == Role::Sidecar
            && container.is_started()
            && let State::Running(running) = &container.state
        {
            let report = Report::Started {
                name: container.name.clone(),
                took: now.since(running.since),
            };
            self.report(report);
        }
    }

    pub(super) fn settle_probes(&mut self, now: Time) {
        // A pod that is being stopped starts nothing: whether a sidecar is ready is of no interest.
        if self.termination.is_some() {
            return;
        }
        for id in self.ids() {
            if let Some(container) = self.containers.get(&id)
                && let Some((_, probing)) = container.probing()
                && probing.failures >= probing.probe.failure_threshold
            {
                self.give_up_on(&id, now);
            }
        }
        while let Some((next, id)) = self.next_to_be_probed()
            && next <= now
        {
            let Some(container) = self.containers.get_mut(&id) else {
                return;
            };
            let expected = self.allowance.expected(container.probe_cost);
            let Some((life, probing)) = container.probing_mut() else {
                return;
            };
            let free_at = self.allowance.free_at(expected);
            if free_at > now {
                return;
            }
            let period = probing.probe.period;
            probing.next = None;
            probing.began = now;
            self.allowance.begin(now, life, expected);
            let name = container.name.clone();
            if free_at > next {
                self.tell_of_stretching(name, period);
            }
            self.actions.push_back(Action::Probe { id, life });
        }
    }

    /// Whose attempt is the next, and when it is due: who has waited the longest comes first, whatever
    /// the attempts of the others cost.
    fn next_to_be_probed(&self) -> Option<(Time, ContainerId)> {
        let due = self.containers.iter().filter_map(|(id, container)| {
            let next = container.probing()?.1.next?;
            Some((next, container.number, id))
        });
        due.min().map(|(next, _, id)| (next, id.clone()))
    }

    /// Pays for an attempt that is over.
    fn charge(&mut self, now: Time, id: &ContainerId, life: u64, cost: Duration) {
        let container = self.containers.get_mut(id);
        let known = container.as_ref().and_then(|known| known.probe_cost);
        let expected = self.allowance.over(now, life, cost, known);
        if let (Some(container), Some(expected)) = (container, expected) {
            container.probe_cost = Some(expected);
        }
    }

    /// An attempt was put off, since those before it had used up what all may take together. The log
    /// is told, if that is not for a moment only.
    pub(super) fn tell_of_stretching(&mut self, name: String, period: Duration) {
        let probed = self.containers.values();
        let probed = probed.filter(|probed| probed.name == name || probed.probing().is_some());
        let costs = probed.map(|probed| self.allowance.expected(probed.probe_cost));
        let to = self
            .allowance
            .period(costs.fold(Duration::ZERO, Duration::saturating_add));
        if to > period && !self.allowance.is_reported {
            self.allowance.is_reported = true;
            self.report(Report::Stretched { name, period, to });
        }
    }

    /// Stops a container whose startup probe has failed too often, as kubelet does: with its stop
    /// signal, and SIGKILL when the grace period is over. Whether it comes back is its restart
    /// policy's business.
    fn give_up_on(&mut self, id: &ContainerId, now: Time) {
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        if let State::Running(running) = &mut container.state {
            running.startup = Startup::Failed;
        }
        let Some(container) = self.containers.get(id) else {
            return;
        };
        if container.stopping.signalled || container.stopping.killed {
            return;
        }
        let kill_at = now.after(self.annotated_grace(container));
        let signal = self.stop_signal(container);
        if let Some(container) = self.containers.get_mut(id) {
            container.startup_failed = true;
            container.stopping.signalled = true;
            container.stopping.kill_at = Some(kill_at);
        }
        self.push_signal(id, signal, false);
    }

    pub(super) fn push_signal(&mut self, id: &ContainerId, signal: Signal, all: bool) {
        self.actions.push_back(Action::Signal {
            id: id.clone(),
            signal,
            all,
            request: None,
        });
    }

    pub(super) fn probe_timers(&self, timers: &mut Vec<(Time, Timer)>) {
        if self.termination.is_some() {
            return;
        }
        // Whoever is due behind it waits for it.
        if let Some((next, id)) = self.next_to_be_probed()
            && let Some(container) = self.containers.get(&id)
        {
            let expected = self.allowance.expected(container.probe_cost);
            let free_at = self.allowance.free_at(expected);
            timers.push((next.max(free_at), Timer::Probe));
        }
    }
}

impl Container {
    fn probing(&self) -> Option<(u64, &Probing)> {
        match &self.state {
            State::Running(Running {
                startup: Startup::Probing(probing),
                life,
                ..
            }) => Some((*life, probing)),
            _ => None,
        }
    }

    fn probing_mut(&mut self) -> Option<(u64, &mut Probing)> {
        match &mut self.state {
            State::Running(Running {
                startup: Startup::Probing(probing),
                life,
                ..
            }) => Some((*life, probing)),
            _ => None,
        }
    }
}
