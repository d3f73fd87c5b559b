//! What has happened to a pod, for those who come later: bounded, and about nothing but facts.
//!
//! The [lifecycle core](crate::lifecycle) forgets what does not matter to it any more. This does not
//! decide anything, and keeps what a person asks: when a container was created, executed, ready, told
//! to stop, killed, gone.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::lifecycle::{Cause, ContainerId, HookKind, Report, Step, Time};
use crate::plan::{ContainerKind, Role, Signal};

/// How many events are kept. Each takes 48 bytes and what it says in words, if anything.
const EVENTS_AT_MOST: usize = 256;

/// How many names are kept.
const NAMES_AT_MOST: usize = 64;

/// Signals that a program takes for its end.
const USUALLY_STOPS: [Signal; 5] = [
    Signal::TERM,
    Signal::INT,
    Signal::QUIT,
    Signal::PWR,
    Signal::RTMIN_3,
];

/// How many steps of terminations are kept.
const STEPS_AT_MOST: usize = 16;

/// What a sandbox is called: no container can have this name.
const SANDBOX: &str = "(sandbox)";

/// The past of a pod.
#[derive(Debug, Default)]
pub struct Record {
    /// When the first container was created.
    began: Option<Time>,
    became_ready: Option<Time>,
    events: VecDeque<Event>,
    forgotten: u64,
    /// In the order of their first creation.
    names: Vec<Past>,
    steps: Vec<(Step, Duration)>,
    stages_done: BTreeMap<usize, Time>,
    changes: u64,
}

/// The past of one name.
#[derive(Clone, Debug)]
pub struct Past {
    pub name: String,
    /// Of the container that had the name last.
    pub id: ContainerId,
    pub kind: ContainerKind,
    pub role: Role,
    pub created: Time,
    /// When its program was executed, for the last time.
    pub executed: Option<Time>,
    /// When it was started, or had succeeded, for the last time.
    pub became_ready: Option<Time>,
    /// When a stop signal or SIGKILL was delivered.
    pub told: Option<Time>,
    pub exited: Option<Time>,
    /// From the creation to the execution of its program.
    pub held: Option<Duration>,
    pub exit_code: Option<u32>,
    pub reported_code: Option<u32>,
    /// In place, and by its caller.
    pub restarts: u32,
    pub oom_kills: u32,
    pub kills: BTreeMap<Killer, u32>,
    pub is_gone: bool,
}

/// Who has sent a SIGKILL, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Killer {
    /// Whoever asked for the container.
    Caller,
    /// The shim: the grace period was over.
    Grace,
    /// The shim: its program was not to be executed any more.
    Held,
}

/// One thing that has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub at: Time,
    /// The index of the name it happened to; none if it happened to the pod.
    name: Option<u8>,
    pub what: What,
}

/// What can happen to a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    Created,
    /// Its Start was answered and its program not executed.
    Held,
    Executed,
    /// It is started, or has succeeded.
    Ready,
    /// Its turn had not come, and a person wanted it.
    Released,
    /// The caller has sent a signal.
    Asked(Signal),
    /// A signal has been delivered.
    Signalled(Signal),
    Killed(Killer),
    /// As it was.
    Exited(u32),
    /// As the caller was told.
    Reported(u32),
    /// It is restarted in place after so long.
    BackingOff(Duration),
    OomKilled,
    /// A hook is over: well, or not and why.
    HookOver(HookKind, Option<Box<str>>),
    /// A defer container is not run.
    Skipped,
    /// A defer container may go on for so long.
    Extended(Duration),
    Gone,
    /// Of the pod: what the core has decided.
    Terminating(Box<Cause>),
    NotTerminating,
    StepOver(Step),
    GraceOver,
}

// === what happened ===

