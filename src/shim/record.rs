//! The history of a pod, as a bounded number of facts.
//!
//! The [lifecycle core](usher_core::lifecycle) forgets everything that it no longer needs. This
//! module decides nothing. It keeps the facts that `usher` shows to people: when a container was
//! created, executed, ready, stopped, killed and removed.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use usher_core::lifecycle::{
    Cause, ContainerId, HookKind, ProbeKind, Report, RolePolicy, SignalReason, Step, Time,
};
use usher_core::plan::{ContainerKind, Role, Signal};

/// Maximum number of events that are kept. Each takes 48 bytes, plus its text.
const EVENTS_AT_MOST: usize = 256;

/// Maximum number of container names that are kept.
const NAMES_AT_MOST: usize = 64;

/// Maximum number of termination steps that are kept.
const STEPS_AT_MOST: usize = 16;

/// Name of a sandbox in the record; no container can have this name.
const SANDBOX: &str = "(sandbox)";

/// The history of a pod.
#[derive(Debug, Default)]
pub struct Record {
    /// Time at which the first container was created.
    began: Option<Time>,
    became_ready: Option<Time>,
    events: VecDeque<Event>,
    forgotten: u64,
    /// Histories of container names, in the order in which the names were first created.
    names: Vec<Past>,
    steps: Vec<(Step, Duration)>,
    stages_done: BTreeMap<String, Time>,
    changes: u64,
}

/// The history of one container name.
#[derive(Clone, Debug)]
pub struct Past {
    pub name: String,
    /// The id of the latest container with this name.
    pub id: ContainerId,
    pub kind: ContainerKind,
    pub role: Role,
    pub created: Time,
    /// Time at which the container's program was last executed.
    pub executed: Option<Time>,
    /// Time at which the container last became ready: it completed its start, or its program
    /// succeeded.
    pub became_ready: Option<Time>,
    /// Time at which the container's latest process first got a stop signal or SIGKILL.
    pub stop_delivered: Option<Time>,
    pub exited: Option<Time>,
    /// Time from the container's creation to the first execution of its program.
    pub held: Option<Duration>,
    pub exit_code: Option<u32>,
    pub reported_code: Option<u32>,
    /// Number of restarts of the container, in place or by the caller.
    pub restarts: u32,
    pub oom_kills: u32,
    /// Number of SIGKILLs delivered to the container, by reason.
    pub kills: BTreeMap<SignalReason, u32>,
    /// The latest failure of a probe. It is kept after the container is removed, because it may
    /// explain why the next container with this name was created.
    pub failed_probe: Option<(Time, Box<FailedProbe>)>,
    pub is_gone: bool,
}

/// An event in the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub at: Time,
    /// Index of the container's history in the record's names; `None` for an event of the whole
    /// pod.
    name: Option<u8>,
    pub what: What,
}

/// The kinds of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    Created,
    /// The shim has answered Start, and does not execute the program yet.
    Held,
    Executed,
    /// The container has completed its start.
    Ready,
    /// A person released the container before the shim would have released it.
    Released,
    /// The caller asked the shim to send a signal. `is_stop` is true if the core treats the signal
    /// as a stop signal, which is never so for SIGKILL.
    Asked {
        signal: Signal,
        is_stop: bool,
    },
    /// A signal other than SIGKILL was delivered, for the caller or by the shim itself.
    Signalled {
        signal: Signal,
        why: SignalReason,
    },
    /// SIGKILL was delivered.
    Killed(SignalReason),
    /// The process exited with this code.
    Exited(u32),
    /// The shim reported this exit code to the caller.
    Reported(u32),
    /// The shim will restart the container in place after this pause.
    BackingOff(Duration),
    /// The restart in place failed for this reason.
    NotRestarted(Box<str>),
    OomKilled,
    /// A probe failed. Recorded for the first of consecutive failures of a liveness probe, and for
    /// every failure that reaches or exceeds the probe's threshold.
    ProbeFailed(Box<FailedProbe>),
    /// A hook ended. The text is the reason if the hook failed.
    HookOver(HookKind, Option<Box<str>>),
    /// The postStart handler of a restart in place ended, or kubelet's postStart handler failed.
    /// The text is the reason if the handler failed.
    PostStarted(Option<Box<str>>),
    /// The shim will not run this defer container (a container that runs only when its pod
    /// terminates).
    Skipped,
    /// The defer container may go on for this long after the end of the grace period.
    Extended(Duration),
    Gone,
    /// The core began the termination of the pod.
    Terminating(Box<Cause>),
    NotTerminating,
    StartsOver,
    StepOver(Step),
    GraceOver,
    SandboxKilled,
}

