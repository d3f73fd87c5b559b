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
use super::life::Running;
use super::report::Report;
use super::request::StopRequest;
use super::rules::{Deed, Due, PodDeed, Subject};
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
        self.now = now;
        self.charge(id, life, cost);
        self.live_probed(id, life, succeeded);
        self.watched(id, life, succeeded);
        self.settle(now);
    }

    fn watched(&mut self, id: &ContainerId, life: u64, succeeded: bool) {
        let now = self.now;
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let name = container.name.clone();
        let since = container.life.as_running().map(|running| running.since);
        let Some((_, watch)) = container
            .life
            .watch_mut()
            // The container may have been restarted since, or had its id from another.
            .filter(|(current, _)| *current == life)
        else {
            return;
        };
        let Some((probe, probing)) = watch
            .probing_mut()
            .filter(|(_, probing)| probing.next.is_none())
        else {
            return;
        };
        // As a ticker does: the next attempt is a period after the last one began.
        probing.next = Some(probing.began.after(probing.probe.period).max(now));
        match (succeeded, probe) {
            (true, ProbeKind::Startup) => {
                let plan = self.plan.as_ref();
                let plan = plan.map(|plan| plan.container(&name));
                let probe = plan.and_then(|plan| plan.liveness_probe.as_ref());
                *watch = Watch::liveness(probe, since.unwrap_or(now), now);
                if let Some(mut hand) = self.hand(id) {
                    hand.note_if_started();
                }
            }
            (true, ProbeKind::Liveness) => probing.failures = 0,
            (false, _) => {
                probing.failures = probing.failures.saturating_add(1);
                let (failures, threshold) = (probing.failures, probing.probe.failure_threshold);
                self.out.report(Report::ProbeFailed {
                    name,
                    probe,
                    failures,
                    threshold,
                });
            }
        }
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
        if container.life.is_unexecuted() && (exec.has_deadline || is_pre_stop) {
            let waits_for = self.describe(&self.missing(container));
            return Err(Refusal::Held {
                name: container.name.clone(),
                waits_for,
            });
        }
        let grace = self.annotated_grace(container);
        let count = self.creations;
        let Some(container) = self.containers.get_mut(id) else {
            return Ok(());
        };
        let is_post_start = !exec.has_deadline
            // Of any other it does not matter.
            && container.duty().is_helper;
        let post_start = container.life.post_start_mut();
        let post_start = post_start.filter(|known| is_post_start && known.may_be_run(now, count));
        // Both handlers may be the same command. Where it is time for the one it may be the other all the
        // same: then a second request shows that ([`Container::is_hardly_asked`]).
        if let Some(post_start) = post_start {
            *post_start = PostStart::Running {
                exec_id: exec.id.to_owned(),
                may_be_pre_stop: is_pre_stop,
            };
            let (name, number) = (container.name.clone(), container.number);
            self.history.not_started(&name, number);
        }
        if let Some(container) = self.containers.get_mut(id)
            && is_pre_stop
        {
            container.pre_stop_requested(StopRequest::pre_stop(now, grace));
        }
        self.settle(now);
        Ok(())
    }

    /// Whether this Exec was taken for the container's postStart handler: then it is run again when
    /// the container is restarted in place ([`Action::PostStart`]), and what it is has to be kept.
    pub fn is_post_start(&self, id: &ContainerId, exec_id: &str) -> bool {
        self.containers.get(id).is_some_and(|container| {
            let post_start = container.life.post_start();
            container.duty().is_helper && post_start.is_some_and(|known| known.is_run_by(exec_id))
        })
    }

    /// An Exec is over, or never came about.
    pub fn handle_exec_over(&mut self, now: Time, id: &ContainerId, exec_id: &str) {
        self.now = now;
        if let Some(mut hand) = self.hand(id)
            && let Some(post_start) = hand.container.life.post_start()
            && post_start.is_run_by(exec_id)
        {
            if hand.container.is_hardly_asked() && hand.termination.is_none() {
                hand.container.request = None;
            }
            if let Some(post_start) = hand.container.life.post_start_mut() {
                *post_start = PostStart::Over;
            }
            hand.note_if_started();
        }
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
        let why = Why::PostStartFailed;
        let failed = self
            .containers
            .get(id)
            .map(|container| self.failed(container, why));
        let (has_failed, is_of_life) = (outcome.is_err(), |running: &Running| running.life == life);
        if let Some(mut hand) = self.hand(id)
            && hand.container.life.as_running().is_some_and(is_of_life)
            && let Some(post_start) = hand.container.life.post_start_mut()
            && *post_start == PostStart::Repeating
        {
            *post_start = PostStart::Over;
            let name = hand.container.name.clone();
            hand.out.report(Report::PostStarted { name, outcome });
            match failed.filter(|_| has_failed) {
                Some(deed) => self.do_to(id, deed),
                None => hand.note_if_started(),
            }
        }
        self.settle(now);
    }
}

