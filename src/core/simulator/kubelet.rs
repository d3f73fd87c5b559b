//! A simulated kubelet with its faults, and the containerd that it calls.
//!
//! - **SyncPod**: one step at a time. kubelet first stops unhealthy containers, and those with a
//!   changed image, and waits for each. Then it creates the missing containers one after another.
//!   For each it waits until Start is answered and the postStart handler is over. If the handler
//!   fails, kubelet stops the container before it creates the next. It creates exited containers
//!   again after the back-off: at once, 10 s, 20 s … The first init container that is not done
//!   blocks all later containers.
//! - **killPod**: when the pod ends, or its sandbox has died, kubelet stops all running containers
//!   at the same time. A busy node may begin some stops a little later. For each container kubelet
//!   first runs the preStop handler, at most for the grace period. A native sidecar then waits
//!   until the containers that stop before it have exited. Then kubelet calls StopContainer with
//!   the rest of the grace period, in whole seconds and at least 2 s. containerd sends the stop
//!   signal, and SIGKILL when this time is over, counted from the answer to the stop signal. At the
//!   end kubelet stops the sandbox.
//! - **A dead sandbox**: kubelet notices the death the next time it looks at the pod, and creates
//!   another sandbox. Under `OnFailure` kubelet leaves out the containers that have exited with 0
//!   by then. Under `Never` it creates no other sandbox.
//! - **Absence of kubelet**: kubelet forgets its current work, and begins anew when it is back. If
//!   kubelet then asks a container to stop a second time, containerd sends no second stop signal.

mod stop;

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use crate::lifecycle::{RequestId, Time};
use crate::plan::{RestartPolicy, Signal};

use crate::simulator::{Call, Node, Script, Seen, ms, secs};

use super::case::{Case, Deletion, Fault, Member, Part, RESTARTS_ALL};

/// Kubelet's `runtimeRequestTimeout`.
const REQUEST_TIMEOUT: Duration = secs(120);

/// Shortest grace period of a stop request.
const MIN_GRACE: Duration = secs(2);

const FIRST_BACK_OFF: Duration = secs(10);
const LONGEST_BACK_OFF: Duration = secs(300);

/// The reason why kubelet stops the whole pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Deleted,
    /// The pod is complete: no container is to run any more.
    Over,
    SandboxDied,
}

/// A stop request that reaches the shim.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    pub at: Time,
    /// Number of observations that were recorded before the request.
    pub after: usize,
    pub id: &'static str,
    /// True if the request is part of the stop of the whole pod.
    pub end: bool,
    /// The rest of the grace period at the time of the request.
    pub grace: Duration,
    /// True if the request is the Exec of the preStop handler.
    pub is_handler: bool,
    /// True if the request is a SIGKILL that follows no earlier stop request.
    pub is_kill: bool,
}

