//! A kubelet: it starts and restarts as SyncPod does, and stops as killPod does.
//!
//! Seen with kubelet 1.20 on the wire: containers are created one after another in the order of the
//! spec, each waiting for the answer of the Start before it; one whose Start has failed is left for
//! the next round; what has exited is created anew, with a back-off; at the end of the pod all are
//! asked to stop at once, and killed when the grace period is over. From 1.29 on its own sidecars
//! are asked when all others are gone. What was asked to stop is killed when its grace period is over,
//! counted from the answer; a preStop handler takes its part of it, but for two seconds. A postStart handler is waited for before the next container
//! is created. A container whose liveness probe has failed is stopped, waited for, and created again
//! whatever it ended with. Without its sandbox all of a pod is stopped, and started in a new one but
//! for what has ended with 0 under `OnFailure`, and all that has run under `Never`.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::lifecycle::{ContainerId, Exec, RequestId, Time};
use crate::plan::{RestartPolicy, Signal};

use crate::simulator::{Call, Node, Seen, World, ms, secs};

/// kubelet's `runtimeRequestTimeout`.
const REQUEST_TIMEOUT: Duration = secs(120);

/// How often it looks at its pods when nothing has happened: PLEG's period.
const RELIST: Duration = secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Run to completion before the next.
    NativeInit,
    /// An init container with `restartPolicy: Always`.
    NativeSidecar,
    Regular,
}

/// A container of the spec, and what kubelet knows of it.
#[derive(Debug)]
struct Record {
    name: &'static str,
    kind: Kind,
    /// The container that was created last.
    id: Option<&'static str>,
    creations: u32,
    status: Status,
    not_before: Time,
    back_off: Duration,
    /// How long after its end it may be created again.
    puts_off: Duration,
    /// How long its postStart handler takes.
    post_start: Option<Duration>,
    /// How long its preStop handler takes, and its command where that is an exec.
    pre_stop: Option<(Duration, Option<Vec<String>>)>,
}

/// A stop request at the end of a pod.
#[derive(Debug)]
struct Asked {
    id: &'static str,
    request: RequestId,
    /// From its answer to SIGKILL.
    grace: Duration,
    answered: Option<Time>,
    killed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    None,
    Starting(Time),
    /// Its postStart handler runs until then.
    Handling(Time),
    Running,
    /// It was asked to stop since its liveness probe has failed.
    Stopping(Time),
    Exited(u32),
}

pub struct Kubelet {
    policy: RestartPolicy,
    grace: Duration,
    records: Vec<Record>,
    /// How much of what was seen it has taken notice of.
    heard: usize,
    /// Since when it ends the pod.
    ending: Option<Time>,
    asked: Vec<Asked>,
    /// Whose preStop handlers it has begun.
    handled: Vec<&'static str>,
    /// What it gave up waiting for.
    pub start_errors: u32,
}