/// A failed attempt of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedProbe {
    pub probe: ProbeKind,
    /// Number of consecutive failures, and the failure threshold of the probe.
    pub failures: u32,
    pub threshold: u32,
    /// The reason in a short sentence, which may contain text from outside the shim.
    pub reason: Box<str>,
}

impl Record {
    /// Records that a container is being created. If an earlier container has the same name, begins
    /// its history anew and counts a restart. Only the numbers of restarts and kills and the last
    /// failed probe stay. Ignores a new name if the record already has too many names.
    pub fn creates(
        &mut self,
        now: Time,
        id: &ContainerId,
        (name, kind, role): (&str, ContainerKind, Role),
    ) {
        self.began.get_or_insert(now);
        self.changes = self.changes.wrapping_add(1);
        // A sandbox has only an id, which tells people nothing. So record each sandbox under a
        // fixed name.
        let name = match kind {
            ContainerKind::Sandbox => SANDBOX,
            ContainerKind::Workload => name,
        };
        let fresh = Past {
            name: name.to_owned(),
            id: id.clone(),
            kind,
            role,
            created: now,
            executed: None,
            became_ready: None,
            stop_delivered: None,
            exited: None,
            held: None,
            exit_code: None,
            reported_code: None,
            restarts: 0,
            oom_kills: 0,
            kills: BTreeMap::new(),
            failed_probe: None,
            is_gone: false,
        };
        let has_room = self.names.len() < NAMES_AT_MOST;
        let mut names = self.names.iter_mut();
        match names.find(|past| past.name == name && past.kind == kind) {
            Some(past) => {
                *past = Past {
                    restarts: past.restarts.saturating_add(1),
                    oom_kills: past.oom_kills,
                    kills: std::mem::take(&mut past.kills),
                    failed_probe: past.failed_probe.take(),
                    ..fresh
                }
            }
            None if has_room => self.names.push(fresh),
            None => {}
        }
    }

    /// Records an event of a container. Ignores the event if the container is not in the record.
    /// Either there were too many names, or a later container has the same name.
    pub fn note(&mut self, now: Time, id: &ContainerId, what: What) {
        if let Some(index) = self.names.iter().position(|past| past.id == *id) {
            self.note_of(now, index, what);
        }
    }

    /// Records that a signal was delivered to a container.
    pub fn note_signal(&mut self, now: Time, id: &ContainerId, signal: Signal, why: SignalReason) {
        let what = match signal == Signal::KILL {
            true => What::Killed(why),
            false => What::Signalled { signal, why },
        };
        self.note(now, id, what);
    }

    /// Records a decision of the core. Ignores reports that are only for the log.
    pub fn note_report(&mut self, now: Time, report: &Report) {
        match report {
            Report::Held { name, .. } => self.note_of_name(now, name, What::Held),
            Report::Started { name, .. } => self.note_of_name(now, name, What::Ready),
            Report::Restarts { name, wait, .. } => {
                self.note_of_name(now, name, What::BackingOff(wait.unwrap_or_default()));
            }
            Report::NotRestarted { name, reason } => {
                let reason = reason.to_string().into();
                self.note_of_name(now, name, What::NotRestarted(reason));
            }
            Report::ProbeFailed {
                name,
                probe,
                failures,
                threshold,
                reason,
            } => {
                let failed = FailedProbe {
                    probe: *probe,
                    failures: *failures,
                    threshold: *threshold,
                    reason: reason.to_string().into(),
                };
                // A startup probe is expected to fail at first, so its first failure is no news.
                // Failures between the first and the threshold add nothing.
                let is_news = *probe == ProbeKind::Liveness && *failures == 1;
                if is_news || failures >= threshold {
                    let what = What::ProbeFailed(Box::new(failed.clone()));
                    self.note_of_name(now, name, what);
                }
                if let Some(past) = self.names.iter_mut().find(|past| past.is_called(name)) {
                    past.failed_probe = Some((now, Box::new(failed)));
                }
            }
            Report::PostStarted { name, outcome } => {
                let reason = outcome.as_ref().err().map(|error| error.to_string().into());
                self.note_of_name(now, name, What::PostStarted(reason));
            }
            Report::PostStartFailed { name, reason } => {
                self.note_of_name(
                    now,
                    name,
                    What::PostStarted(Some(Box::from(reason.as_str()))),
                );
            }
            Report::Overridden { name, .. } => self.note_of_name(now, name, What::Released),
            Report::Terminating { because, .. } => {
                self.push(now, None, What::Terminating(Box::new(because.clone())));
            }
            Report::NotTerminating { .. } => {
                self.steps.clear();
                self.push(now, None, What::NotTerminating);
            }
            Report::StartsOver { .. } => {
                self.steps.clear();
                self.push(now, None, What::StartsOver);
            }
            Report::SandboxKilled => self.push(now, None, What::SandboxKilled),
            Report::StepOver { step, took, .. } => {
                if self.steps.len() < STEPS_AT_MOST {
                    self.steps.push((*step, *took));
                }
                self.push(now, None, What::StepOver(*step));
            }
            Report::HookOver {
                name,
                kind,
                outcome,
            } => {
                let reason = outcome.as_ref().err().map(|error| error.to_string().into());
                self.note_of_name(now, name, What::HookOver(*kind, reason));
            }
            Report::DeferSkipped { name } => self.note_of_name(now, name, What::Skipped),
            Report::Extended { name, by } => self.note_of_name(now, name, What::Extended(*by)),
            Report::GraceOver { .. } => self.push(now, None, What::GraceOver),
            // These reports go only to the log.
            Report::Released { .. }
            | Report::Stretched { .. }
            | Report::InvalidTransition { .. }
            | Report::TooLate { .. }
            | Report::DeferOver { .. }
            | Report::Late { .. }
            | Report::KeptAlive { .. }
            | Report::OtherPlan { .. }
            | Report::RuleSuspended { .. } => {}
        }
    }