/// The record of kubelet's actions and their reasons. The promises are checked against this record.
#[derive(Debug, Default)]
pub struct Log {
    /// For each sandbox, the number of observations that were recorded before its creation.
    pub sandboxes: Vec<usize>,
    /// Indices in `sandboxes` of entries without a sandbox of their own: kubelet kept the previous
    /// sandbox and restarted all of its containers (KEP-5532).
    pub restarted: Vec<usize>,
    pub asks: Vec<Ask>,
    /// Times of the SIGKILLs at the end of a grace period, with their containers.
    pub kills: Vec<(Time, &'static str)>,
    /// Containers that got SIGKILL because containerd could not start them, or gave up on their
    /// Start.
    pub given_up: Vec<&'static str>,
    /// The times when kubelet began to stop all containers of a sandbox, with the reasons.
    pub ends: Vec<(Time, usize, End)>,
    /// Containers left out of the next sandbox, with their exit codes.
    pub left_out: Vec<(Time, &'static str, u32)>,
    /// Containers that kubelet has asked to stop a second time. A shim cannot see the second
    /// request.
    pub asked_again: Vec<&'static str>,
    /// Answered stop requests: the time of the request, the container, and the wait for the answer.
    pub answers: Vec<(Time, &'static str, Duration)>,
    /// Stop requests whose container exited before the answer: the time of the request, the
    /// container, and the time from the request to the exit.
    pub unanswered: Vec<(Time, &'static str, Duration)>,
    /// The time when kubelet had nothing left to do for the pod.
    pub over: Option<Time>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Nothing,
    Running,
    Exited(u32),
}

struct Record {
    id: Option<&'static str>,
    creations: u32,
    state: State,
    exited: Time,
    back_off: Duration,
    unhealthy: bool,
    changed: bool,
    again: u32,
}

/// Current activity of the worker that kubelet runs for the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Worker {
    Idle,
    StartsSandbox,
    Starts(usize, Time),
    /// The pull of a container's image, which ends at this time.
    Pulls(usize, Time),
    /// The wait for a postStart handler. `over` is `None` while the handler runs. Afterwards `over`
    /// is true if the handler has succeeded.
    Handles {
        who: usize,
        over: Option<bool>,
    },
    /// The stop of one container while the pod lives on.
    Stops,
    StopsAll(End),
    StopsSandbox(End),
    Done,
}

/// A stop of one container: StopContainer, and kubelet's steps before that call.
struct Stop {
    who: usize,
    id: &'static str,
    left: Duration,
    /// The grace period for this stop alone. With 0, kubelet runs no preStop handler.
    exact: Option<Duration>,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waits(Time),
    Handler {
        began: Time,
        until: Time,
    },
    Turn(Time),
    Asked {
        request: Option<RequestId>,
        at: Time,
        answered: Option<Time>,
        grace: Duration,
        killed: bool,
    },
    Over,
}

/// The simulated kubelet.
pub struct Kubelet<'a> {
    case: &'a Case,
    pub world: &'a mut dyn Node,
    log: &'a mut Log,
    records: Vec<Record>,
    worker: Worker,
    to_stop: VecDeque<usize>,
    to_start: VecDeque<usize>,
    stops: Vec<Stop>,
    /// Containers to which containerd has sent a stop signal.
    signalled: BTreeSet<&'static str>,
    /// True while kubelet stops all containers in order to create all of them again in this sandbox
    /// (KEP-5532).
    restarts_all: bool,
    /// The deletion of the pod, once requested.
    deleted: Option<Deletion>,
    sandbox_is_dead: bool,
    /// True if kubelet has noticed that the sandbox died.
    sandbox_is_known_dead: bool,
    away_until: Option<Time>,
    looks_at: Time,
    heard: usize,
}

/// Returns the same static text for equal texts.
pub fn intern(text: String) -> &'static str {
    thread_local!(static KNOWN: RefCell<BTreeSet<&'static str>> = const { RefCell::new(BTreeSet::new()) });
    KNOWN.with_borrow_mut(|known| match known.get(text.as_str()) {
        Some(text) => *text,
        None => {
            let text: &'static str = Box::leak(text.into_boxed_str());
            known.insert(text);
            text
        }
    })
}

impl<'a> Kubelet<'a> {
    pub fn new(case: &'a Case, world: &'a mut dyn Node, log: &'a mut Log) -> Kubelet<'a> {
        let record = |again| Record {
            id: None,
            creations: 0,
            state: State::Nothing,
            exited: Time::default(),
            back_off: Duration::ZERO,
            unhealthy: false,
            changed: false,
            again,
        };
        let looks_at = world.now().after(ms(case.tick));
        Kubelet {
            records: case.members.iter().map(|m| record(m.again)).collect(),
            case,
            world,
            log,
            worker: Worker::Idle,
            to_stop: VecDeque::new(),
            to_start: VecDeque::new(),
            stops: Vec::new(),
            signalled: BTreeSet::new(),
            restarts_all: false,
            deleted: None,
            sandbox_is_dead: false,
            sandbox_is_known_dead: false,
            away_until: None,
            looks_at,
            heard: 0,
        }
    }

    /// Runs the pod from its creation to its end.
    pub fn run(&mut self) {
        self.open_sandbox();
        let deleted = self.world.now().after(ms(self.case.deleted.0));
        for (at, fault) in &self.case.faults {
            self.live_until(Time::default().after(ms(*at)).min(deleted));
            self.go_wrong(*fault);
        }
        self.live_until(deleted);
        self.delete(self.case.deleted.1);
        for (after, fault) in &self.case.late {
            self.live_until(deleted.after(ms(*after)));
            self.go_wrong(*fault);
        }
        // Every pod ends before this limit, even if one of its Starts is never answered.
        let limit = self.world.now().after(secs(600));
        while self.worker != Worker::Done && self.world.now() < limit {
            self.live_until(self.world.now().after(secs(1)));
        }
        if self.worker == Worker::Done {
            self.log.over = Some(self.world.now());
            self.live_until(self.world.now().after(secs(30)));
        }
    }

    fn live_until(&mut self, end: Time) {
        self.poll();
        while self.world.now() < end {
            let own = self.wakes_at();
            self.world.advance(own.map_or(end, |own| own.min(end)));
            self.poll();
        }
    }

    fn wakes_at(&self) -> Option<Time> {
        let mut all = vec![self.away_until.unwrap_or(self.looks_at)];
        match self.worker {
            Worker::Starts(_, since) => all.push(since.after(REQUEST_TIMEOUT)),
            Worker::Pulls(_, until) => all.push(until),
            Worker::Done => return None,
            _ => {}
        }
        all.extend(self.stops.iter().filter_map(|stop| match stop.stage {
            Stage::Waits(until) => Some(until),
            Stage::Handler { began, until } => Some(until.min(began.after(stop.left))),
            Stage::Turn(since) => Some(since.after(stop.left)),
            Stage::Asked {
                answered, grace, ..
            } => answered.map(|at| at.after(grace)),
            Stage::Over => None,
        }));
        all.into_iter().filter(|at| *at > self.world.now()).min()
    }

    fn poll(&mut self) {
        loop {
            self.hear();
            if self
                .away_until
                .is_some_and(|until| until <= self.world.now())
            {
                self.away_until = None;
                self.looks_at = self.world.now();
                self.world.did("kubelet is back".to_owned());
            }
            if self.away_until.is_some() || !(self.advance_stops() | self.advance()) {
                return;
            }
        }
    }
}

impl Kubelet<'_> {
    fn go_wrong(&mut self, fault: Fault) {
        let who = |name| self.case.members.iter().position(|m| m.name == name);
        match fault {
            Fault::Crash(name, code) => {
                if let Some(id) = who(name).and_then(|who| self.records[who].id)
                    && self.world.is_executing(id)
                {
                    self.world.did(format!("{id} crashes with {code}"));
                    self.world.call(Call::Crash(id, code));
                }
            }
            Fault::Unhealthy(name) => {
                if let Some(who) = who(name)
                    && self.records[who].state == State::Running
                    && self.case.members[who].part != Part::NativeInit
                {
                    self.world.did(format!("{name} is found unhealthy"));
                    self.records[who].unhealthy = true;
                }
            }
            Fault::Image(name) => {
                if let Some(who) = who(name)
                    // A changed image does not restart a completed init container.
                    && self.case.members[who].part != Part::NativeInit
                {
                    self.world.did(format!("the image of {name} is changed"));
                    self.records[who].changed = self.records[who].state == State::Running;
                }
            }
            Fault::SandboxDies => {
                if !self.sandbox_is_dead && self.world.is_executing("pause") {
                    self.world.did("the sandbox dies".to_owned());
                    self.world.call(Call::Crash("pause", 137));
                }
            }
            Fault::Restart(away) => {
                if self.worker != Worker::Done {
                    self.world.did("kubelet goes away".to_owned());
                    self.away_until = Some(self.world.now().after(ms(away)));
                    self.forget();
                }
            }
            Fault::Hurry(grace) => {
                if matches!(self.worker, Worker::StopsAll(End::Deleted)) {
                    self.world
                        .did(format!("the pod is deleted within {grace}s"));
                    self.deleted = Some(match grace {
                        0 => Deletion::Kill,
                        grace => Deletion::Within(grace),
                    });
                    self.stops.clear();
                    self.worker = Worker::Idle;
                }
            }
        }
        self.poll();
    }

    fn delete(&mut self, how: Deletion) {
        if self.worker == Worker::Done {
            return;
        }
        self.world.did(format!("the pod is deleted: {how:?}"));
        self.deleted = Some(how);
        if self.case.breaks_off {
            match self.worker {
                Worker::Pulls(..) | Worker::Starts(..) | Worker::Handles { .. } | Worker::Stops => {
                    self.forget();
                }
                _ => {}
            }
        }
        self.to_start.clear();
        self.poll();
    }

    /// Aborts kubelet's current activity.
    fn forget(&mut self) {
        match self.worker {
            Worker::Starts(who, _) => self.give_up(who),
            Worker::StopsSandbox(_) | Worker::StartsSandbox | Worker::Done => return,
            _ => {}
        }
        self.stops.clear();
        self.to_start.clear();
        self.to_stop.clear();
        self.restarts_all = false;
        self.worker = Worker::Idle;
    }
}

impl Kubelet<'_> {
    fn hear(&mut self) {
        while let Some((at, seen)) = self.world.seen().get(self.heard).cloned() {
            self.heard += 1;
            match seen {
                Seen::StartAnswered(id, answer) => self.start_answered(&id, answer.is_ok()),
                Seen::ExitReported(id, code) => self.exited(&id, code, at),
                Seen::StartFailed(id, _) => self.start_answered(&id, false),
                Seen::PostStartOver(id, has_succeeded) => {
                    self.handler_is_over(&id, has_succeeded == Some(true))
                }
                Seen::CreateRefused(id, why) => self.refused(&id, &why),
                _ => {}
            }
        }
    }

    fn start_answered(&mut self, id: &str, is_ok: bool) {
        if id == "pause" && self.worker == Worker::StartsSandbox {
            if !is_ok {
                // The CRI removes a container that it could not start.
                let kill = Call::Kill("pause", Signal::KILL, Some(secs(10)));
                self.world.call(kill);
                self.world.call_in(ms(20), Call::Delete("pause"));
            }
            match (is_ok, self.deleted) {
                (true, _) => {
                    self.worker = Worker::Idle;
                    self.looks_at = self.world.now();
                }
                (false, None) => self.open_sandbox(),
                (false, Some(_)) => {
                    self.world.did("the pod is over for kubelet".to_owned());
                    self.worker = Worker::Done;
                }
            }
            return;
        }
        let Worker::Starts(who, _) = self.worker else {
            return;
        };
        if self.records[who].id != Some(id) {
            return;
        }
        if !is_ok {
            return self.give_up(who);
        }
        // If the container has exited before its Start is answered, kubelet does not count it as
        // running.
        if matches!(self.records[who].state, State::Exited(_)) {
            self.worker = Worker::Idle;
            return;
        }
        self.records[who].state = State::Running;
        match self.case.members[who].post_start {
            Some(takes) => {
                let id = self.records[who].id.unwrap();
                self.world.did(format!("postStart of {id}"));
                let fails = self.records[who].creations <= self.case.members[who].post_starts_fail;
                let call = Call::PostStart(id, ms(takes), u8::from(fails));
                self.world.call(call);
                // If the handler cannot be executed, the next observation says so.
                self.worker = Worker::Handles { who, over: None };
            }
            None => self.worker = Worker::Idle,
        }
    }

    /// Records that a postStart handler is over: by itself, because its container exited, or
    /// because it could not be executed.
    fn handler_is_over(&mut self, id: &str, has_succeeded: bool) {
        if let Worker::Handles { who, over } = &mut self.worker
            && self.records[*who].id == Some(id)
        {
            *over = Some(has_succeeded);
        }
    }

    fn refused(&mut self, id: &str, why: &str) {
        if id == "pause" {
            return self.start_answered(id, false);
        }
        let Worker::Starts(who, _) = self.worker else {
            return;
        };
        if self.records[who].id == Some(id) {
            self.world.did(format!("refused: {why}"));
            self.records[who].state = State::Exited(128);
            self.records[who].exited = self.world.now();
            self.worker = Worker::Idle;
        }
    }

    /// Makes containerd delete a container that could not be started.
    fn give_up(&mut self, who: usize) {
        let id = self.records[who].id.unwrap();
        self.world.did(format!("StartError of {id}"));
        self.log.given_up.push(id);
        self.records[who].state = State::Exited(128);
        self.records[who].exited = self.world.now();
        self.worker = Worker::Idle;
        self.world.call(Call::GiveUp(id));
        // The creation has to finish before the deletion.
        let wait = match self.world.is_alive(id) {
            true => Duration::ZERO,
            false => ms(40),
        };
        let kill = Call::Kill(id, Signal::KILL, Some(secs(10)));
        self.world.call_in(wait, kill);
        let delete = wait + ms(self.case.clean_up.max(2));
        self.world.call_in(delete, Call::Delete(id));
    }

    fn exited(&mut self, id: &str, code: u32, at: Time) {
        if id == "pause" {
            self.sandbox_is_dead = true;
            return;
        }
        let id = intern(id.to_owned());
        let clean_up = ms(self.case.clean_up);
        self.world.call_in(clean_up / 2, Call::KillLeftovers(id));
        self.world.call_in(clean_up, Call::Delete(id));
        let record = self.records.iter_mut().find(|record| record.id == Some(id));
        if let Some(record) = record
            && !matches!(record.state, State::Exited(_))
        {
            record.state = State::Exited(code);
            record.exited = at;
        }
    }

    fn runs(&self, who: usize) -> bool {
        self.records[who].state == State::Running
    }
}

impl Kubelet<'_> {
    /// Takes kubelet's next step. Returns true if there was one.
    fn advance(&mut self) -> bool {
        let now = self.world.now();
        match self.worker {
            Worker::Done | Worker::StartsSandbox => false,
            Worker::Starts(who, since) if now >= since.after(REQUEST_TIMEOUT) => {
                self.give_up(who);
                true
            }
            Worker::Handles { who, over } if over.is_some() || !self.runs(who) => {
                self.worker = Worker::Idle;
                if over == Some(false) && self.runs(who) {
                    self.stop_one(who);
                }
                true
            }
            Worker::Pulls(who, until) if now >= until || self.deleted.is_some() => {
                match self.deleted {
                    Some(_) => self.worker = Worker::Idle,
                    None => self.create(who),
                }
                true
            }
            Worker::Pulls(..) | Worker::Starts(..) | Worker::Handles { .. } => false,
            Worker::Stops => {
                let over = self.stops.iter().all(|stop| stop.stage == Stage::Over);
                if over {
                    self.stops.clear();
                    self.worker = Worker::Idle;
                }
                over
            }
            Worker::StopsAll(end) => {
                let over = self.stops.iter().all(|stop| stop.stage == Stage::Over);
                if over {
                    self.stops.clear();
                    self.worker = Worker::StopsSandbox(end);
                    if !self.sandbox_is_dead {
                        self.world
                            .call(Call::Kill("pause", Signal::KILL, Some(REQUEST_TIMEOUT)));
                    }
                }
                over
            }
            Worker::StopsSandbox(end) => {
                if self.sandbox_is_dead && !self.world.is_alive("pause") {
                    self.sandbox_over(end);
                    return true;
                }
                false
            }
            Worker::Idle if !self.to_stop.is_empty() => {
                self.stop_next();
                true
            }
            Worker::Idle if self.restarts_all => {
                self.all_are_stopped();
                true
            }
            Worker::Idle if !self.to_start.is_empty() => {
                self.start_next();
                true
            }
            Worker::Idle => self.idle(now),
        }
    }

