//! All orders of events in small pods: no deadlock, no lost release, no early release.
//!
//! The core is a value, and is copied wherever several events may come next. If two states differ
//! only in the events before them, only one is examined.

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use crate::lifecycle::{
    Action, ActionError, BundleFacts, ContainerId, Demands, NewContainer, Phase, Pod, Report,
    RequestId, Time,
};
use crate::plan::{ContainerKind, KubeletFacts, Plan, Role, Signal};
use crate::process::ExitStatus;

use crate::simulator::expand;

use super::fixtures::by_hand;

/// Limits of the number of events of each kind. Creations, starts, and the success of init
/// containers are not limited.
#[derive(Clone, Copy, Debug, Default, Hash)]
struct Limits {
    /// Maximum number of timers that fire.
    timers: u32,
    /// Maximum number of programs that exit with 1.
    crashes: u32,
    /// Maximum number of apps and sidecars that exit with 0.
    ends: u32,
    /// Maximum number of stop requests.
    kills: u32,
    /// Maximum number of SIGKILLs from the caller.
    sigkills: u32,
    /// Maximum number of containers that the caller creates again under the same name.
    again: u32,
    /// Maximum number of callers that give up on their Start.
    give_ups: u32,
    /// Maximum number of executions that fail.
    failures: u32,
    /// Maximum number of probe attempts that fail.
    misses: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum SlotState {
    /// The container is created, and the caller has not sent a Start.
    Parked,
    Asked,
    /// The driver is about to execute the container's program.
    Releasing,
    /// The process has exited, and the driver has not reported the release yet.
    EndedEarly(u8),
    Running {
        ready: bool,
    },
    Gone,
}

/// A container.
#[derive(Clone, Debug, Hash)]
struct Slot {
    /// Index of the container's name.
    name: usize,
    state: SlotState,
    /// The Start has not been answered.
    is_open: bool,
    /// True if the driver has to restart the container.
    restarts: bool,
    /// True if the driver has to cancel this restart, possibly too late.
    is_canceled: bool,
    /// The execution that the driver has to probe, if any.
    probe: Option<u64>,
    /// The earlier execution whose probe result has not arrived yet, if any.
    late_probe: Option<u64>,
    /// The caller has sent a stop request.
    is_asked: bool,
    /// True if the stop signal was delivered, so that the process is about to exit.
    is_doomed: bool,
    /// The exit was reported to the caller.
    is_reported: bool,
    is_deleted: bool,
}

/// The history of the containers with one name.
#[derive(Clone, Copy, Debug, Default, Hash)]
struct NameRecord {
    /// The container that was created last.
    slot: Option<usize>,
    has_succeeded: bool,
    /// The first container of this name that was created after the last exit with 0.
    reopened: Option<usize>,
    /// A sidecar of this name was started at least once.
    has_started: bool,
    /// The container whose program was executed last.
    ran: Option<usize>,
}

/// A pod, the true state of its containers, and the events that may still happen.
#[derive(Clone)]
struct Fork {
    pod: Pod,
    now: Time,
    slots: Vec<Slot>,
    records: Vec<NameRecord>,
    left: Limits,
}

struct Model {
    plan: Plan,
    names: Vec<&'static str>,
    seen: HashSet<u64>,
    /// Number of states in which no further event was possible.
    rested: usize,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Create(usize),
    Start(usize),
    GiveUp(usize),
    Released(usize),
    NotReleased(usize),
    Restarted(usize),
    NotRestarted(usize),
    Probed(usize, bool),
    ProbedLate(usize),
    Exits(usize, u8),
    ExitsEarly(usize, u8),
    Dies(usize),
    Kill(usize, Signal),
    Timer,
}

impl Model {
    fn explore(annotations: &[(&str, &str)], names: &[&'static str], limits: Limits) -> Model {
        let mut model = Model {
            plan: Plan::parse(&expand(annotations)).unwrap(),
            names: names.to_vec(),
            seen: HashSet::new(),
            rested: 0,
        };
        let mut roads = vec![Fork {
            pod: Pod::default(),
            now: Time::default(),
            slots: Vec::new(),
            records: vec![NameRecord::default(); names.len()],
            left: limits,
        }];
        while let Some(fork) = roads.pop() {
            let events = model.possible(&fork);
            if events.iter().all(|event| matches!(event, Event::Timer)) {
                model.rested += 1;
                model.check_rest(&fork);
            }
            for event in events {
                let mut road = fork.clone();
                model.happen(&mut road, event);
                model.check(&road);
                if model.seen.insert(road.key()) {
                    roads.push(road);
                }
            }
        }
        model
    }

    fn role(&self, slot: &Slot) -> Role {
        self.plan.role(self.names[slot.name])
    }

    fn id(&self, n: usize) -> ContainerId {
        ContainerId::from(format!("c{n}").as_str())
    }

    fn index(&self, id: &ContainerId) -> usize {
        id.as_str()[1..].parse().unwrap()
    }

    fn possible(&self, fork: &Fork) -> Vec<Event> {
        let mut events = Vec::new();
        let left = &fork.left;
        for (name, past) in fork.records.iter().enumerate() {
            let may_come = match past.slot {
                None => true,
                Some(n) => left.again > 0 && fork.slots[n].is_reported,
            };
            if may_come {
                events.push(Event::Create(name));
            }
        }
        for (n, slot) in fork.slots.iter().enumerate() {
            let is_init = self.role(slot) == Role::Init;
            match slot.state {
                SlotState::Parked if !slot.is_doomed => events.push(Event::Start(n)),
                SlotState::Releasing => {
                    events.push(Event::Released(n));
                    if left.failures > 0 {
                        events.push(Event::NotReleased(n));
                    }
                    if left.crashes > 0 {
                        events.push(Event::ExitsEarly(n, 1));
                    }
                    if is_init {
                        events.push(Event::ExitsEarly(n, 0));
                    }
                }
                SlotState::EndedEarly(_) => events.push(Event::Released(n)),
                SlotState::Running { .. } => {
                    if is_init || left.ends > 0 {
                        events.push(Event::Exits(n, 0));
                    }
                    if left.crashes > 0 {
                        events.push(Event::Exits(n, 1));
                    }
                }
                _ => {}
            }
            let is_there = !matches!(slot.state, SlotState::Gone | SlotState::EndedEarly(_));
            if slot.probe.is_some() {
                events.push(Event::Probed(n, true));
                if left.misses > 0 {
                    events.push(Event::Probed(n, false));
                }
            }
            if slot.late_probe.is_some() {
                events.push(Event::ProbedLate(n));
            }
            if slot.restarts {
                events.push(Event::Restarted(n));
                if left.failures > 0 || slot.is_canceled {
                    events.push(Event::NotRestarted(n));
                }
            }
            if slot.is_doomed && is_there {
                events.push(Event::Dies(n));
            }
            if slot.is_open && left.give_ups > 0 {
                events.push(Event::GiveUp(n));
            }
            if !slot.is_reported && left.kills > 0 {
                events.push(Event::Kill(n, Signal::TERM));
            }
            if !slot.is_reported && left.sigkills > 0 {
                events.push(Event::Kill(n, Signal::KILL));
            }
        }
        if left.timers > 0 && fork.pod.poll_timeout().is_some() {
            events.push(Event::Timer);
        }
        events
    }

    fn happen(&self, fork: &mut Fork, event: Event) {
        let now = fork.now;
        match event {
            Event::Create(name) => self.create(fork, name),
            Event::Start(n) => {
                fork.slots[n].state = SlotState::Asked;
                fork.slots[n].is_open = true;
                let request = RequestId(n as u64);
                fork.pod.handle_start(now, &self.id(n), request, None);
            }
            Event::GiveUp(n) => {
                fork.left.give_ups -= 1;
                let slot = &mut fork.slots[n];
                slot.is_open = false;
                if slot.state == SlotState::Asked {
                    slot.state = SlotState::Parked;
                }
                let request = RequestId(n as u64);
                fork.pod.handle_start_abandoned(now, &self.id(n), request);
            }
            Event::Released(n) => {
                let slot = &mut fork.slots[n];
                match slot.state {
                    SlotState::EndedEarly(code) => {
                        slot.state = SlotState::Gone;
                        self.note_run(fork, n);
                        self.note_exit(fork, n, code);
                    }
                    _ => {
                        slot.state = SlotState::Running { ready: false };
                        self.note_run(fork, n);
                    }
                }
                fork.pod.handle_released(now, &self.id(n), Ok(()));
            }
            Event::NotReleased(n) => {
                fork.left.failures -= 1;
                // The Start is answered with an error, and the caller may send another Start.
                fork.slots[n].state = SlotState::Parked;
                let outcome = Err(ActionError::reported("of a failure"));
                fork.pod.handle_released(now, &self.id(n), outcome);
            }
            Event::Restarted(n) => {
                fork.slots[n].restarts = false;
                fork.slots[n].state = SlotState::Running { ready: false };
                fork.pod.handle_restarted(now, &self.id(n), Ok(()));
            }
            Event::NotRestarted(n) => {
                if !fork.slots[n].is_canceled {
                    fork.left.failures -= 1;
                }
                fork.slots[n].restarts = false;
                let outcome = Err(ActionError::reported("of a failure"));
                fork.pod.handle_restarted(now, &self.id(n), outcome);
            }
            Event::Probed(n, succeeds) => {
                fork.left.misses -= u32::from(!succeeds);
                let execution = fork.slots[n].probe.take().unwrap();
                if let SlotState::Running { ready } = &mut fork.slots[n].state {
                    *ready |= succeeds;
                    fork.records[fork.slots[n].name].has_started |= succeeds;
                }
                let outcome = succeeds.then_some(()).ok_or(ActionError::ContainerGone);
                fork.pod
                    .handle_probed(now, &self.id(n), execution, outcome, Duration::ZERO);
            }
            Event::ProbedLate(n) => {
                let execution = fork.slots[n].late_probe.take().unwrap();
                fork.pod
                    .handle_probed(now, &self.id(n), execution, Ok(()), Duration::ZERO);
            }
            Event::Exits(n, code) => {
                self.spend_exit(fork, n, code);
                self.note_exit(fork, n, code);
                self.exit(fork, n, ExitStatus::Code(code));
            }
            Event::ExitsEarly(n, code) => {
                self.spend_exit(fork, n, code);
                fork.slots[n].state = SlotState::EndedEarly(code);
                let status = ExitStatus::Code(code);
                fork.pod.handle_container_exited(now, &self.id(n), status);
            }
            Event::Dies(n) => self.exit(fork, n, ExitStatus::Signal(9)),
            Event::Kill(n, signal) => {
                match signal {
                    Signal::KILL => fork.left.sigkills -= 1,
                    _ => fork.left.kills -= 1,
                }
                fork.slots[n].is_asked = true;
                let kill = by_hand(signal);
                let request = RequestId(100 + n as u64);
                fork.pod.handle_kill(now, &self.id(n), request, kill);
            }
            Event::Timer => {
                fork.left.timers -= 1;
                fork.now = fork.pod.poll_timeout().unwrap().max(now);
                fork.pod.handle_timeout(fork.now);
                let next = fork.pod.poll_timeout();
                assert!(next.is_none_or(|next| next > fork.now), "it spins");
            }
        }
        self.carry_out(fork);
    }

    fn create(&self, fork: &mut Fork, name: usize) {
        let past = &mut fork.records[name];
        let n = fork.slots.len();
        if let Some(old) = past.slot.replace(n) {
            fork.left.again -= 1;
            // One container always stays, because a pod without containers is over.
            if fork.slots.iter().filter(|slot| !slot.is_deleted).count() > 1 {
                fork.slots[old].is_deleted = true;
                fork.pod.handle_removed(fork.now, &self.id(old));
            }
        }
        let past = &mut fork.records[name];
        if past.has_succeeded {
            past.reopened.get_or_insert(n);
        }
        let new = NewContainer {
            name: self.names[name].to_owned(),
            kind: ContainerKind::Workload,
            facts: KubeletFacts::default(),
            demands: Demands::default(),
            is_ungrouped: false,
            // These containers need no cleanup of runtime state, which would add a timer.
            // `task/tests.rs` tests cleanups.
            bundle: BundleFacts {
                has_own_pid_namespace: true,
                has_poststop_hooks: true,
            },
        };
        let (id, plan) = (self.id(n), self.plan.clone());
        let created = fork.pod.handle_create(fork.now, &id, new, Some(plan), None);
        created.unwrap();
        fork.slots.push(Slot {
            name,
            state: SlotState::Parked,
            is_open: false,
            restarts: false,
            is_canceled: false,
            probe: None,
            late_probe: None,
            is_asked: false,
            is_doomed: false,
            is_reported: false,
            is_deleted: false,
        });
        fork.pod.handle_created(fork.now, &id);
    }

    fn spend_exit(&self, fork: &mut Fork, n: usize, code: u8) {
        let is_init = self.role(&fork.slots[n]) == Role::Init;
        match code {
            0 if is_init => {}
            0 => fork.left.ends -= 1,
            _ => fork.left.crashes -= 1,
        }
    }

    fn note_run(&self, fork: &mut Fork, n: usize) {
        let name = fork.slots[n].name;
        let is_probed = self
            .plan
            .container(self.names[name])
            .startup_probe
            .is_some();
        fork.records[name].ran = Some(n);
        fork.records[name].has_started |= !is_probed;
    }

    /// Records a success if the program exits with 0 and was not being stopped.
    fn note_exit(&self, fork: &mut Fork, n: usize, code: u8) {
        let slot = &fork.slots[n];
        let past = &mut fork.records[slot.name];
        if code == 0 && !slot.is_doomed && past.slot == Some(n) {
            past.has_succeeded = true;
            past.reopened = None;
        }
    }

    fn exit(&self, fork: &mut Fork, n: usize, status: ExitStatus) {
        let slot = &mut fork.slots[n];
        slot.is_doomed = false;
        if slot.probe.is_some() {
            slot.late_probe = slot.probe.take();
        }
        // The driver has not reported the release of this container yet.
        if slot.state == SlotState::Releasing {
            slot.state = SlotState::EndedEarly(137);
        } else {
            slot.state = SlotState::Gone;
        }
        fork.pod
            .handle_container_exited(fork.now, &self.id(n), status);
    }

    fn carry_out(&self, fork: &mut Fork) {
        while let Some(action) = fork.pod.poll_action() {
            match action {
                Action::Release { id } => {
                    let n = self.index(&id);
                    let name = self.names[fork.slots[n].name];
                    assert_eq!(
                        fork.slots[n].state,
                        SlotState::Asked,
                        "{name} is released unasked"
                    );
                    assert!(
                        self.may_run(fork, n),
                        "{name} is released too early: {:?} {:?}",
                        fork.slots,
                        fork.records
                    );
                    fork.slots[n].state = SlotState::Releasing;
                }
                Action::AnswerStart { id, answer, .. } => {
                    let slot = &mut fork.slots[self.index(&id)];
                    slot.is_open = false;
                    if answer.is_err() && slot.state == SlotState::Asked {
                        slot.state = SlotState::Parked;
                    }
                }
                Action::Signal { id, .. } => {
                    let slot = &mut fork.slots[self.index(&id)];
                    slot.is_doomed =
                        !matches!(slot.state, SlotState::Gone | SlotState::EndedEarly(_));
                }
                Action::Probe { id, execution } => {
                    fork.slots[self.index(&id)].probe = Some(execution);
                }
                Action::Restart { id, .. } => {
                    let slot = &mut fork.slots[self.index(&id)];
                    (slot.restarts, slot.is_canceled) = (true, false);
                }
                Action::CancelRestart { id } => fork.slots[self.index(&id)].is_canceled = true,
                Action::EndOutput { id, .. } => fork.pod.handle_output_read(fork.now, &id),
                Action::PublishExit { id, .. } => {
                    let slot = &mut fork.slots[self.index(&id)];
                    assert!(!slot.is_reported, "{id} ends twice");
                    assert_eq!(slot.state, SlotState::Gone, "{id} ends alive");
                    slot.is_reported = true;
                }
                Action::Hook { .. } | Action::PostStart { .. } => {
                    unreachable!("none of these pods has any")
                }
                Action::Report(Report::StartsOver { from_the_start, .. }) => {
                    // If the pod does not start over from the beginning, containers that are done
                    // stay done.
                    if from_the_start {
                        fork.records.fill_with(NameRecord::default);
                    }
                    for (n, slot) in fork.slots.iter().enumerate() {
                        fork.records[slot.name].slot = Some(n);
                    }
                }
                Action::WriteMessage { id, last_words, .. } => {
                    if last_words {
                        fork.pod.handle_last_words_written(fork.now, &id);
                    }
                }
                Action::CleanUp { .. }
                | Action::KillParked { .. }
                | Action::Delete { .. }
                | Action::Update { .. }
                | Action::RefuseUpdate { .. }
                | Action::PublishExecExit { .. } => unreachable!("no call asks for it"),
                Action::ExitUnrestored { .. } | Action::KillRest { .. } => {
                    unreachable!("no container has a checkpoint, or shares a PID namespace")
                }
                Action::AnswerKill { .. } | Action::CancelWork { .. } | Action::Report(_) => {}
            }
        }
    }

    /// True if the container may run now. A container outside the pod's plan always may. Any other
    /// container may run if the pod does not terminate and all containers before it in the start
    /// order are done.
    fn may_run(&self, fork: &Fork, n: usize) -> bool {
        let slot = &fork.slots[n];
        let name = self.names[slot.name];
        let end = match self.role(slot) {
            Role::App => usize::MAX,
            Role::Init | Role::Sidecar => self.plan.position(name).unwrap(),
            _ => 0,
        };
        let stages = self.plan.stages().iter().take(end);
        let mut before = stages.flat_map(|stage| stage.0.iter());
        let terminates = matches!(fork.pod.phase(), Phase::Terminating(_) | Phase::Terminated);
        let is_guest = self.role(slot) == Role::Guest;
        // An app that has run before waits only for containers that the caller has created again
        // after their success.
        let ran = fork.records[slot.name].ran;
        let has_run = self.role(slot) == Role::App && ran.is_some_and(|ran| ran < n);
        let is_done = |name: &String| {
            self.has_done_its_part(fork, name, n) || has_run && !self.is_reopened(fork, name)
        };
        is_guest || !terminates && before.all(is_done)
    }

    fn is_reopened(&self, fork: &Fork, name: &str) -> bool {
        let past = self.names.iter().position(|other| *other == name);
        past.is_some_and(|past| fork.records[past].reopened.is_some())
    }

    fn has_done_its_part(&self, fork: &Fork, name: &str, for_whom: usize) -> bool {
        let Some(past) = self.names.iter().position(|other| *other == name) else {
            return false;
        };
        let past = &fork.records[past];
        match self.plan.role(name) {
            Role::Init => past.has_succeeded && past.reopened.is_none_or(|first| for_whom < first),
            _ => past.has_started,
        }
    }

    /// Checks that no container that may run is still waiting, and that every wait has a bound.
    fn check(&self, fork: &Fork) {
        for (n, slot) in fork.slots.iter().enumerate() {
            if slot.state != SlotState::Asked || slot.is_doomed {
                continue;
            }
            let name = self.names[slot.name];
            assert!(
                !self.may_run(fork, n),
                "{name} is not released: {:?} {:?}",
                fork.slots,
                fork.records
            );
            assert!(
                fork.pod.poll_timeout().is_some(),
                "{name} waits without a bound: {:?}",
                fork.slots
            );
        }
    }

    /// Checks a state in which no further event is possible: each exit is reported, unless the shim
    /// withholds it or will restart the container.
    fn check_rest(&self, fork: &Fork) {
        for slot in &fork.slots {
            let is_kept = match self.role(slot) {
                Role::Init => fork.records[slot.name].has_succeeded,
                Role::Sidecar => fork.pod.poll_timeout().is_some(),
                _ => false,
            };
            assert!(
                slot.state != SlotState::Gone || slot.is_reported || is_kept,
                "{} has ended unnoticed: {:?}",
                self.names[slot.name],
                fork.slots
            );
            assert!(
                !slot.is_open || slot.state == SlotState::Asked,
                "{:?}",
                fork.slots
            );
        }
    }
}

impl Fork {
    fn key(&self) -> u64 {
        let mut key = DefaultHasher::new();
        (&self.pod, &self.slots, &self.records, self.now, self.left).hash(&mut key);
        key.finish()
    }
}

const PROBE: (&str, &str) = (
    "startup-probe.usher/proxy",
    r#"{"tcpSocket":{"port":80},"failureThreshold":100}"#,
);

/// Explores all states within the limits, and prints their number.
fn search(annotations: &[(&str, &str)], names: &[&'static str], limits: Limits) {
    let model = Model::explore(annotations, names, limits);
    println!("{} states of {annotations:?} {limits:?}", model.seen.len());
    assert!(model.rested > 0);
}

const MODES: [&str; 3] = ["Auto", "Block", "Hold"];
const POLICIES: [&str; 3] = ["Always", "OnFailure", "Never"];

#[test]
fn an_init_container_a_sidecar_and_two_apps() {
    for mode in MODES {
        let annotations = [
            ("init", "setup"),
            ("sidecars", "proxy"),
            ("start-mode", mode),
            PROBE,
        ];
        let names = ["web", "api", "proxy", "setup"];
        search(&annotations, &names, Limits::default());
    }
}

#[test]
fn a_chain_of_init_and_sidecar_containers() {
    chain(0);
}

fn chain(timers: u32) {
    let annotations = [
        ("init", "one two"),
        ("sidecars", "proxy"),
        ("startup-order", "one proxy two"),
        PROBE,
    ];
    let limits = Limits {
        timers,
        ..Limits::default()
    };
    search(&annotations, &["web", "two", "proxy", "one"], limits);
}

#[test]
fn crashes_at_any_moment() {
    for policy in POLICIES {
        let limits = Limits {
            crashes: 2,
            timers: 1,
            ..Limits::default()
        };
        small_pod(policy, "Auto", &["web", "proxy", "setup"], limits);
    }
}

/// Explores a pod of an init container, a sidecar, and apps that the annotation `apps` lists.
fn small_pod(policy: &str, mode: &str, names: &[&'static str], limits: Limits) {
    let apps = names.iter().filter(|name| ["web", "api"].contains(name));
    let apps = apps.copied().collect::<Vec<_>>().join(" ");
    let annotations = [
        ("init", "setup"),
        ("sidecars", "proxy"),
        ("restart-policy", policy),
        ("start-mode", mode),
        ("apps", apps.as_str()),
    ];
    search(&annotations, names, limits);
}

#[test]
fn stop_requests_at_any_moment() {
    for policy in POLICIES {
        let limits = Limits {
            kills: 2,
            ..Limits::default()
        };
        small_pod(policy, "Auto", &["web", "proxy", "setup"], limits);
    }
}

#[test]
fn sigkills_at_any_moment() {
    let limits = Limits {
        kills: 1,
        sigkills: 1,
        ..Limits::default()
    };
    small_pod("Never", "Hold", &["web", "proxy", "setup"], limits);
}

#[test]
fn containers_that_their_caller_creates_again() {
    for (policy, mode) in [
        ("Always", "Auto"),
        ("OnFailure", "Hold"),
        ("Never", "Block"),
    ] {
        let limits = Limits {
            crashes: 1,
            again: 1,
            ..Limits::default()
        };
        small_pod(policy, mode, &["web", "proxy", "setup"], limits);
    }
    let limits = Limits {
        kills: 1,
        again: 1,
        ..Limits::default()
    };
    small_pod("Always", "Auto", &["web", "proxy", "setup"], limits);
}

#[test]
fn callers_that_give_up() {
    for mode in MODES {
        let limits = Limits {
            give_ups: 2,
            timers: 2,
            ..Limits::default()
        };
        small_pod("Always", mode, &["web", "proxy", "setup"], limits);
    }
}

#[test]
fn restarts_in_place_that_fail_or_are_killed() {
    let annotations = [("sidecars", "proxy"), ("restart-policy", "Never"), PROBE];
    let limits = Limits {
        crashes: 1,
        failures: 1,
        kills: 1,
        sigkills: 1,
        timers: 1,
        ..Limits::default()
    };
    search(&annotations, &["web", "proxy"], limits);
}

#[test]
fn probes_that_flap() {
    let annotations = [
        ("sidecars", "proxy"),
        ("restart-policy", "Never"),
        (
            "startup-probe.usher/proxy",
            r#"{"tcpSocket":{"port":80},"failureThreshold":2}"#,
        ),
    ];
    let limits = Limits {
        crashes: 1,
        misses: 2,
        timers: 3,
        ..Limits::default()
    };
    search(&annotations, &["web", "proxy"], limits);
}

#[test]
fn jobs_that_complete() {
    for policy in ["OnFailure", "Never"] {
        let limits = Limits {
            ends: 1,
            crashes: 1,
            ..Limits::default()
        };
        small_pod(policy, "Auto", &["web", "proxy", "setup"], limits);
    }
}

#[test]
#[ignore = "takes minutes: for when the core has changed"]
fn more_of_everything() {
    chain(1);
    let names = ["web", "api", "proxy", "setup"];
    for (policy, mode) in [
        ("Always", "Auto"),
        ("OnFailure", "Hold"),
        ("Never", "Block"),
    ] {
        let limits = Limits {
            crashes: 1,
            kills: 1,
            again: 1,
            ..Limits::default()
        };
        small_pod(policy, mode, &names[1..], limits);
        let limits = Limits {
            ends: 1,
            crashes: 1,
            ..Limits::default()
        };
        small_pod(policy, mode, &names, limits);
    }
}