    /// Records when each stage of the pod's start is first done, and when the pod is first ready.
    /// Each item of `stages` is a pair: the name of the stage's first container, which identifies
    /// the stage, and true if the stage is done. `is_ready` is true if all sidecars and apps are
    /// ready.
    pub fn progress<'a>(
        &mut self,
        now: Time,
        stages: impl Iterator<Item = (&'a str, bool)>,
        is_ready: bool,
    ) {
        for (first, is_done) in stages {
            if is_done && !self.stages_done.contains_key(first) {
                self.stages_done.insert(first.to_owned(), now);
            }
        }
        if is_ready {
            self.became_ready.get_or_insert(now);
        }
    }

    /// Begins a new history, because all containers of the pod are gone. The next container belongs
    /// to the new history.
    pub fn begin_anew(&mut self) {
        *self = Record {
            changes: self.changes.wrapping_add(1),
            ..Record::default()
        };
    }

    fn note_of_name(&mut self, now: Time, name: &str, what: What) {
        if let Some(index) = self.names.iter().position(|past| past.is_called(name)) {
            self.note_of(now, index, what);
        }
    }

    fn note_of(&mut self, now: Time, index: usize, what: What) {
        let Some(past) = self.names.get_mut(index) else {
            return;
        };
        match &what {
            What::Executed => past.mark_executed(now),
            What::Ready => past.became_ready = Some(now),
            What::Signalled { why, .. } if why.is_stop() => {
                past.stop_delivered.get_or_insert(now);
            }
            What::Killed(why) => {
                past.stop_delivered.get_or_insert(now);
                let count = past.kills.entry(*why).or_default();
                *count = count.saturating_add(1);
            }
            What::Exited(code) => {
                past.exited = Some(now);
                past.exit_code = Some(*code);
                if RolePolicy::of(past.role).succeeds_with(*code) {
                    past.became_ready = Some(now);
                }
            }
            What::Reported(code) => past.reported_code = Some(*code),
            What::OomKilled => past.oom_kills = past.oom_kills.saturating_add(1),
            What::Gone => past.is_gone = true,
            _ => {}
        }
        self.push(now, u8::try_from(index).ok(), what);
    }

    fn push(&mut self, now: Time, name: Option<u8>, what: What) {
        self.changes = self.changes.wrapping_add(1);
        if self.events.len() >= EVENTS_AT_MOST {
            self.events.pop_front();
            self.forgotten = self.forgotten.saturating_add(1);
        }
        self.events.push_back(Event {
            at: now,
            name,
            what,
        });
    }
}

impl Past {
    /// True if this is the history of the workload container with this name.
    fn is_called(&self, name: &str) -> bool {
        self.name == name && self.kind == ContainerKind::Workload
    }

    fn mark_executed(&mut self, now: Time) {
        match self.executed {
            // The program was executed before, so this is a restart in place.
            Some(_) => self.restarts = self.restarts.saturating_add(1),
            None => self.held = Some(now.since(self.created)),
        }
        self.executed = Some(now);
        self.became_ready = RolePolicy::of(self.role).is_ready_at_once().then_some(now);
        (self.stop_delivered, self.exited) = (None, None);
        (self.exit_code, self.reported_code) = (None, None);
    }
}