    fn idle(&mut self, now: Time) -> bool {
        if let Some(how) = self.deleted {
            self.stop_all(End::Deleted, how);
            return true;
        }
        if now < self.looks_at {
            return false;
        }
        self.looks_at = now.after(secs(1));
        self.sandbox_is_known_dead |= self.sandbox_is_dead;
        if self.sandbox_is_known_dead {
            self.choose_for_next_sandbox();
            self.stop_all(End::SandboxDied, Deletion::Usual);
            return true;
        }
        self.sync();
        self.worker != Worker::Idle
            || self.restarts_all
            || !self.to_stop.is_empty()
            || !self.to_start.is_empty()
    }

    fn stop_all(&mut self, end: End, how: Deletion) {
        let now = self.world.now();
        self.world.did(format!("kubelet stops all: {end:?}"));
        self.log.ends.push((now, self.log.sandboxes.len() - 1, end));
        let (left, exact) = match how {
            Deletion::Usual => (self.grace(), None),
            // Kubelet raises a grace period under 2 s to 2 s.
            Deletion::Within(grace) => (secs(grace), None),
            Deletion::Kill => (Duration::ZERO, Some(Duration::ZERO)),
        };
        self.worker = Worker::StopsAll(end);
        self.stops.clear();
        for who in 0..self.records.len() {
            if self.runs(who) {
                let gap = self.case.gaps.get(who).copied().unwrap_or_default();
                self.stops.push(Stop {
                    who,
                    id: self.records[who].id.unwrap(),
                    left,
                    exact,
                    stage: Stage::Waits(now.after(ms(gap))),
                });
            }
        }
    }

