//! Probes of running containers. A startup probe tells when a sidecar has started up, and a
//! liveness probe if the sidecar still works.
//!
//! KEP-753, "Started condition": the process runs, and its startup probe and postStart handler
//! (`exec.rs`) have succeeded. The core counts and schedules the attempts; the driver only makes
//! them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::plan::Probe;

use super::Pod;
use super::action::{Action, ActionError, ContainerId, ProbeKind, SignalReason};
use super::container::Container;
use super::effects::ContainerContext;
use super::report::Report;
use super::request::StopRequest;
use super::rules::{Decision, Due, Subject};
use super::state::Freezer;
use super::time::Time;

/// The probe in use for a running program.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) enum Watch {
    /// The startup probe: the container does not count as started before the probe succeeds.
    Startup(Box<Probing>),
    /// The liveness probe of a container that is started.
    Liveness(Box<Probing>),
    /// No probe: none is set, or none is needed any more.
    Nothing,
    /// No probe any more: the startup probe has failed too often.
    NeverUp,
}

/// The attempts of a probe.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Probing {
    pub probe: Probe,
    /// Consecutive failures.
    pub failures: u32,
    /// The time of the next attempt; `None` while an attempt is under way.
    pub next: Option<Time>,
    /// Start of the attempt under way.
    began: Time,
}

/// A probe whose attempts are made less often than its period says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretched {
    period: Duration,
    /// The actual time between attempts.
    to: Duration,
}

impl Watch {
    /// The probe in use when a program begins at `now`. `probe` is its startup probe. Without one,
    /// the result is [`Watch::Nothing`].
    pub fn startup(probe: Option<&Probe>, now: Time) -> Watch {
        probe.map_or(Watch::Nothing, |probe| {
            Watch::Startup(Box::new(Probing::new(probe, now, now)))
        })
    }

    /// The probe in use for a program that counts as started from `now`. The program was executed
    /// at `since`, and `probe` is its liveness probe.
    pub fn liveness(probe: Option<&Probe>, since: Time, now: Time) -> Watch {
        probe.map_or(Watch::Nothing, |probe| {
            Watch::Liveness(Box::new(Probing::new(probe, since, now)))
        })
    }

    /// True if the container has a startup probe that has not succeeded: attempts are still made,
    /// or too many have failed.
    pub fn is_startup(&self) -> bool {
        matches!(self, Watch::Startup(_) | Watch::NeverUp)
    }

    pub fn probing(&self) -> Option<(ProbeKind, &Probing)> {
        match self {
            Watch::Startup(probing) => Some((ProbeKind::Startup, probing)),
            Watch::Liveness(probing) => Some((ProbeKind::Liveness, probing)),
            Watch::Nothing | Watch::NeverUp => None,
        }
    }

    fn probing_mut(&mut self) -> Option<(ProbeKind, &mut Probing)> {
        match self {
            Watch::Startup(probing) => Some((ProbeKind::Startup, probing)),
            Watch::Liveness(probing) => Some((ProbeKind::Liveness, probing)),
            Watch::Nothing | Watch::NeverUp => None,
        }
    }
}

impl Probing {
    /// True if the probe has failed so often that no attempt follows.
    fn has_failed(&self) -> bool {
        self.failures >= self.probe.failure_threshold
    }

    fn new(probe: &Probe, since: Time, now: Time) -> Probing {
        Probing {
            probe: probe.clone(),
            failures: 0,
            next: Some(since.after(probe.initial_delay).max(now)),
            began: now,
        }
    }
}

impl Pod {
    /// Records the outcome of [`Action::Probe`], and the CPU time that the attempt took outside of
    /// the pod. If the container's program is no longer in the same execution, only the CPU time is
    /// recorded.
    pub fn handle_probed(
        &mut self,
        now: Time,
        id: &ContainerId,
        execution: u64,
        outcome: Result<(), ActionError>,
        cost: Duration,
    ) {
        self.now = now;
        // The CPU time of an attempt counts even if its container was removed meanwhile.
        let known = self.known(id).ok().and_then(|it| it.probe_cost);
        let expected = self.allowance.finish(now, execution, cost, known);
        self.with_container(id, |context| {
            context.container.probe_cost = expected.or(known);
            context.record_extension_probe(execution, outcome.is_ok());
            context.record_probe(execution, outcome);
        });
        self.settle(now);
    }
}

impl ContainerContext<'_> {
    fn record_probe(&mut self, execution: u64, outcome: Result<(), ActionError>) {
        let now = self.now;
        let Some(running) = self.container.state.as_running_mut() else {
            return;
        };
        // The container may have been restarted since, or another container may have its id now.
        let watch = Some(&mut running.watch).filter(|_| running.execution == execution);
        let probed = watch.and_then(Watch::probing_mut);
        let Some((probe, probing)) = probed.filter(|(_, probing)| probing.next.is_none()) else {
            return;
        };
        // The next attempt is due a period after the last one began, as with a ticker.
        probing.next = Some(probing.began.after(probing.probe.period).max(now));
        match (outcome, probe) {
            (Ok(()), ProbeKind::Startup) => {
                let plan = self.plan.map(|plan| plan.container(&self.container.name));
                let probe = plan.and_then(|plan| plan.liveness_probe.as_ref());
                running.watch = Watch::liveness(probe, running.since, now);
                self.note_if_started();
            }
            (Ok(()), ProbeKind::Liveness) => probing.failures = 0,
            (Err(reason), _) => {
                probing.failures = probing.failures.saturating_add(1);
                let (failures, threshold) = (probing.failures, probing.probe.failure_threshold);
                self.out.report(Report::ProbeFailed {
                    name: self.container.name.clone(),
                    probe,
                    failures,
                    threshold,
                    reason,
                });
            }
        }
    }
}