impl Kubelet {
    pub fn new(policy: RestartPolicy, grace: Duration, spec: &[(&'static str, Kind)]) -> Kubelet {
        let record = |(name, kind): &(&'static str, Kind)| Record {
            name,
            kind: *kind,
            id: None,
            creations: 0,
            status: Status::None,
            not_before: Time::default(),
            back_off: Duration::ZERO,
            puts_off: Duration::ZERO,
            post_start: None,
            pre_stop: None,
        };
        Kubelet {
            policy,
            grace,
            records: spec.iter().map(record).collect(),
            heard: 0,
            ending: None,
            asked: Vec::new(),
            handled: Vec::new(),
            start_errors: 0,
        }
    }

    /// The record has been cleared: it has heard of all that was in it.
    pub fn deaf(mut self) -> Kubelet {
        self.heard = 0;
        self
    }

    /// Lets time go by, and does its work.
    pub fn run_for(&mut self, world: &mut World, limit: Duration) {
        let end = world.now.after(limit);
        let mut relist = world.now;
        while world.now < end {
            relist = relist.after(RELIST).min(end);
            while world.step(relist) {
                // The answer of a Start wakes it at once; of an exit it learns when it looks.
                self.hear(world, false);
            }
            world.now = relist;
            self.hear(world, true);
        }
    }

    /// The container has a postStart handler, which takes so long.
    pub fn post_start(&mut self, name: &str, takes: Duration) {
        if let Some(record) = self.records.iter_mut().find(|record| record.name == name) {
            record.post_start = Some(takes);
        }
    }

    /// The container has a preStop handler, which takes so long; its command where it is an exec.
    pub fn pre_stop(&mut self, name: &str, takes: Duration, command: Option<Vec<String>>) {
        if let Some(record) = self.records.iter_mut().find(|record| record.name == name) {
            record.pre_stop = Some((takes, command));
        }
    }

    /// The liveness probe of a container has failed for the last time.
    pub fn unhealthy(&mut self, world: &mut World, name: &str) {
        let busy = self.records.iter().any(|record| record.status.is_busy());
        let record = self.records.iter_mut().find(|record| record.name == name);
        // A pod worker does one thing after another, and this is not about what it is doing.
        if let Some(record) = record.filter(|record| !busy && record.status == Status::Running)
            && self.ending.is_none()
        {
            record.status = Status::Stopping(world.now);
            let patience = Some(REQUEST_TIMEOUT + self.grace);
            world.call(Call::Kill(record.id.unwrap(), Signal::TERM, patience));
        }
    }

    /// The sandbox has died: all is stopped, and the pod goes on in another, `next`, if it does.
    pub fn change_sandbox(&mut self, world: &mut World, next: World) {
        world.call(Call::Crash("pause", 137));
        self.ending = Some(world.now);
        // The pod's own grace period may be longer by ten seconds; then everything has two.
        self.run_for(world, self.grace + secs(13));
        assert!(alive(world).is_empty(), "{:#?}", world.seen);
        let later = next.now.max(world.now);
        *world = next;
        world.run_for(later.since(world.now));
        self.heard = world.seen.len();
        (self.ending, self.asked, self.handled) = (None, Vec::new(), Vec::new());
        for record in &mut self.records {
            let stays_out = match (self.policy, record.status) {
                (RestartPolicy::Always, _) | (_, Status::None) => false,
                (RestartPolicy::OnFailure, status) => status == Status::Exited(0),
                (RestartPolicy::Never, _) => true,
            };
            record.id = None;
            if !stays_out {
                record.status = Status::None;
            }
        }
    }

    /// The pod is deleted.
    pub fn delete(&mut self, world: &World) {
        self.ending.get_or_insert(world.now);
    }

    /// Whether every container that counts has ended as the restart policy wants it.
    pub fn is_over(&self) -> bool {
        let mut regular = self.records.iter().filter(|r| r.kind == Kind::Regular);
        regular.all(|record| match (self.policy, record.status) {
            (RestartPolicy::Never, Status::Exited(_)) => true,
            (RestartPolicy::OnFailure, Status::Exited(code)) => code == 0,
            _ => false,
        })
    }

    /// The exit code of a container as kubelet knows it.
    pub fn code(&self, name: &str) -> Option<u32> {
        let record = self.records.iter().find(|record| record.name == name)?;
        match record.status {
            Status::Exited(code) => Some(code),
            _ => None,
        }
    }

    /// The container of a name that was created last.
    pub fn current(&self, name: &str) -> Option<&'static str> {
        let record = self.records.iter().find(|record| record.name == name)?;
        record.id
    }

    /// How often a container was created.
    pub fn creations(&self, name: &str) -> u32 {
        let record = self.records.iter().find(|record| record.name == name);
        record.map_or(0, |record| record.creations)
    }

    fn hear(&mut self, world: &mut World, relisted: bool) {
        let news: Vec<Seen> = world.seen[self.heard..]
            .iter()
            .map(|(_, seen)| seen.clone())
            .collect();
        let (mut woken, mut unhealthy) = (relisted, None);
        for seen in &news {
            match seen {
                Seen::StartAnswered(id, answer) => {
                    woken = true;
                    if let Some(record) = self.by_id(id)
                        && matches!(record.status, Status::Starting(_))
                    {
                        record.status = match (answer, record.post_start) {
                            (Ok(()), None) => Status::Running,
                            (Ok(()), Some(takes)) => {
                                world.call(Call::PostStart(record.id.unwrap(), takes));
                                Status::Handling(world.now.after(takes))
                            }
                            (Err(_), _) => {
                                // containerd deletes what it could not start.
                                world.call(Call::Kill(record.id.unwrap(), Signal::KILL, None));
                                record.not_before = world.now.after(record.puts_off);
                                Status::Exited(128)
                            }
                        };
                    }
                }
                Seen::KillAnswered(request, _) => {
                    let now = world.now;
                    let asked = self.asked.iter_mut();
                    for asked in asked.filter(|asked| asked.request == *request) {
                        asked.answered = Some(now);
                    }
                }
                Seen::ExitReported(id, code) => {
                    if let Some(record) = self.by_id(id)
                        && !matches!(record.status, Status::Starting(_))
                    {
                        let was_unhealthy = matches!(record.status, Status::Stopping(_));
                        record.status = Status::Exited(*code);
                        record.not_before = world.now.after(record.puts_off);
                        if was_unhealthy {
                            unhealthy = record.id;
                        }
                    }
                }
                _ => {}
            }
        }
        self.heard = world.seen.len();
        if let Some(id) = unhealthy
            && let Some(record) = self.by_id(id)
            && record.not_before <= world.now
            && self.policy != RestartPolicy::Never
            && self.ending.is_none()
        {
            return self.by_id(id).unwrap().create(world);
        }
        if woken {
            self.sync(world);
        }
    }

    fn by_id(&mut self, id: &str) -> Option<&mut Record> {
        self.records.iter_mut().find(|record| record.id == Some(id))
    }

    fn sync(&mut self, world: &mut World) {
        // A pod worker does one thing after another.
        for record in &mut self.records {
            match record.status {
                Status::Handling(until) if until <= world.now => record.status = Status::Running,
                Status::Handling(_) => return,
                Status::Stopping(since) => {
                    if world.now >= since.after(self.grace) {
                        record.status = Status::Stopping(world.now);
                        world.call(Call::Kill(record.id.unwrap(), Signal::KILL, None));
                    }
                    return;
                }
                _ => {}
            }
        }
        let waiting = self
            .records
            .iter_mut()
            .find_map(|record| match record.status {
                Status::Starting(since) => Some((record, since)),
                _ => None,
            });
        if let Some((record, since)) = waiting {
            if world.now.since(since) < REQUEST_TIMEOUT {
                return;
            }
            record.status = Status::Exited(128);
            record.not_before = world.now.after(record.puts_off);
            self.start_errors += 1;
            let id = record.id.unwrap();
            world.call(Call::GiveUp(id));
            world.call(Call::Kill(id, Signal::KILL, None));
        }
        match self.ending {
            Some(since) => self.end(world, since),
            None => self.start_next(world),
        }
    }

    fn start_next(&mut self, world: &mut World) {
        let policy = self.policy;
        for record in &mut self.records {
            let due = match (record.kind, record.status) {
                (_, Status::Starting(_) | Status::Handling(_) | Status::Stopping(_)) => return,
                (_, Status::None) => true,
                (Kind::NativeSidecar, Status::Exited(_)) => true,
                (Kind::NativeInit, Status::Exited(0)) => false,
                (Kind::NativeInit, Status::Running) => return,
                (_, Status::Running) => false,
                (Kind::NativeInit, Status::Exited(_)) if policy == RestartPolicy::Never => {
                    self.ending = Some(world.now);
                    return;
                }
                (Kind::NativeInit, Status::Exited(_)) => true,
                (Kind::Regular, Status::Exited(code)) => match policy {
                    RestartPolicy::Always => true,
                    RestartPolicy::OnFailure => code != 0,
                    RestartPolicy::Never => false,
                },
            };
            if due && record.not_before <= world.now {
                return record.create(world);
            }
            if due && record.kind == Kind::NativeInit {
                return;
            }
        }
        if self.is_over() {
            self.ending = Some(world.now);
        }
    }

    fn end(&mut self, world: &mut World, since: Time) {
        let regular_left = self
            .records
            .iter()
            .any(|r| r.kind != Kind::NativeSidecar && r.status == Status::Running);
        let over = world.now >= since.after(self.grace);
        for record in &self.records {
            let Some(id) = record.id.filter(|_| record.status == Status::Running) else {
                continue;
            };
            let its_turn = record.kind != Kind::NativeSidecar || !regular_left || over;
            if !its_turn || self.asked.iter().any(|asked| asked.id == id) {
                continue;
            }
            let takes = record
                .pre_stop
                .as_ref()
                .map_or(Duration::ZERO, |(takes, command)| {
                    if !self.handled.contains(&id) {
                        self.handled.push(id);
                        if let Some(argv) = command {
                            let exec = Exec {
                                id: "pre-stop",
                                argv,
                                has_deadline: false,
                            };
                            let _ = world.exec(id, &exec);
                        }
                    }
                    (*takes).min(self.grace)
                });
            if world.now < since.after(takes) {
                continue;
            }
            // Whole seconds, and kubelet's own minimum.
            let grace = (self.grace - takes).max(secs(2)).as_secs();
            let grace = secs(grace.min(self.grace.as_secs().max(2)));
            world.call(Call::Kill(id, Signal::TERM, Some(REQUEST_TIMEOUT + grace)));
            let request = *world.asked.last().unwrap();
            let is_answered = world.answered.contains_key(&request);
            self.asked.push(Asked {
                id,
                request,
                grace,
                answered: is_answered.then_some(world.now),
                killed: false,
            });
        }
        self.kill(world);
    }

    /// What has not heeded its stop request, counted from the answer.
    fn kill(&mut self, world: &mut World) {
        for asked in &mut self.asked {
            let over = asked.answered.map(|at| at.after(asked.grace));
            let runs = self
                .records
                .iter()
                .any(|record| record.id == Some(asked.id) && record.status == Status::Running);
            if runs && !asked.killed && over.is_some_and(|over| over <= world.now) {
                asked.killed = true;
                world.call(Call::Kill(asked.id, Signal::KILL, None));
            }
        }
    }
}

impl Status {
    /// The pod worker waits for it.
    fn is_busy(self) -> bool {
        matches!(
            self,
            Status::Starting(_) | Status::Handling(_) | Status::Stopping(_)
        )
    }
}

impl Record {
    fn create(&mut self, world: &mut World) {
        if let Some(old) = self.id {
            world.call(Call::Delete(old));
        }
        self.creations += 1;
        let id: &'static str = match self.creations {
            1 => self.name,
            n => Box::leak(format!("{}#{n}", self.name).into_boxed_str()),
        };
        self.id = Some(id);
        self.status = Status::Starting(world.now);
        // The first restart comes at once.
        self.puts_off = self.back_off;
        self.back_off = (self.back_off * 2).clamp(secs(10), secs(300));
        world.call(Call::Run(id, Some(REQUEST_TIMEOUT)));
    }
}

/// A pod whose containers kubelet knows, with a sandbox.
pub fn pod(annotations: &[(&str, &str)]) -> World {
    let mut world = World::new(annotations).with_sandbox();
    world.create_timeout = Some(REQUEST_TIMEOUT);
    world.run_for(ms(100));
    world
}

/// The kinds of the containers by their names.
pub fn regular(names: &[&'static str]) -> Vec<(&'static str, Kind)> {
    names.iter().map(|name| (*name, Kind::Regular)).collect()
}

/// Whether a container's program runs, whichever of its lives.
pub fn runs(world: &World, kubelet: &Kubelet, name: &str) -> bool {
    let record = kubelet.records.iter().find(|record| record.name == name);
    record
        .and_then(|record| record.id)
        .is_some_and(|id| world.is_executing(id))
}

/// How much of the pod is left alive.
pub fn alive(world: &World) -> Vec<&ContainerId> {
    let alive: BTreeMap<_, _> = world
        .processes
        .iter()
        .filter(|(id, process)| process.alive && id.as_str() != "pause")
        .collect();
    alive.into_keys().collect()
}