    fn stop_next(&mut self) {
        let Some(who) = self.to_stop.pop_front() else {
            return;
        };
        let record = &mut self.records[who];
        (record.unhealthy, record.changed) = (false, false);
        if record.state == State::Running {
            self.stop_one(who);
        }
    }

    /// Stops one container while the pod goes on.
    fn stop_one(&mut self, who: usize) {
        let id = self.records[who].id.unwrap();
        let left = match self.restarts_all {
            true => Duration::ZERO,
            false => self.grace(),
        };
        self.stops.push(Stop {
            who,
            id,
            left,
            exact: None,
            stage: Stage::Waits(self.world.now()),
        });
        self.worker = Worker::Stops;
    }

    fn sandbox_over(&mut self, end: End) {
        let is_next = end == End::SandboxDied && !self.to_start.is_empty();
        self.world.call(Call::Delete("pause"));
        if !is_next || self.deleted.is_some() {
            self.worker = Worker::Done;
            return self.world.did("the pod is over for kubelet".to_owned());
        }
        // Gives the shim of the dead sandbox time to finish its work.
        let mut limit = 1_000;
        while self.world.is_anything_alive() && limit > 0 {
            limit -= 1;
            let next = self.world.now().after(ms(10));
            while self.world.now() < next {
                self.world.advance(next);
            }
        }
        self.hear();
        self.world.change_sandbox();
        for who in std::mem::take(&mut self.to_start) {
            self.records[who].state = State::Nothing;
        }
        for record in &mut self.records {
            (record.unhealthy, record.changed) = (false, false);
        }
        self.open_sandbox();
    }

