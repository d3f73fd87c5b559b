//! What is watched of a running container: when a sidecar counts as started, and whether it still does
//! its work.
//!
//! KEP-753, "Started condition": the process runs, its startup probe has succeeded, and its
//! postStart handler is over. The core counts and times the attempts; the driver only makes them.

use std::time::Duration;

use crate::plan::{PreStop, Probe};

use super::Pod;
use super::action::{Action, ContainerId, ProbeKind, Refusal, Why};
use super::container::Container;
use super::deeds::Hand;
use super::life::Running;
use super::report::Report;
use super::request::StopRequest;
use super::rules::{Deed, Due, Subject};
use super::time::Time;

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

/// What is watched of a program that runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Watch {
    /// Its startup probe: until it succeeds the container is not started.
    Startup(Box<Probing>),
    /// Its liveness probe, once it is started.
    Liveness(Box<Probing>),
    /// Nothing, or nothing any more.
    Nothing,
    /// Nothing any more: its startup probe has failed too often.
    NeverUp,
}

/// The attempts of a probe.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Probing {
    pub probe: Probe,
    /// In a row.
    pub failures: u32,
    /// When the next attempt is due; no attempt is under way then.
    pub next: Option<Time>,
    /// When the attempt that is under way began.
    began: Time,
}

/// The attempts of a probe come less often than they should.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretched {
    period: Duration,
    /// How far apart they are.
    to: Duration,
}

/// What is known of the postStart handler of a container whose Start was answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum PostStart {
    /// Its Start was answered then, when so many containers had been created: what follows may be its
    /// handler.
    Possible { answered: Time, creations: u64 },
    /// This Exec is taken for it, though it may as well be the preStop handler: the same command.
    Running {
        exec_id: String,
        may_be_pre_stop: bool,
    },
    /// It was run, and is run again if the container is restarted in place.
    Over,
    /// It is run again.
    Repeating,
}

// === impl Watch ===

impl Watch {
    /// That of a program that is executed at `now` and has this startup probe.
    pub fn startup(probe: Option<&Probe>, now: Time) -> Watch {
        probe.map_or(Watch::Nothing, |probe| {
            Watch::Startup(Box::new(Probing::new(probe, now, now)))
        })
    }

    /// That of a program that was executed at `since`, is started now and has this liveness probe.
    pub fn liveness(probe: Option<&Probe>, since: Time, now: Time) -> Watch {
        probe.map_or(Watch::Nothing, |probe| {
            Watch::Liveness(Box::new(Probing::new(probe, since, now)))
        })
    }

    /// Whether it is not started yet, or never.
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
    /// Whether it has failed so often that no attempt follows.
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

// === impl PostStart ===

impl PostStart {
    /// Whether the container is not started for it.
    pub fn is_running(&self) -> bool {
        matches!(self, PostStart::Running { .. } | PostStart::Repeating)
    }

    /// What it is when the container is restarted in place: what was run is run again.
    pub fn once_more(&self) -> PostStart {
        match self {
            PostStart::Running { .. } | PostStart::Over | PostStart::Repeating => {
                PostStart::Repeating
            }
            PostStart::Possible { .. } => self.clone(),
        }
    }

    /// Whether it is this Exec.
    fn is_run_by(&self, exec: &str) -> bool {
        matches!(self, PostStart::Running { exec_id, .. } if exec_id == exec)
    }

    /// Whether the Exec that is taken for it may as well be the preStop handler.
    pub fn may_be_pre_stop(&self) -> bool {
        matches!(self, PostStart::Running { may_be_pre_stop, .. } if *may_be_pre_stop)
    }