impl Record {
    /// True if a container of the pod was successfully created since the record began.
    pub fn has_container(&self) -> bool {
        // The record of a long-lived pod may have dropped the Created event already.
        let mut events = self.events.iter();
        self.forgotten > 0 || events.any(|event| event.what == What::Created)
    }

    /// The id of the latest container with this name. `None` if this container is deleted, or there
    /// was none.
    pub fn container_named(&self, name: &str) -> Option<&ContainerId> {
        let mut names = self.names.iter();
        let past = names.find(|past| past.name == name && !past.is_gone);
        past.map(|past| &past.id)
    }

    /// Number of changes of the record. While the number is the same, the record is the same.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Time at which the first container was created.
    pub fn began(&self) -> Option<Time> {
        self.began
    }

    /// Time at which all sidecars and apps were first ready at the same time.
    pub fn became_ready(&self) -> Option<Time> {
        self.became_ready
    }

    /// Time at which a stage of the pod's start was first done. `first` is the name of the stage's
    /// first container.
    pub fn stage_done(&self, first: &str) -> Option<Time> {
        self.stages_done.get(first).copied()
    }

    /// The finished steps of the pod's current termination, with the time that each took. If
    /// containers that were started too late need another termination, its steps follow those of
    /// the earlier one.
    pub fn steps(&self) -> &[(Step, Duration)] {
        &self.steps
    }

    /// The histories by name, in the order in which the names were first created.
    pub fn names(&self) -> &[Past] {
        &self.names
    }

    /// The events with the container's name, oldest first. An event of the pod has no name.
    pub fn events(&self) -> impl Iterator<Item = (Option<&str>, &Event)> {
        self.events.iter().map(|event| {
            let past = event
                .name
                .and_then(|index| self.names.get(usize::from(index)));
            (past.map(|past| past.name.as_str()), event)
        })
    }