    fn open_sandbox(&mut self) {
        self.log.sandboxes.push(self.world.seen().len());
        (self.sandbox_is_dead, self.sandbox_is_known_dead) = (false, false);
        self.world.did("a sandbox".to_owned());
        self.world.behave("pause", Script::default());
        self.world.open(REQUEST_TIMEOUT);
        self.worker = Worker::StartsSandbox;
    }

    /// Chooses the containers for the next sandbox. The choice depends on the exits that kubelet
    /// knows of.
    fn choose_for_next_sandbox(&mut self) {
        self.to_start.clear();
        let was_anything = self.records.iter().any(|record| record.id.is_some());
        if self.case.policy == RestartPolicy::Never && was_anything {
            return;
        }
        for (who, record) in self.records.iter().enumerate() {
            match record.state {
                State::Exited(0)
                    if self.case.policy == RestartPolicy::OnFailure
                        && !self.case.members[who].part.is_native() =>
                {
                    let name = self.case.members[who].name;
                    self.log.left_out.push((self.world.now(), name, 0));
                }
                _ => self.to_start.push_back(who),
            }
        }
        let is_regular = |who: &usize| !self.case.members[*who].part.is_native();
        if !self.to_start.iter().any(is_regular) {
            self.to_start.clear();
        }
    }
}

