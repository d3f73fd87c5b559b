//! All interleavings of small pods: no deadlock, no lost release, no early one.
//!
//! The core is a value: it is copied at every fork of the road. What differs in nothing but the
//! way that led there is looked at once.

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use crate::lifecycle::{
    Action, ContainerId, ExitStatus, Kill, NewContainer, Phase, Pod, RequestId, Time,
};
use crate::plan::{ContainerKind, KubeletFacts, Plan, Role, Signal};

use super::simulator::expand;

/// What may happen in a pod besides its containers being created and started.
#[derive(Clone, Copy, Debug, Default)]
struct Limits {
    /// Timers that fire.
    timers: u32,
    /// Programs that exit with 1.
    crashes: u32,
    /// Stop requests.
    kills: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Life {
    Absent,
    /// Created, and nobody has asked for its start.
    Parked,
    Asked,
    /// The driver is about to execute it.
    Releasing,
    Running {
        ready: bool,
    },
    Gone,
}

/// A pod, what is true of its containers, and what may still happen.
#[derive(Clone)]
struct Fork {
    pod: Pod,
    now: Time,
    lives: Vec<Life>,
    /// Which have exited with 0.
    succeeded: Vec<bool>,
    /// Which the driver is asked to restart, or to probe.
    restarts: Vec<bool>,
    probes: Vec<Option<u64>>,
    /// Which were asked to stop, and are to die.
    doomed: Vec<bool>,
    starts_open: u32,
    left: Limits,
}

struct Model {
    plan: Plan,
    names: Vec<&'static str>,
    seen: HashSet<u64>,
    /// States in which everything that could happen had happened.
    rested: usize,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Create(usize),
    Start(usize),
    Released(usize),
    Restarted(usize),
    Probed(usize),
    Exits(usize, u8),
    Dies(usize),
    Kill(usize),
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
        let none = vec![false; names.len()];
        let mut roads = vec![Fork {
            pod: Pod::default(),
            now: Time::default(),
            lives: vec![Life::Absent; names.len()],
            succeeded: none.clone(),
            restarts: none.clone(),
            probes: vec![None; names.len()],
            doomed: none,
            starts_open: 0,
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
                if model.seen.insert(road.key()) {
                    roads.push(road);
                }
            }
        }
        model
    }

    fn role(&self, n: usize) -> Role {
        self.plan.role(self.names[n])
    }

    fn id(&self, n: usize) -> ContainerId {
        ContainerId::from(self.names[n])
    }

    fn index(&self, id: &ContainerId) -> usize {
        let found = self.names.iter().position(|name| *name == id.as_str());
        found.unwrap()
    }

    fn possible(&self, fork: &Fork) -> Vec<Event> {
        let mut events = Vec::new();
        for (n, life) in fork.lives.iter().enumerate() {
            match life {
                Life::Absent => events.push(Event::Create(n)),
                Life::Parked if !fork.doomed[n] => events.push(Event::Start(n)),
                Life::Releasing => events.push(Event::Released(n)),
                Life::Running { .. } if self.role(n) == Role::Init => {
                    events.push(Event::Exits(n, 0));
                    if fork.left.crashes > 0 {
                        events.push(Event::Exits(n, 1));
                    }
                }
                Life::Running { .. } if fork.left.crashes > 0 => events.push(Event::Exits(n, 1)),
                _ => {}
            }
            if fork.probes[n].is_some() {
                events.push(Event::Probed(n));
            }
            if fork.restarts[n] {
                events.push(Event::Restarted(n));
            }
            if fork.doomed[n] && !matches!(life, Life::Gone) {
                events.push(Event::Dies(n));
            }
            if fork.left.kills > 0 && !matches!(life, Life::Absent | Life::Gone) {
                events.push(Event::Kill(n));
            }
        }
        if fork.left.timers > 0 && fork.pod.poll_timeout().is_some() {
            events.push(Event::Timer);
        }
        events
    }