// === rules ===

impl Pod {
    /// Rule: who has waited the longest is probed next, whatever the attempts of the others cost; when
    /// there is CPU time for it.
    pub(super) fn probe_is_due(&self) -> Option<Due<PodDeed>> {
        // A pod that is being stopped starts nothing: whether a sidecar is ready is of no interest.
        if self.termination.is_some() {
            return None;
        }
        let (next, id) = self.next_to_be_probed()?;
        let expected = self.expected_cost(id);
        let at = next.max(self.allowance.free_at(expected));
        Some(self.due(at, || PodDeed::Probe(id.clone())))
    }

    fn next_to_be_probed(&self) -> Option<(Time, &ContainerId)> {
        let due = self.containers.iter().filter_map(|(id, container)| {
            let (_, probing) = container.probing()?;
            let next = probing.next.filter(|_| !probing.has_failed())?;
            Some((next, container.number, id))
        });
        due.min().map(|(next, _, id)| (next, id))
    }

    fn expected_cost(&self, id: &ContainerId) -> Duration {
        let known = self.containers.get(id);
        self.allowance
            .expected(known.and_then(|container| container.probe_cost))
    }
}

impl Subject<'_> {
    /// Rule: a container whose probe has failed too often is stopped, as kubelet does it. Whether it
    /// comes back is its restart policy's business.
    pub(super) fn probe_has_failed(&self) -> Option<Due<Deed>> {
        let (kind, probing) = self.container.probing()?;
        let is_due = self.pod.termination.is_none() && probing.has_failed();
        is_due.then(|| Due::Now(self.pod.failed(self.container, Why::ProbeFailed(kind))))
    }
}

// === deeds ===

impl Pod {
    pub(super) fn probe_now(&mut self, id: &ContainerId) {
        let now = self.now;
        let expected = self.expected_cost(id);
        let free_at = self.allowance.free_at(expected);
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let name = container.name.clone();
        let Some((life, watch)) = container.life.watch_mut() else {
            return;
        };
        let Some((_, probing)) = watch.probing_mut() else {
            return;
        };
        let (period, next) = (probing.probe.period, probing.next.take());
        probing.began = now;
        self.allowance.begin(now, life, expected);
        if next.is_some_and(|next| free_at > next) {
            self.tell_of_stretching(name, period);
        }
        self.out.push(Action::Probe {
            id: id.clone(),
            life,
        });
    }

    /// Pays for an attempt that is over.
    fn charge(&mut self, id: &ContainerId, life: u64, cost: Duration) {
        let container = self.containers.get_mut(id);
        let known = container.as_ref().and_then(|known| known.probe_cost);
        let expected = self.allowance.over(self.now, life, cost, known);
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
            self.out.report(Report::Stretched { name, period, to });
        }
    }
}

impl Container {
    pub(super) fn probing(&self) -> Option<(ProbeKind, &Probing)> {
        self.life.as_running()?.watch.probing()
    }
}