impl Kubelet<'_> {
    /// Begins a restart of all containers if a container has exited with `RESTARTS_ALL`. Kubelet
    /// stops the other containers one after another, without preStop handlers and with two seconds
    /// each. Then it creates all containers again in order (Kubernetes 1.37, `ContainersToReset`).
    fn begins_to_restart_all(&mut self) -> bool {
        let triggers = |(record, member): (&Record, &Member)| {
            member.restarts_all && record.state == State::Exited(u32::from(RESTARTS_ALL))
        };
        let mut members = self.records.iter().zip(&self.case.members);
        if !members.any(triggers) {
            return false;
        }
        self.world.did("kubelet restarts all".to_owned());
        self.restarts_all = true;
        let running = (0..self.records.len()).filter(|who| self.runs(*who));
        let (natives, others): (Vec<_>, Vec<_>) =
            running.partition(|who| self.case.members[*who].part.is_native());
        self.to_start.clear();
        self.to_stop = others.into_iter().chain(natives).collect();
        true
    }

    fn all_are_stopped(&mut self) {
        self.restarts_all = false;
        if self.deleted.is_some() || self.sandbox_is_dead {
            return;
        }
        for record in &mut self.records {
            record.state = State::Nothing;
            (record.unhealthy, record.changed) = (false, false);
        }
        // The log counts the restarted pod as another sandbox.
        self.log.restarted.push(self.log.sandboxes.len());
        self.log.sandboxes.push(self.world.seen().len());
        self.looks_at = self.world.now();
    }

    fn sync(&mut self) {
        if self.begins_to_restart_all() {
            return;
        }
        let policy = self.case.policy;
        let members = &self.case.members;
        let mut natives_done = true;
        for (who, member) in members.iter().enumerate() {
            let (record, part) = (&self.records[who], member.part);
            if record.state == State::Running && (record.unhealthy || record.changed) {
                self.to_stop.push_back(who);
                let is_restarted =
                    record.changed || policy != RestartPolicy::Never || part == Part::NativeSidecar;
                if is_restarted {
                    self.to_start.push_back(who);
                }
                continue;
            }
            if !natives_done {
                continue;
            }
            let due = match (part, record.state) {
                (_, State::Running) => {
                    natives_done = part != Part::NativeInit;
                    false
                }
                (Part::NativeSidecar, _) => true,
                (Part::NativeInit, State::Exited(0)) => false,
                (Part::NativeInit, State::Exited(_)) if policy == RestartPolicy::Never => {
                    self.to_stop.clear();
                    self.to_start.clear();
                    return self.stop_all(End::Over, Deletion::Usual);
                }
                (Part::NativeInit, _) => {
                    natives_done = false;
                    true
                }
                (_, State::Nothing) => true,
                (_, State::Exited(code)) => match policy {
                    RestartPolicy::Always => true,
                    RestartPolicy::OnFailure => code != 0,
                    RestartPolicy::Never => record.again > 0 && code != 0,
                },
            };
            if due {
                self.to_start.push_back(who);
            }
        }
        let is_regular = |who: usize| !members[who].part.is_native();
        let is_kept =
            |who: usize| self.records[who].state == State::Running || self.to_start.contains(&who);
        if natives_done && !(0..members.len()).any(|who| is_regular(who) && is_kept(who)) {
            self.to_stop.clear();
            self.to_start.clear();
            return self.stop_all(End::Over, Deletion::Usual);
        }
        // Kubelet creates a container again only when its back-off is over.
        let now = self.world.now();
        let in_back_off = |record: &Record| {
            matches!(record.state, State::Exited(_)) && record.exited.after(record.back_off) > now
        };
        let records = &self.records;
        self.to_start.retain(|who| !in_back_off(&records[*who]));
    }

    fn start_next(&mut self) {
        let Some(who) = self.to_start.pop_front() else {
            return;
        };
        if self.runs(who) {
            return;
        }
        let pull = self.case.members[who].pull;
        if pull > 0 && self.records[who].creations == 0 {
            self.world
                .did(format!("pull of {}", self.case.members[who].name));
            self.worker = Worker::Pulls(who, self.world.now().after(ms(pull)));
            return;
        }
        self.create(who);
    }

    fn create(&mut self, who: usize) {
        let record = &mut self.records[who];
        if let State::Exited(code) = record.state
            && record.creations > 0
        {
            record.back_off = (record.back_off * 2).clamp(FIRST_BACK_OFF, LONGEST_BACK_OFF);
            if self.case.policy == RestartPolicy::Never && code != 0 {
                record.again = record.again.saturating_sub(1);
            }
        }
        let member = &self.case.members[who];
        let creation = record.creations;
        let id = match creation {
            0 => member.name,
            n => intern(format!("{}#{}", member.name, n + 1)),
        };
        record.creations += 1;
        record.id = Some(id);
        record.state = State::Nothing;
        self.world.did(format!("create {id}"));
        self.world
            .learn(id, &member.annotations(self.case, creation));
        self.world.behave(id, member.script(creation));
        self.worker = Worker::Starts(who, self.world.now());
        self.world.call(Call::Run(id, Some(REQUEST_TIMEOUT)));
    }
}