    /// Whether an Exec that comes `now` without a deadline, when so many containers have been created,
    /// may be it.
    fn may_be_run(&self, now: Time, count: u64) -> bool {
        matches!(
            self,
            PostStart::Possible { answered, creations }
                if now.since(*answered) <= POST_START_WITHIN && *creations == count
        )
    }
}

// === what happened ===

impl Pod {
    /// What became of [`Action::Probe`]: it succeeded, or the reason why it failed; and how much CPU time
    /// the attempt took of those who do not belong to the pod.
    pub fn handle_probed(
        &mut self,
        now: Time,
        id: &ContainerId,
        life: u64,
        outcome: Result<(), String>,
        cost: Duration,
    ) {
        self.now = now;
        // Whoever is gone by now has cost as much.
        let known = self.known(id).ok().and_then(|it| it.probe_cost);
        let expected = self.allowance.over(now, life, cost, known);
        self.reach(id, |hand| {
            hand.container.probe_cost = expected.or(known);
            hand.answered_for_more(life, outcome.is_ok());
            hand.watched(life, outcome);
        });
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
        self.now = now;
        self.called(
            id,
            |pod, container| pod.pre_stop_of(container, exec),
            |hand, pre_stop| hand.executes(exec, pre_stop),
        )?;
        self.settle(now);
        Ok(())
    }

    /// The stop that an Exec begins which is the container's preStop handler; none of any other.
    fn pre_stop_of(
        &self,
        container: &Container,
        exec: &Exec<'_>,
    ) -> Result<Option<StopRequest>, Refusal> {
        let is_pre_stop = !exec.has_deadline
            && matches!(
                &container.facts.pre_stop,
                Some(PreStop::Exec { command }) if command.as_slice() == exec.argv
            );
        if !container.is_ordered() || !is_pre_stop && !exec.has_deadline {
            return Ok(None);
        }
        if container.life.is_unexecuted() {
            let waits_for = self.describe(&self.missing(container));
            return Err(Refusal::Held {
                name: container.name.clone(),
                waits_for,
            });
        }
        let grace = self.annotated_grace(container);
        Ok(is_pre_stop.then(|| StopRequest::pre_stop(self.now, grace)))
    }

    /// Whether this Exec was taken for the container's postStart handler: then it is run again when
    /// the container is restarted in place ([`Action::PostStart`]), and what it is has to be kept.
    pub fn is_post_start(&self, id: &ContainerId, exec_id: &str) -> bool {
        self.known(id).is_ok_and(|container| {
            let post_start = container.life.post_start();
            container.duty().is_helper && post_start.is_some_and(|known| known.is_run_by(exec_id))
        })
    }

    /// An Exec is over, or never came about.
    pub fn handle_exec_over(&mut self, now: Time, id: &ContainerId, exec_id: &str) {
        self.now = now;
        self.reach(id, |hand| hand.exec_over(exec_id));
        self.settle(now);
    }