impl Subject<'_> {
    /// Rule: the container whose probe is due first is probed next, as soon as the limit on the CPU
    /// time of the pod's probes (`allowance.rs`) allows the attempt. `None` for every other
    /// container, and in a termination. A paused container is not probed.
    pub(super) fn probe_is_due(&self) -> Option<Due<Decision>> {
        let (next, number) = self.pod_facts.next_probe?;
        // In a termination no container is started, so readiness does not matter.
        if number != self.container.number || self.pod.termination.is_some() {
            return None;
        }
        let cost = self.probe_cost();
        let free_at = self.pod.allowance.free_at(cost);
        Some(self.pod.due(next.max(free_at), || Decision::Probe {
            cost,
            stretched: self.stretched().filter(|_| free_at > next),
        }))
    }

    /// Rule: a container whose probe has failed too often is stopped, as kubelet does it. The
    /// restart policy decides on a restart. While a stop request of the caller is open, the
    /// container is not stopped for the failure: the request may begin the pod's termination, in
    /// which hooks and the stop order come first. A paused container is stopped when it is resumed.
    pub(super) fn probe_has_failed(&self) -> Option<Due<Decision>> {
        let (kind, probing) = self
            .container
            .probing()
            .filter(|_| self.container.is_thawed())?;
        if self.pod.termination.is_some() || !probing.has_failed() {
            return None;
        }
        let request = self.container.open_request(self.pod.now);
        let at = request.map_or(self.pod.now, StopRequest::closes);
        let failed = || {
            self.pod
                .failed(self.container, SignalReason::ProbeFailed(kind))
        };
        Some(self.pod.due(at, failed))
    }

    /// The expected CPU time of an attempt of the container's probe.
    pub(super) fn probe_cost(&self) -> Duration {
        self.pod.allowance.expected(self.container.probe_cost)
    }

    /// The actual time between the container's attempts, if it is longer than the probe's period
    /// because the pod's probes would use too much CPU time. `None` otherwise.
    pub(super) fn stretched(&self) -> Option<Stretched> {
        let allowance = &self.pod.allowance;
        let period = match self.container.probing() {
            Some((_, probing)) => probing.probe.period,
            None => self.pod.liveness_probe(self.container)?.period,
        };
        let probed = self
            .pod
            .containers
            .values()
            .filter(|probed| probed.name == self.container.name || probed.probing().is_some());
        let costs = probed.map(|probed| allowance.expected(probed.probe_cost));
        let to = allowance.period(costs.fold(Duration::ZERO, Duration::saturating_add));
        (to > period).then_some(Stretched { period, to })
    }
}

impl Pod {
    pub(super) fn next_to_be_probed(&self) -> Option<(Time, u64)> {
        let thawed = self.containers.values().filter(|it| it.is_thawed());
        let due = thawed.filter_map(|container| {
            let (_, probing) = container.probing()?;
            let next = probing.next.filter(|_| !probing.has_failed())?;
            Some((next, container.number))
        });
        due.min()
    }
}

impl ContainerContext<'_> {
    /// Discards the outcome of the probe attempt under way if the container is paused, because a
    /// paused program cannot answer. The next attempt is due when the container is resumed.
    pub(super) fn discard_probe_of_paused(&mut self) {
        let is_thawed = self.container.is_thawed();
        let running = self.container.state.as_running_mut();
        let probing = running.and_then(|running| running.watch.probing_mut());
        if let Some((_, probing)) = probing.filter(|_| !is_thawed) {
            probing.next.get_or_insert(self.now);
        }
    }

    pub(super) fn probe(&mut self, cost: Duration, stretched: Option<Stretched>) {
        let Some(running) = self.container.state.as_running_mut() else {
            return;
        };
        if let Some((_, probing)) = running.watch.probing_mut() {
            probing.next = None;
            probing.began = self.now;
        }
        let execution = running.execution;
        self.tell_of_stretching(stretched);
        self.attempt_begins(execution, cost);
    }

    /// Orders an attempt of the container's probe, for execution `execution` of the container, and
    /// reserves the attempt's expected CPU time `cost`.
    pub(super) fn attempt_begins(&mut self, execution: u64, cost: Duration) {
        self.allowance.begin(self.now, execution, cost);
        let id = self.id.clone();
        self.out.push(Action::Probe { id, execution });
    }

    pub(super) fn tell_of_stretching(&mut self, stretched: Option<Stretched>) {
        if let Some(Stretched { period, to }) = stretched
            && !self.allowance.is_reported
        {
            self.allowance.is_reported = true;
            let name = self.container.name.clone();
            self.out.report(Report::Stretched { name, period, to });
        }
    }
}

impl Container {
    /// True if the container has a process that is neither paused nor being paused.
    fn is_thawed(&self) -> bool {
        self.state.freezer() == Some(Freezer::Thawed)
    }

    pub(super) fn probing(&self) -> Option<(ProbeKind, &Probing)> {
        self.state.as_running()?.watch.probing()
    }
}