    fn happen(&self, fork: &mut Fork, event: Event) {
        let now = fork.now;
        match event {
            Event::Create(n) => {
                let new = NewContainer {
                    name: self.names[n].to_owned(),
                    kind: ContainerKind::Workload,
                    facts: KubeletFacts::default(),
                };
                let (id, plan) = (self.id(n), self.plan.clone());
                fork.pod.handle_create(now, &id, new, plan, None).unwrap();
                fork.lives[n] = Life::Parked;
                fork.pod.handle_created(now, &id);
            }
            Event::Start(n) => {
                fork.lives[n] = Life::Asked;
                fork.starts_open += 1;
                let request = RequestId(n as u64);
                fork.pod.handle_start(now, &self.id(n), request, None);
            }
            Event::Released(n) => {
                let ready = false;
                fork.lives[n] = Life::Running { ready };
                fork.pod.handle_released(now, &self.id(n), Ok(()));
            }
            Event::Restarted(n) => {
                fork.restarts[n] = false;
                fork.lives[n] = Life::Running { ready: false };
                fork.pod.handle_restarted(now, &self.id(n), Ok(()));
            }
            Event::Probed(n) => {
                let life = fork.probes[n].take().unwrap();
                if fork.lives[n] == (Life::Running { ready: false }) {
                    fork.lives[n] = Life::Running { ready: true };
                }
                fork.pod.handle_probed(now, &self.id(n), life, true);
            }
            Event::Exits(n, code) => {
                fork.left.crashes -= u32::from(code);
                // What was told to stop has not done its part, whatever it ends with.
                fork.succeeded[n] |= code == 0 && !fork.doomed[n];
                self.exit(fork, n, ExitStatus::Code(code));
            }
            Event::Dies(n) => self.exit(fork, n, ExitStatus::Signal(9)),
            Event::Kill(n) => {
                fork.left.kills -= 1;
                let kill = Kill {
                    signal: Signal::TERM,
                    all: false,
                    patience: None,
                };
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

    fn exit(&self, fork: &mut Fork, n: usize, status: ExitStatus) {
        fork.lives[n] = Life::Gone;
        fork.doomed[n] = false;
        fork.probes[n] = None;
        fork.pod.handle_exit(fork.now, &self.id(n), status);
    }

    fn carry_out(&self, fork: &mut Fork) {
        while let Some(action) = fork.pod.poll_action() {
            match action {
                Action::Release { id } => {
                    let n = self.index(&id);
                    assert_eq!(fork.lives[n], Life::Asked, "{id} is released unasked");
                    for earlier in self.before(n) {
                        assert!(
                            self.has_done_its_part(fork, earlier),
                            "{id} is released before {}: {:?}",
                            self.names[earlier],
                            fork.lives
                        );
                    }
                    assert!(!matches!(
                        fork.pod.phase(),
                        Phase::Terminating(_) | Phase::Terminated
                    ));
                    fork.lives[n] = Life::Releasing;
                }
                Action::AnswerStart { .. } => fork.starts_open -= 1,
                Action::Signal { id, .. } => {
                    let n = self.index(&id);
                    fork.doomed[n] = fork.lives[n] != Life::Gone;
                }
                Action::Probe { id, life } => fork.probes[self.index(&id)] = Some(life),
                Action::Restart { id } => fork.restarts[self.index(&id)] = true,
                Action::AnswerKill { .. }
                | Action::ReportExit { .. }
                | Action::Tell { .. }
                | Action::Report(_) => {}
            }
        }
    }

    /// Those that a container has to wait for.
    fn before(&self, n: usize) -> Vec<usize> {
        let end = match self.role(n) {
            Role::App => usize::MAX,
            Role::Init | Role::Sidecar => self.plan.position(self.names[n]).unwrap(),
            _ => 0,
        };
        let stages = self.plan.stages().iter().take(end);
        let names = stages.flat_map(|stage| stage.0.iter());
        names
            .map(|name| self.names.iter().position(|other| other == name).unwrap())
            .collect()
    }

    fn has_done_its_part(&self, fork: &Fork, n: usize) -> bool {
        let has_probe = self.plan.container(self.names[n]).startup_probe.is_some();
        match (self.role(n), fork.lives[n]) {
            (Role::Init, _) => fork.succeeded[n],
            (_, Life::Running { ready }) => ready || !has_probe,
            _ => false,
        }
    }

    /// Everything has happened that can: whatever has not run is waited for by nobody in vain.
    fn check_rest(&self, fork: &Fork) {
        if fork.pod.phase() != Phase::Running && fork.pod.phase() != Phase::Initializing {
            return;
        }
        for n in 0..self.names.len() {
            let waits = matches!(fork.lives[n], Life::Asked);
            let may_run = self
                .before(n)
                .iter()
                .all(|earlier| self.has_done_its_part(fork, *earlier));
            assert!(
                !(waits && may_run),
                "{} is never released: {:?}",
                self.names[n],
                fork.lives
            );
            // Whoever cannot come by itself has been answered, so that the caller can go on.
            if waits && fork.pod.poll_timeout().is_none() {
                panic!("{} waits without a bound: {:?}", self.names[n], fork.lives);
            }
        }
    }
}

impl Fork {
    fn key(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        format!("{:?}", self.pod).hash(&mut hasher);
        (&self.lives, &self.succeeded, &self.restarts, &self.probes).hash(&mut hasher);
        (&self.doomed, self.starts_open, self.now).hash(&mut hasher);
        (self.left.timers, self.left.crashes, self.left.kills).hash(&mut hasher);
        hasher.finish()
    }
}

const PROBE: (&str, &str) = (
    "startup-probe.usher/proxy",
    r#"{"tcpSocket":{"port":80},"failureThreshold":100}"#,
);

#[test]
fn an_init_container_a_sidecar_and_two_apps() {
    for mode in ["Auto", "Block", "Hold"] {
        let annotations = [
            ("init", "setup"),
            ("sidecars", "proxy"),
            ("start-mode", mode),
            PROBE,
        ];
        let model = Model::explore(
            &annotations,
            &["web", "api", "proxy", "setup"],
            Limits::default(),
        );
        assert!(model.rested > 0);
    }
}

#[test]
fn a_chain_of_init_and_sidecar_containers() {
    let annotations = [
        ("init", "one two"),
        ("sidecars", "proxy"),
        ("startup-order", "one proxy two"),
        PROBE,
    ];
    let limits = Limits {
        timers: 1,
        ..Limits::default()
    };
    let model = Model::explore(&annotations, &["web", "two", "proxy", "one"], limits);
    assert!(model.rested > 0);
}

#[test]
fn crashes_at_any_moment() {
    for policy in ["Always", "OnFailure", "Never"] {
        let annotations = [
            ("init", "setup"),
            ("sidecars", "proxy"),
            ("restart-policy", policy),
            ("apps", "web"),
        ];
        let limits = Limits {
            crashes: 2,
            timers: 1,
            ..Limits::default()
        };
        let model = Model::explore(&annotations, &["web", "proxy", "setup"], limits);
        assert!(model.rested > 0);
    }
}

#[test]
fn stop_requests_at_any_moment() {
    let annotations = [("init", "setup"), ("sidecars", "proxy")];
    let limits = Limits {
        kills: 2,
        timers: 1,
        ..Limits::default()
    };
    let model = Model::explore(&annotations, &["web", "proxy", "setup"], limits);
    assert!(model.rested > 0);
}