    /// What became of [`Action::PostStart`] in that life of the container: it is over, or the reason
    /// why it failed. A container whose handler fails is stopped, as kubelet does it.
    pub fn handle_post_started(
        &mut self,
        now: Time,
        id: &ContainerId,
        life: u64,
        outcome: Result<(), String>,
    ) {
        self.now = now;
        self.heard(
            id,
            |pod, container| pod.failed(container, Why::PostStartFailed),
            |hand, failed| hand.post_started(life, outcome, failed),
        );
        self.settle(now);
    }
}

impl Hand<'_> {
    fn watched(&mut self, life: u64, outcome: Result<(), String>) {
        let now = self.now;
        let Some(running) = self.container.life.as_running_mut() else {
            return;
        };
        // The container may have been restarted since, or had its id from another.
        let watch = Some(&mut running.watch).filter(|_| running.life == life);
        let probed = watch.and_then(Watch::probing_mut);
        let Some((probe, probing)) = probed.filter(|(_, probing)| probing.next.is_none()) else {
            return;
        };
        // As a ticker does: the next attempt is a period after the last one began.
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

    fn executes(&mut self, exec: &Exec<'_>, pre_stop: Option<StopRequest>) {
        // Only for a helper does it matter whether its postStart is over.
        let may_be_post_start = !exec.has_deadline && self.container.duty().is_helper;
        let post_start = self.container.life.post_start_mut();
        let post_start = post_start
            .filter(|known| may_be_post_start && known.may_be_run(self.now, self.creations));
        // Both handlers may be the same command. Where it is time for the one it may be the other all the
        // same: then a second request shows that ([`Container::is_hardly_asked`]).
        if let Some(post_start) = post_start {
            *post_start = PostStart::Running {
                exec_id: exec.id.to_owned(),
                may_be_pre_stop: pre_stop.is_some(),
            };
            let (name, number) = (&self.container.name, self.container.number);
            self.history.not_started(name, number);
        }
        if let Some(request) = pre_stop {
            self.container.pre_stop_requested(request);
        }
    }

    fn exec_over(&mut self, exec_id: &str) {
        let is_hardly_asked = self.container.is_hardly_asked();
        let post_start = self.container.life.post_start_mut();
        if let Some(post_start) = post_start.filter(|known| known.is_run_by(exec_id)) {
            *post_start = PostStart::Over;
            if is_hardly_asked && self.termination.is_none() {
                self.container.request = None;
            }
            self.note_if_started();
        }
    }

    fn post_started(&mut self, life: u64, outcome: Result<(), String>, failed: Deed) {
        let running = self.container.life.as_running_mut();
        let is_it =
            |known: &&mut Running| known.life == life && known.post_start == PostStart::Repeating;
        let Some(running) = running.filter(is_it) else {
            return;
        };
        running.post_start = PostStart::Over;
        let (name, has_failed) = (self.container.name.clone(), outcome.is_err());
        self.out.report(Report::PostStarted { name, outcome });
        match has_failed {
            true => self.carry_out(failed),
            false => self.note_if_started(),
        }
    }
}

// === rules ===

impl Subject<'_> {
    /// Rule: who has waited the longest is probed next, whatever the attempts of the others cost; when
    /// there is CPU time for it.
    pub(super) fn probe_is_due(&self) -> Option<Due<Deed>> {
        let (next, number) = self.round.next_probe?;
        // A pod that is being stopped starts nothing: whether a sidecar is ready is of no interest.
        if number != self.container.number || self.pod.termination.is_some() {
            return None;
        }
        let cost = self.probe_cost();
        let free_at = self.pod.allowance.free_at(cost);
        Some(self.pod.due(next.max(free_at), || Deed::Probe {
            cost,
            stretched: self.stretched().filter(|_| free_at > next),
        }))
    }

    /// Rule: a container whose probe has failed too often is stopped, as kubelet does it. Whether it
    /// comes back is its restart policy's business. One that its caller stops is left to that, as long as the
    /// request is open: it may be that of the pod, whose hooks and order come first.
    pub(super) fn probe_has_failed(&self) -> Option<Due<Deed>> {
        let (kind, probing) = self.container.probing()?;
        if self.pod.termination.is_some() || !probing.has_failed() {
            return None;
        }
        let request = self.container.open_request(self.pod.now);
        let at = request.map_or(self.pod.now, StopRequest::closes);
        let failed = || self.pod.failed(self.container, Why::ProbeFailed(kind));
        Some(self.pod.due(at, failed))
    }

    /// What an attempt of its probe is taken to cost.
    pub(super) fn probe_cost(&self) -> Duration {
        self.pod.allowance.expected(self.container.probe_cost)
    }

    /// How much less often than it should the container is probed, since those before it have used up
    /// what all may take together; none if that is for a moment only.
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
        let due = self.containers.values().filter_map(|container| {
            let (_, probing) = container.probing()?;
            let next = probing.next.filter(|_| !probing.has_failed())?;
            Some((next, container.number))
        });
        due.min()
    }
}

// === deeds ===

impl Hand<'_> {
    pub(super) fn probe(&mut self, cost: Duration, stretched: Option<Stretched>) {
        let Some(running) = self.container.life.as_running_mut() else {
            return;
        };
        if let Some((_, probing)) = running.watch.probing_mut() {
            probing.next = None;
            probing.began = self.now;
        }
        let life = running.life;
        self.tell_of_stretching(stretched);
        self.attempt_begins(life, cost);
    }

    /// An attempt of its probe is made in that life of it.
    pub(super) fn attempt_begins(&mut self, life: u64, cost: Duration) {
        self.allowance.begin(self.now, life, cost);
        let id = self.id.clone();
        self.out.push(Action::Probe { id, life });
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
    pub(super) fn probing(&self) -> Option<(ProbeKind, &Probing)> {
        self.life.as_running()?.watch.probing()
    }
}