    /// Number of older events that were dropped.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use usher_core::lifecycle::ActionError;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Time {
        Time::from_origin(Duration::from_secs(seconds))
    }

    fn with(name: &str, role: Role) -> (Record, ContainerId) {
        let (mut record, id) = (Record::default(), ContainerId::from("id"));
        record.creates(at(1), &id, (name, ContainerKind::Workload, role));
        (record, id)
    }

    #[test]
    fn a_past_covers_the_latest_container_of_a_name() {
        let (mut record, id) = with("proxy", Role::Sidecar);
        record.note(at(3), &id, What::Executed);
        record.note(at(4), &id, What::Killed(SignalReason::PassedOn));
        record.note(at(5), &id, What::Exited(137));
        let past = &record.names()[0];
        assert_eq!((past.held, past.exit_code), (Some(2 * SECOND), Some(137)));
        let second = ContainerId::from("id2");
        record.creates(
            at(6),
            &second,
            ("proxy", ContainerKind::Workload, Role::Sidecar),
        );
        let past = &record.names()[0];
        assert_eq!((past.held, past.exit_code, past.restarts), (None, None, 1));
        assert_eq!(past.kills[&SignalReason::PassedOn], 1);
        // A late event of the first container does not change the history of the second.
        record.note(at(7), &id, What::Gone);
        assert!(!record.names()[0].is_gone);
    }

    #[test]
    fn a_restart_in_place_counts_as_a_restart() {
        let (mut record, id) = with("proxy", Role::Sidecar);
        record.note(at(2), &id, What::Executed);
        record.note(at(3), &id, What::Exited(3));
        assert_eq!(record.names()[0].exit_code, Some(3));
        record.note(at(4), &id, What::Executed);
        assert_eq!(record.names()[0].restarts, 1);
        assert_eq!(record.names()[0].exit_code, None);
    }

    #[test]
    fn the_record_is_bounded() {
        let (mut record, id) = with("web", Role::App);
        for _ in 0..10_000 {
            record.note(at(2), &id, What::OomKilled);
        }
        assert_eq!(record.events().count(), EVENTS_AT_MOST);
        assert_eq!(record.forgotten(), 10_000 - EVENTS_AT_MOST as u64);
        assert_eq!(record.names()[0].oom_kills, 10_000);
        for number in 0..10_000 {
            let id = ContainerId::from(number.to_string().as_str());
            let name = number.to_string();
            record.creates(at(3), &id, (&name, ContainerKind::Workload, Role::App));
            record.note(at(3), &id, What::Created);
        }
        assert_eq!(record.names().len(), NAMES_AT_MOST);
        assert!(size_of::<Event>() <= 48, "{}", size_of::<Event>());
    }

    #[test]
    fn any_signal_by_which_the_core_stops_a_container_counts_as_a_stop() {
        let (mut record, id) = with("web", Role::App);
        let signal: Signal = "WINCH".parse().unwrap();
        record.note(at(2), &id, What::Executed);
        record.note_signal(at(3), &id, signal, SignalReason::Other);
        record.note_signal(at(4), &id, Signal::TERM, SignalReason::Other);
        assert_eq!(record.names()[0].stop_delivered, None);
        record.note_signal(at(5), &id, signal, SignalReason::Turn);
        assert_eq!(record.names()[0].stop_delivered, Some(at(5)));
    }

    #[test]
    fn kills_are_counted_by_cause() {
        let (mut record, id) = with("web", Role::App);
        let probe = SignalReason::ProbeFailed(ProbeKind::Liveness);
        for why in [
            SignalReason::PassedOn,
            SignalReason::GraceOver,
            probe,
            SignalReason::GraceOver,
        ] {
            record.note_signal(at(2), &id, Signal::KILL, why);
        }
        let kills: Vec<_> = record.names()[0].kills.clone().into_iter().collect();
        assert_eq!(
            kills,
            [
                (SignalReason::PassedOn, 1),
                (SignalReason::GraceOver, 2),
                (probe, 1)
            ]
        );
    }

    fn probe_failed(probe: ProbeKind, failures: u32, reason: &str) -> Report {
        Report::ProbeFailed {
            name: "proxy".to_owned(),
            probe,
            failures,
            threshold: 3,
            reason: ActionError::reported(reason),
        }
    }

    #[test]
    fn the_last_probe_failure_is_kept_for_the_next_container_of_the_name() {
        let (mut record, _) = with("proxy", Role::Sidecar);
        record.note_report(
            at(2),
            &probe_failed(ProbeKind::Startup, 1, "connection refused"),
        );
        record.note_report(at(3), &probe_failed(ProbeKind::Startup, 2, "it says 503"));
        assert_eq!(record.events().count(), 0);
        let second = ContainerId::from("id2");
        record.creates(
            at(4),
            &second,
            ("proxy", ContainerKind::Workload, Role::Sidecar),
        );
        let (when, failed) = record.names()[0].failed_probe.as_ref().unwrap();
        assert_eq!((*when, failed.reason.as_ref()), (at(3), "it says 503"));
    }

    #[test]
    fn only_the_first_and_last_of_consecutive_failures_are_kept() {
        let (mut record, _) = with("proxy", Role::Sidecar);
        for probe in [ProbeKind::Startup, ProbeKind::Liveness] {
            for failures in 1..=3 {
                record.note_report(at(2), &probe_failed(probe, failures, "no"));
            }
        }
        let kept: Vec<_> = record
            .events()
            .map(|(name, event)| match &event.what {
                What::ProbeFailed(failed) => (name, failed.probe, failed.failures),
                other => panic!("{other:?}"),
            })
            .collect();
        let name = Some("proxy");
        let expected = [
            (name, ProbeKind::Startup, 3),
            (name, ProbeKind::Liveness, 1),
            (name, ProbeKind::Liveness, 3),
        ];
        assert_eq!(kept, expected);
    }

    #[test]
    fn a_pod_that_starts_over_has_no_finished_steps() {
        let (mut record, _) = with("web", Role::App);
        let over = Report::StepOver {
            step: Step::Apps,
            took: SECOND,
            used: Vec::new(),
        };
        record.note_report(at(2), &over);
        assert_eq!(record.steps().len(), 1);
        let with = "web".to_owned();
        record.note_report(
            at(3),
            &Report::StartsOver {
                with,
                from_the_start: true,
            },
        );
        assert!(record.steps().is_empty());
        let (_, last) = record.events().last().unwrap();
        assert_eq!(last.what, What::StartsOver);
    }

    #[test]
    fn a_stage_keeps_the_time_at_which_it_was_first_done() {
        let mut record = Record::default();
        record.progress(
            at(1),
            [("setup", true), ("proxy", false)].into_iter(),
            false,
        );
        record.progress(at(5), [("setup", true), ("proxy", true)].into_iter(), true);
        record.progress(at(9), [("setup", false), ("proxy", true)].into_iter(), true);
        assert_eq!(record.stage_done("setup"), Some(at(1)));
        assert_eq!(record.stage_done("proxy"), Some(at(5)));
        assert_eq!(record.became_ready(), Some(at(5)));
    }
}