impl Record {
    /// A container is being created.
    pub fn creates(
        &mut self,
        now: Time,
        id: &ContainerId,
        (name, kind, role): (&str, ContainerKind, Role),
    ) {
        self.began.get_or_insert(now);
        self.changes = self.changes.wrapping_add(1);
        // Its name is its id, which nobody wants to read.
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
            told: None,
            exited: None,
            held: None,
            exit_code: None,
            reported_code: None,
            restarts: 0,
            oom_kills: 0,
            kills: BTreeMap::new(),
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
                    ..fresh
                }
            }
            None if has_room => self.names.push(fresh),
            None => {}
        }
    }

    /// Something has happened to a container. One that is not known, for there were too many, has no
    /// past.
    pub fn note(&mut self, now: Time, id: &ContainerId, what: What) {
        if let Some(index) = self.names.iter().position(|past| past.id == *id) {
            self.note_of(now, index, what);
        }
    }

    /// A signal has been delivered to a container: the caller's own, or one of the shim's.
    pub fn delivered(&mut self, now: Time, id: &ContainerId, signal: Signal, is_callers: bool) {
        let past = self.names.iter().find(|past| past.id == *id);
        let has_run = past.is_some_and(|past| past.executed.is_some());
        let what = match (signal == Signal::KILL, is_callers, has_run) {
            (false, _, _) => What::Signalled(signal),
            (true, true, _) => What::Killed(Killer::Caller),
            (true, false, true) => What::Killed(Killer::Grace),
            (true, false, false) => What::Killed(Killer::Held),
        };
        self.note(now, id, what);
    }

    /// The core has decided something.
    pub fn decided(&mut self, now: Time, report: &Report) {
        match report {
            Report::Held { name, .. } => self.note_of_name(now, name, What::Held),
            Report::Started { name, .. } => self.note_of_name(now, name, What::Ready),
            Report::Restarts { name, wait, .. } => {
                self.note_of_name(now, name, What::BackingOff(*wait));
            }
            Report::Overridden { name, .. } => self.note_of_name(now, name, What::Released),
            Report::Terminating { because, .. } => {
                self.push(now, None, What::Terminating(Box::new(because.clone())));
            }
            Report::NotTerminating { .. } | Report::StartsOver { .. } => {
                self.steps.clear();
                self.push(now, None, What::NotTerminating);
            }
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
                let outcome = outcome.clone().err();
                self.note_of_name(now, name, What::HookOver(*kind, outcome.map(Box::from)));
            }
            Report::DeferSkipped { name } => self.note_of_name(now, name, What::Skipped),
            Report::Extended { name, by } => self.note_of_name(now, name, What::Extended(*by)),
            Report::GraceOver { .. } => self.push(now, None, What::GraceOver),
            _ => {}
        }
    }

    /// How far the pod has come: the stages that are done, and whether everything is.
    pub fn progress(&mut self, now: Time, stages: impl Iterator<Item = bool>, is_ready: bool) {
        for (index, is_done) in stages.enumerate() {
            if is_done {
                self.stages_done.entry(index).or_insert(now);
            }
        }
        if is_ready {
            self.became_ready.get_or_insert(now);
        }
    }

    /// The pod is over: the next container opens another one.
    pub fn begin_anew(&mut self) {
        *self = Record {
            changes: self.changes.wrapping_add(1),
            ..Record::default()
        };
    }

    fn note_of_name(&mut self, now: Time, name: &str, what: What) {
        let is_it = |past: &Past| past.name == name && past.kind == ContainerKind::Workload;
        if let Some(index) = self.names.iter().position(is_it) {
            self.note_of(now, index, what);
        }
    }

    fn note_of(&mut self, now: Time, index: usize, what: What) {
        let Some(past) = self.names.get_mut(index) else {
            return;
        };
        match &what {
            What::Executed => past.executed(now),
            What::Ready => past.became_ready = Some(now),
            What::Signalled(signal) if USUALLY_STOPS.contains(signal) => {
                past.told.get_or_insert(now);
            }
            What::Killed(killer) => {
                past.told.get_or_insert(now);
                let count = past.kills.entry(*killer).or_default();
                *count = count.saturating_add(1);
            }
            What::Exited(code) => {
                past.exited = Some(now);
                past.exit_code = Some(*code);
                if past.role == Role::Init && *code == 0 {
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
    fn executed(&mut self, now: Time) {
        match self.executed {
            // A second life of the same container.
            Some(_) => self.restarts = self.restarts.saturating_add(1),
            None => self.held = Some(now.since(self.created)),
        }
        self.executed = Some(now);
        self.became_ready = match self.role {
            Role::App | Role::Guest | Role::NativeInit => Some(now),
            _ => None,
        };
        (self.told, self.exited) = (None, None);
        (self.exit_code, self.reported_code) = (None, None);
    }
}

// === getters ===

impl Record {
    /// Counts changes: as long as it is the same nothing has happened.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// When the first container was created.
    pub fn began(&self) -> Option<Time> {
        self.began
    }

    /// When all was started for the first time.
    pub fn became_ready(&self) -> Option<Time> {
        self.became_ready
    }

    /// When the stage with this index was done for the first time.
    pub fn stage_done(&self, index: usize) -> Option<Time> {
        self.stages_done.get(&index).copied()
    }

    /// The steps of the termination that are over, and what each took.
    pub fn steps(&self) -> &[(Step, Duration)] {
        &self.steps
    }

    /// The names in the order of their first creation, each with its past.
    pub fn names(&self) -> &[Past] {
        &self.names
    }

    /// What has happened and to whom, the oldest first.
    pub fn events(&self) -> impl Iterator<Item = (Option<&str>, &Event)> {
        self.events.iter().map(|event| {
            let past = event
                .name
                .and_then(|index| self.names.get(usize::from(index)));
            (past.map(|past| past.name.as_str()), event)
        })
    }

    /// How many older events have been forgotten.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_past_is_what_happened_to_the_container_that_had_the_name_last() {
        let (mut record, id) = with("proxy", Role::Sidecar);
        record.note(at(3), &id, What::Executed);
        record.note(at(4), &id, What::Killed(Killer::Caller));
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
        assert_eq!(past.kills[&Killer::Caller], 1);
        // What is said of the first does not become the past of the second.
        record.note(at(7), &id, What::Gone);
        assert!(!record.names()[0].is_gone);
    }

    #[test]
    fn a_restart_in_place_is_one_as_well() {
        let (mut record, id) = with("proxy", Role::Sidecar);
        record.note(at(2), &id, What::Executed);
        record.note(at(3), &id, What::Exited(3));
        assert_eq!(record.names()[0].exit_code, Some(3));
        record.note(at(4), &id, What::Executed);
        assert_eq!(record.names()[0].restarts, 1);
        assert_eq!(record.names()[0].exit_code, None);
    }

    #[test]
    fn it_is_bounded_whatever_happens() {
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
    fn a_stage_is_done_when_it_was_done_first() {
        let mut record = Record::default();
        record.progress(at(1), [true, false].into_iter(), false);
        record.progress(at(5), [true, true].into_iter(), true);
        record.progress(at(9), [false, true].into_iter(), true);
        assert_eq!(record.stage_done(0), Some(at(1)));
        assert_eq!(record.stage_done(1), Some(at(5)));
        assert_eq!(record.became_ready(), Some(at(5)));
    }
}
