//! A node that runs the core alone, in simulated time. The core's actions apply to containers that
//! follow scripts.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use crate::lifecycle::{
    Action, ActionError, BundleFacts, CleanupOutcome, ContainerId, Demands, Exec, HookKind, Kill,
    NewContainer, Obstacle, Pod, Refusal, RequestId, SignalOrder, SignalReason, Time,
};
use crate::plan::{ContainerKind, KubeletFacts, Plan, Signal};
use crate::process::ExitStatus;
use crate::sizing::SizeChange;

use super::{Call, Node, Script, Seen, expand, ms, name_of};

enum Event {
    Created(ContainerId),
    Released(ContainerId),
    Restarted(ContainerId),
    /// The end of a restart that the core canceled.
    RestartCanceled(ContainerId),
    Probed(ContainerId, u64, bool),
    Dies(ContainerId, u64, ExitStatus),
    /// The exit of a process left by a failed restart. The core already knows of the failure.
    LeftoverDies(ContainerId, ExitStatus),
    PostStartOver(ContainerId, u8),
    PostStarted(ContainerId, u64),
    Hooked(ContainerId, HookKind, bool),
    Caller(Call),
}

const POST_START: &str = "post-start";

pub(crate) struct Process {
    pub(crate) script: Script,
    pub(crate) alive: bool,
    pub(crate) executed: Option<Time>,
    /// True if the caller knows of the container's exit.
    pub(crate) reported: bool,
    /// Number of the container's current execution. An exit that was scheduled in an earlier
    /// execution is ignored.
    execution: u64,
    starts: Vec<RequestId>,
    start_when_created: Option<Option<Duration>>,
    /// Ids of the running execs, which end with the container.
    execs: Vec<String>,
}

impl Process {
    /// True if the container's process has exited and the caller does not know of the exit.
    pub fn is_between_executions(&self) -> bool {
        !self.alive && self.executed.is_some() && !self.reported
    }
}

/// The pod, its containers and its caller.
pub struct World {
    pub pod: Pod,
    pub now: Time,
    pub seen: Vec<(Time, Seen)>,
    /// True if the pod is replaced by a copy, made from its snapshot, after every event.
    pub is_copied: bool,
    /// The signals sent, with the reasons for them.
    pub whys: Vec<(ContainerId, Signal, SignalReason)>,
    pub create_timeout: Option<Duration>,
    plan: Plan,
    scripts: BTreeMap<String, Script>,
    kinds: BTreeMap<String, (ContainerKind, KubeletFacts)>,
    demands: BTreeMap<String, Demands>,
    is_ungrouped: bool,
    pub(crate) processes: BTreeMap<ContainerId, Process>,
    /// Number of timers that woke the core without anything to do.
    pub(crate) idle_wakes: usize,
    events: BTreeMap<(Time, u64), Event>,
    counter: u64,
    pub(crate) answered: BTreeMap<RequestId, u32>,
    pub(crate) asked: Vec<RequestId>,
    /// The errors of refused Creates.
    pub refused: Vec<Refusal>,
    /// The created containers, with the times of their creation.
    pub created: Vec<(Time, String)>,
    /// For each answered Start, the time until the answer, and the timeout of the call.
    pub start_waits: Vec<(Duration, Option<Duration>)>,
    start_calls: BTreeMap<RequestId, (Time, Option<Duration>)>,
    /// The periods during which a Start waited for its answer.
    blocked: Vec<(Time, Time)>,
}

impl World {
    /// Creates a pod with these annotations. A key without a prefix gets the prefix `usher/`.
    pub fn new(annotations: &[(&str, &str)]) -> World {
        World::with_plan(Plan::parse(&expand(annotations)).unwrap())
    }

    pub fn with_plan(plan: Plan) -> World {
        World {
            pod: Pod::default(),
            now: Time::default(),
            seen: Vec::new(),
            is_copied: false,
            whys: Vec::new(),
            create_timeout: None,
            plan,
            scripts: BTreeMap::new(),
            kinds: BTreeMap::new(),
            demands: BTreeMap::new(),
            processes: BTreeMap::new(),
            is_ungrouped: false,
            idle_wakes: 0,
            events: BTreeMap::new(),
            counter: 0,
            answered: BTreeMap::new(),
            asked: Vec::new(),
            refused: Vec::new(),
            created: Vec::new(),
            start_waits: Vec::new(),
            start_calls: BTreeMap::new(),
            blocked: Vec::new(),
        }
    }

    /// Total time during which at least one Start waited for its answer.
    pub fn blocked_for(&self) -> Duration {
        let mut blocked = self.blocked.clone();
        blocked.sort();
        let (mut until, mut total) = (Time::default(), Duration::ZERO);
        for (from, to) in blocked {
            total += to.since(from.max(until));
            until = until.max(to);
        }
        total
    }

    pub fn script(mut self, name: &str, script: Script) -> World {
        self.scripts.insert(name.to_owned(), script);
        self
    }

    /// Sets the kernel settings requested for a container.
    pub fn demands(mut self, name: &str, demands: Demands) -> World {
        self.demands.insert(name.to_owned(), demands);
        self
    }

    /// Creates the containers without the annotation that groups them. On a node, each container
    /// would then be a pod of its own. Here all of them are still in `pod`.
    pub fn ungrouped(mut self) -> World {
        self.is_ungrouped = true;
        self
    }

    /// Sets the content of kubelet's annotations on a container.
    pub fn facts(mut self, name: &str, facts: KubeletFacts) -> World {
        self.kinds
            .insert(name.to_owned(), (ContainerKind::Workload, facts));
        self
    }

    /// Adds a running sandbox container, as the CRI does.
    pub fn with_sandbox(mut self) -> World {
        self.open();
        self
    }

    /// Creates and starts the sandbox container.
    pub fn open(&mut self) {
        self.kinds.insert(
            "pause".to_owned(),
            (ContainerKind::Sandbox, KubeletFacts::default()),
        );
        self.call(Call::Run("pause", None));
    }

    /// Sets the annotations for containers that are created from now on.
    pub fn replan(&mut self, annotations: &[(&str, &str)]) {
        self.plan = Plan::parse(&expand(annotations)).unwrap();
    }

    /// Makes a call, and carries out all its effects that take no time.
    pub fn call(&mut self, call: Call) {
        self.perform(call);
        self.drain();
    }

    /// Makes a call after `wait`.
    pub fn call_in(&mut self, wait: Duration, call: Call) {
        self.schedule(wait, Event::Caller(call));
    }

    /// Makes all events happen that are due within `limit`, and advances the clock by `limit`.
    pub fn run_for(&mut self, limit: Duration) {
        let end = self.now.after(limit);
        while self.step(end) {}
        self.now = end;
    }

    /// The time of the next event, if the caller does nothing.
    pub fn next_at(&self) -> Option<Time> {
        let event = self.events.keys().next().map(|(at, _)| *at);
        let next = event.into_iter().chain(self.pod.poll_timeout()).min();
        next.map(|at| at.max(self.now))
    }

    /// Makes the next event happen. Returns false if no event is due until `end`.
    pub fn step(&mut self, end: Time) -> bool {
        let event = self.events.keys().next().copied();
        let timer = self.pod.poll_timeout();
        let at = match (event, timer) {
            (Some((at, _)), Some(timer)) => at.min(timer),
            (Some((at, _)), None) => at,
            (None, Some(timer)) => timer,
            (None, None) => return false,
        };
        if at > end {
            return false;
        }
        self.now = self.now.max(at);
        let is_event =
            event.filter(|(at, _)| *at <= self.now && timer.is_none_or(|timer| *at <= timer));
        match is_event {
            Some(key) => {
                let event = self.events.remove(&key).unwrap();
                self.happen(event);
            }
            None => {
                self.pod.handle_timeout(self.now);
                let next = self.pod.next_timer();
                assert!(
                    next.is_none_or(|(at, _)| at > self.now),
                    "a timer that has fired is still there: {next:?} at {}",
                    self.now
                );
            }
        }
        let had_to_do = self.drain();
        self.idle_wakes += usize::from(is_event.is_none() && !had_to_do);
        true
    }

    fn process(&self, id: &str) -> Option<&Process> {
        self.processes.get(&ContainerId::from(id))
    }

    /// Adds and starts an exec.
    pub fn exec(&mut self, name: &str, exec: &Exec<'_>) -> Result<(), Refusal> {
        let answer = self.begin_exec(&ContainerId::from(name), exec);
        self.drain();
        answer
    }

    fn begin_exec(&mut self, id: &ContainerId, exec: &Exec<'_>) -> Result<(), Refusal> {
        self.pod.handle_exec(self.now, id, exec)?;
        self.pod.handle_exec_start(id, exec.id)?;
        if !self.pod.handle_exec_started(id, exec.id) {
            self.pod.handle_exec_over(self.now, id, exec.id, None);
            return Ok(());
        }
        if let Some(process) = self.processes.get_mut(id) {
            process.execs.push(exec.id.to_owned());
        }
        Ok(())
    }

    /// Changes the resources of a container.
    pub fn update(&mut self, name: &str, change: SizeChange) {
        let (id, request) = (ContainerId::from(name), RequestId(u64::MAX));
        let updated = self.pod.handle_update(self.now, &id, request, change);
        updated.expect("the container exists");
        self.drain();
    }

    /// Records that an exec has exited with this code; `None` if its process was never executed.
    pub fn exec_over(&mut self, name: &str, exec_id: &str, code: Option<u8>) {
        let status = code.map(ExitStatus::Code);
        self.end_exec(&ContainerId::from(name), exec_id, status);
        self.drain();
    }

    /// Ends an exec. The caller reads its output and deletes it at once.
    fn end_exec(&mut self, id: &ContainerId, exec_id: &str, status: Option<ExitStatus>) {
        if let Some(process) = self.processes.get_mut(id) {
            process.execs.retain(|running| running != exec_id);
        }
        self.pod.handle_exec_over(self.now, id, exec_id, status);
        self.pod.handle_exec_output_read(self.now, id, exec_id);
        // Fails if the container is gone.
        let _ = self.pod.handle_exec_delete(self.now, id, exec_id);
    }

    /// Stops the pod as `usher stop` does.
    pub fn stop(&mut self, grace: Option<Duration>) -> Option<(Vec<String>, Time)> {
        let answer = self.pod.handle_stop(self.now, grace);
        self.drain();
        answer
    }

    /// Releases a container as `usher release` does.
    pub fn release(&mut self, name: &str) -> Result<Vec<Obstacle>, Refusal> {
        let id = ContainerId::from(name);
        let answer = self.pod.handle_release(self.now, &id);
        self.drain();
        answer
    }

    fn request(&mut self) -> RequestId {
        self.counter += 1;
        RequestId(self.counter)
    }

    fn schedule(&mut self, wait: Duration, event: Event) {
        self.counter += 1;
        self.events
            .insert((self.now.after(wait), self.counter), event);
    }

    fn perform(&mut self, call: Call) {
        match call {
            Call::Run(name, call_timeout) => self.create(name, Some(call_timeout)),
            Call::Create(name) => self.create(name, None),
            Call::Start(name, call_timeout) => self.start(name, call_timeout),
            Call::GiveUp(name) => {
                let id = ContainerId::from(name);
                let starts = self.processes.get_mut(&id).map(|process| {
                    process.start_when_created = None;
                    process.starts.clone()
                });
                for request in starts.unwrap_or_default() {
                    if let Some((asked, _)) = self.start_calls.remove(&request) {
                        self.blocked.push((asked, self.now));
                    }
                    // The caller no longer waits for an answer to this Start, so the Start need not
                    // be answered.
                    self.asked.retain(|asked| *asked != request);
                    self.pod.handle_start_abandoned(self.now, &id, request);
                }
            }
            Call::Kill(name, signal, call_timeout) => self.kill(name, signal, false, call_timeout),
            Call::KillLeftovers(name) => self.kill(name, Signal::KILL, true, None),
            Call::PreStopOver(name) => {
                let id = ContainerId::from(name);
                let status = Some(ExitStatus::Code(0));
                self.end_exec(&id, "pre-stop", status);
            }
            Call::PostStart(name, takes, code) => {
                let id = ContainerId::from(name);
                let argv = ["/bin/post-start".to_owned()];
                let exec = Exec {
                    id: POST_START,
                    argv: &argv,
                    has_deadline: false,
                    is_interactive: false,
                };
                let begun = self.begin_exec(&id, &exec);
                match begun {
                    Ok(()) => self.schedule(takes, Event::PostStartOver(id, code)),
                    Err(_) => self.see(Seen::PostStartOver(name.to_owned(), Some(false))),
                }
            }
            Call::Delete(name) => {
                let id = ContainerId::from(name);
                if self
                    .processes
                    .get(&id)
                    .is_some_and(|process| !process.alive && !process.is_between_executions())
                {
                    self.processes.remove(&id);
                    self.pod.handle_removed(self.now, &id);
                }
            }
            Call::Crash(name, code) => self.die(&ContainerId::from(name), ExitStatus::Code(code)),
        }
    }

    fn create(&mut self, name: &'static str, start: Option<Option<Duration>>) {
        let id = ContainerId::from(name);
        let (kind, facts) = self
            .kinds
            .get(name)
            .cloned()
            .unwrap_or((ContainerKind::Workload, KubeletFacts::default()));
        let new = NewContainer {
            name: name_of(name).to_owned(),
            kind,
            facts,
            demands: self.demands.get(name_of(name)).copied().unwrap_or_default(),
            is_ungrouped: self.is_ungrouped,
            bundle: BundleFacts {
                has_own_pid_namespace: true,
                has_poststop_hooks: false,
            },
        };
        match self.pod.handle_create(
            self.now,
            &id,
            new,
            Some(self.plan.clone()),
            self.create_timeout,
        ) {
            Err(refusal) => {
                self.see(Seen::CreateRefused(name.to_owned(), refusal.to_string()));
                self.refused.push(refusal);
            }
            Ok(()) => {
                self.counter += 1;
                let process = Process {
                    script: self.script_for(name),
                    alive: false,
                    executed: None,
                    reported: false,
                    execution: self.counter,
                    starts: Vec::new(),
                    start_when_created: start,
                    execs: Vec::new(),
                };
                self.processes.insert(id.clone(), process);
                self.created.push((self.now, name.to_owned()));
                self.schedule(ms(30), Event::Created(id));
            }
        }
    }

    fn kill(&mut self, name: &str, signal: Signal, all: bool, call_timeout: Option<Duration>) {
        let request = self.request();
        self.asked.push(request);
        let kill = Kill {
            signal,
            all,
            call_timeout,
        };
        self.pod
            .handle_kill(self.now, &ContainerId::from(name), request, kill);
    }

    fn start(&mut self, name: &str, call_timeout: Option<Duration>) {
        let request = self.request();
        let id = ContainerId::from(name);
        self.asked.push(request);
        self.start_calls.insert(request, (self.now, call_timeout));
        if let Some(process) = self.processes.get_mut(&id) {
            process.starts.push(request);
        }
        self.pod.handle_start(self.now, &id, request, call_timeout);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Caller(call) => self.perform(call),
            Event::Created(id) => {
                let Some(process) = self.processes.get_mut(&id) else {
                    return;
                };
                if process.script.cannot_be_created {
                    self.processes.remove(&id);
                    return self.pod.handle_removed(self.now, &id);
                }
                process.alive = true;
                let start = process.start_when_created.take();
                self.pod.handle_created(self.now, &id);
                if let Some(call_timeout) = start {
                    self.start(id.as_str(), call_timeout);
                }
            }
            Event::Released(id) => self.released(&id),
            Event::Restarted(id) => self.restarted(&id),
            Event::RestartCanceled(id) => {
                let outcome = Err(ActionError::reported("restart canceled"));
                self.pod.handle_restarted(self.now, &id, outcome);
            }
            Event::Probed(id, execution, ready) => {
                let cost = self.script_of(&id).probe_costs;
                self.see(Seen::Probed(id.to_string(), cost));
                let outcome = ready
                    .then_some(())
                    .ok_or_else(|| ActionError::reported("it is not ready"));
                self.pod
                    .handle_probed(self.now, &id, execution, outcome, cost);
            }
            Event::PostStartOver(id, code) => {
                self.post_start_is_over(&id, ExitStatus::Code(code));
            }
            Event::PostStarted(id, execution) => {
                self.pod
                    .handle_post_started(self.now, &id, execution, Ok(()));
            }
            Event::Hooked(id, kind, in_time) => {
                self.see(Seen::HookEnded(id.to_string(), kind));
                let outcome = match in_time {
                    true => Ok(()),
                    false => Err(ActionError::reported("it took too long")),
                };
                self.pod.handle_hooked(self.now, &id, kind, outcome);
            }
            Event::LeftoverDies(id, status) => {
                self.pod.handle_container_exited(self.now, &id, status)
            }
            Event::Dies(id, execution, status) => {
                if self
                    .processes
                    .get(&id)
                    .is_some_and(|process| process.execution == execution)
                {
                    self.die(&id, status);
                }
            }
        }
    }

    fn released(&mut self, id: &ContainerId) {
        let Some(process) = self.processes.get_mut(id) else {
            return;
        };
        if !process.alive {
            let outcome = Err(ActionError::reported("its init process has ended"));
            return self.pod.handle_released(self.now, id, outcome);
        }
        if process.script.cannot_be_released {
            let outcome = Err(ActionError::reported("it is stuck"));
            return self.pod.handle_released(self.now, id, outcome);
        }
        process.executed = Some(self.now);
        let (execution, exits) = (process.execution, process.script.exits_after);
        self.see(Seen::Executed(id.to_string()));
        self.pod.handle_released(self.now, id, Ok(()));
        if let Some((after, code)) = exits {
            self.schedule(
                after,
                Event::Dies(id.clone(), execution, ExitStatus::Code(code)),
            );
        }
    }

    fn restarted(&mut self, id: &ContainerId) {
        self.counter += 1;
        let execution = self.counter;
        let Some(process) = self.processes.get_mut(id) else {
            return;
        };
        if process.script.restarts_fail > 0 {
            process.script.restarts_fail -= 1;
            let dies_first = process.script.restarts_fail % 2 == 1;
            process.execution = execution;
            let outcome = Err(ActionError::reported("its program could not be executed"));
            self.pod.handle_created_again(id);
            if dies_first {
                // The new process died before its release, for example because memory ran out.
                let killed = ExitStatus::Signal(9);
                self.pod.handle_container_exited(self.now, id, killed);
                return self.pod.handle_restarted(self.now, id, outcome);
            }
            // The new process existed and could not be released, so the driver ends it.
            self.pod.handle_restarted(self.now, id, outcome);
            return self.schedule(
                ms(1),
                Event::LeftoverDies(id.clone(), ExitStatus::Signal(9)),
            );
        }
        process.alive = true;
        process.execution = execution;
        process.executed = Some(self.now);
        let exits = process.script.exits_after;
        let exits = exits.map(|(after, code)| (after, process.script.then_exits.unwrap_or(code)));
        self.see(Seen::Executed(id.to_string()));
        self.pod.handle_restarted(self.now, id, Ok(()));
        if let Some((after, code)) = exits {
            self.schedule(
                after,
                Event::Dies(id.clone(), execution, ExitStatus::Code(code)),
            );
        }
    }

    fn is_well(&self, id: &ContainerId) -> bool {
        self.processes.get(id).is_some_and(|process| {
            let unwell = process.executed.zip(process.script.unwell_after);
            unwell.is_none_or(|(at, after)| at.after(after) > self.now)
        })
    }

    pub fn script_for(&self, id: &str) -> Script {
        let script = self
            .scripts
            .get(id)
            .or_else(|| self.scripts.get(name_of(id)));
        script.cloned().unwrap_or_default()
    }

    fn script_of(&self, id: &ContainerId) -> Script {
        let process = self.processes.get(id);
        process
            .map(|process| process.script.clone())
            .unwrap_or_default()
    }

    fn die(&mut self, id: &ContainerId, status: ExitStatus) {
        let Some(process) = self.processes.get_mut(id) else {
            return;
        };
        if std::mem::replace(&mut process.alive, false) {
            self.see(Seen::Died(id.to_string(), status));
            self.pod.handle_container_exited(self.now, id, status);
            let killed = ExitStatus::Signal(9);
            self.post_start_is_over(id, killed);
            let process = self.processes.get_mut(id);
            let execs = process.map(|process| std::mem::take(&mut process.execs));
            for exec_id in execs.unwrap_or_default() {
                self.end_exec(id, &exec_id, Some(killed));
            }
        }
    }

    /// Ends a container's postStart handler, unless the handler has ended before.
    fn post_start_is_over(&mut self, id: &ContainerId, status: ExitStatus) {
        let process = self.processes.get(id);
        if process.is_some_and(|process| process.execs.iter().any(|it| it == POST_START)) {
            let has_succeeded = status == ExitStatus::Code(0);
            self.see(Seen::PostStartOver(id.to_string(), Some(has_succeeded)));
            self.end_exec(id, POST_START, Some(status));
        }
    }

    fn see(&mut self, seen: Seen) {
        self.seen.push((self.now, seen));
    }

    fn answer(&mut self, request: RequestId) {
        *self.answered.entry(request).or_default() += 1;
        if let Some((asked, call_timeout)) = self.start_calls.remove(&request) {
            self.start_waits.push((self.now.since(asked), call_timeout));
            self.blocked.push((asked, self.now));
        }
    }

    /// Carries out all actions of the core. Returns true if there were any.
    pub fn drain(&mut self) -> bool {
        let mut had_to_do = false;
        while let Some(action) = self.pod.poll_action() {
            self.carry_out(action);
            had_to_do = true;
        }
        if self.is_copied {
            self.replace_by_copy();
        }
        // The core must already have returned every action that is due now. A further
        // `handle_timeout` must not lead to another action.
        if self.pod.poll_timeout().is_some_and(|at| at <= self.now) {
            return had_to_do;
        }
        let mut settled = self.pod.clone();
        settled.handle_timeout(self.now);
        let left = settled.poll_action();
        assert!(left.is_none(), "{left:?} was forgotten: {:#?}", self.seen);
        had_to_do
    }

    fn replace_by_copy(&mut self) {
        let written = self.pod.to_snapshot().expect("all actions are carried out");
        let copy = Pod::from_snapshot(&written).expect("it was just written");
        let hash = |pod: &Pod| {
            let mut hasher = DefaultHasher::new();
            pod.hash(&mut hasher);
            hasher.finish()
        };
        assert_eq!(hash(&copy), hash(&self.pod), "the copy differs: {written}");
        self.pod = copy;
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Release { id } => {
                self.see(Seen::Released(id.to_string()));
                let takes = self.script_of(&id).release_takes;
                self.schedule(takes, Event::Released(id));
            }
            Action::AnswerStart {
                id,
                request,
                answer,
            } => {
                self.answer(request);
                self.see(Seen::StartAnswered(id.to_string(), answer));
            }
            Action::AnswerKill { request, answer } => {
                self.answer(request);
                self.see(Seen::KillAnswered(request, answer));
            }
            Action::Signal { id, order } => {
                let SignalOrder {
                    signal,
                    request,
                    why,
                    ..
                } = order;
                self.whys.push((id.clone(), signal, why));
                self.see(Seen::Signalled(id.to_string(), signal));
                if let Some(request) = request {
                    self.answer(request);
                }
                self.take_signal(&id, signal);
            }
            Action::CancelWork { .. } | Action::RefuseUpdate { .. } => {}
            Action::Update { id, .. } => self.pod.handle_updated(self.now, &id, true),
            Action::KillRest { id, status } | Action::ExitUnrestored { id, status } => {
                self.pod.handle_container_exited(self.now, &id, status)
            }
            Action::Restart { id, .. } => {
                self.see(Seen::Restarting(id.to_string()));
                let takes = self.script_of(&id).restart_takes;
                self.schedule(takes, Event::Restarted(id));
            }
            Action::PostStart { id, execution } => {
                self.see(Seen::PostStarted(id.to_string()));
                self.schedule(ms(1), Event::PostStarted(id, execution));
            }
            Action::CancelRestart { id } => {
                let is_its =
                    |event: &Event| matches!(event, Event::Restarted(other) if *other == id);
                let before = self.events.len();
                self.events.retain(|_, event| !is_its(event));
                // If the restart is already over, no event was removed, and there is nothing to
                // cancel.
                if self.events.len() < before {
                    self.schedule(ms(5), Event::RestartCanceled(id));
                }
            }
            Action::Probe { id, execution } => {
                let ready = self.is_ready(id.as_str()) && self.is_well(&id);
                let takes = self.script_of(&id).probe_takes;
                let limit = self.pod.probe(self.now, &id).map(|probe| probe.timeout);
                let limit = limit.unwrap_or_default();
                let ready = ready && takes <= limit;
                self.schedule(takes.min(limit), Event::Probed(id, execution, ready));
            }
            Action::EndOutput { id, .. } => self.pod.handle_output_read(self.now, &id),
            Action::PublishExit { id, code } => {
                if let Some(process) = self.processes.get_mut(&id) {
                    assert!(!process.reported, "{id} exits twice: {:#?}", self.seen);
                    process.reported = true;
                }
                self.see(Seen::ExitReported(id.to_string(), code));
            }
            Action::WriteMessage {
                id,
                message,
                last_words,
            } => {
                if last_words {
                    self.pod.handle_last_words_written(self.now, &id);
                }
                self.see(Seen::MessageWritten(id.to_string(), message));
            }
            Action::CleanUp { id } => {
                let done = CleanupOutcome::Done;
                self.pod.handle_cleaned_up(self.now, &id, done);
            }
            Action::PublishExecExit { .. } => {}
            Action::KillParked { .. } | Action::Delete { .. } => {
                unreachable!("containers are removed at once")
            }
            Action::Hook {
                id, kind, limit, ..
            } => {
                self.see(Seen::HookBegan(id.to_string(), kind));
                let takes = self.script_of(&id).hook_takes;
                self.schedule(takes.min(limit), Event::Hooked(id, kind, takes <= limit));
            }
            Action::Report(report) => self.see(Seen::Reported(report)),
        }
    }

    fn take_signal(&mut self, id: &ContainerId, signal: Signal) {
        let Some(process) = self.processes.get(id).filter(|process| process.alive) else {
            return;
        };
        let execution = process.execution;
        let dies_in = match (signal, process.executed) {
            (Signal::KILL, _) if process.script.survives_sigkill => None,
            (Signal::KILL, _) => Some((ms(1), ExitStatus::Signal(9))),
            // The container's program does not run yet. A signal makes the OCI runtime's own init
            // process exit with an error.
            (_, None) => Some((ms(1), ExitStatus::Code(2))),
            (signal, Some(_)) if process.script.heeds.is_some_and(|own| own != signal) => None,
            (_, Some(_)) => process
                .script
                .stops_after
                .map(|after| (after, ExitStatus::Code(process.script.stop_code))),
        };
        if let Some((wait, status)) = dies_in {
            self.schedule(wait, Event::Dies(id.clone(), execution, status));
        }
    }
}

impl Node for World {
    fn now(&self) -> Time {
        self.now
    }

    fn advance(&mut self, end: Time) {
        match self.next_at().filter(|next| *next <= end) {
            Some(next) => drop(self.step(next)),
            None => self.now = end,
        }
    }

    fn seen(&self) -> &[(Time, Seen)] {
        &self.seen
    }

    fn did(&mut self, what: String) {
        self.see(Seen::Did(what));
    }

    fn call(&mut self, call: Call) {
        World::call(self, call);
    }

    fn call_in(&mut self, wait: Duration, call: Call) {
        World::call_in(self, wait, call);
    }

    fn kill(&mut self, id: &'static str, signal: Signal, call_timeout: Duration) -> RequestId {
        World::call(self, Call::Kill(id, signal, Some(call_timeout)));
        self.asked.last().copied().unwrap_or(RequestId(0))
    }

    fn is_answered(&self, request: RequestId) -> bool {
        self.answered.contains_key(&request)
    }

    fn exec(&mut self, id: &'static str, exec: &Exec<'_>) -> bool {
        World::exec(self, id, exec).is_ok()
    }

    fn learn(&mut self, id: &str, annotations: &BTreeMap<String, String>) {
        let facts = KubeletFacts::read(annotations);
        self.kinds
            .insert(id.to_owned(), (ContainerKind::Workload, facts));
    }

    fn behave(&mut self, name: &str, script: Script) {
        self.scripts.insert(name.to_owned(), script);
    }

    fn open(&mut self, call_timeout: Duration) {
        self.create_timeout = Some(call_timeout);
        World::open(self);
    }

    fn change_sandbox(&mut self) {
        self.pod = Pod::default();
        self.processes.clear();
        self.events.clear();
    }

    fn is_known(&self, id: &str) -> bool {
        self.processes.contains_key(&ContainerId::from(id))
    }

    fn is_alive(&self, id: &str) -> bool {
        self.process(id).is_some_and(|process| process.alive)
    }

    fn is_executing(&self, id: &str) -> bool {
        let is_executing = |process: &Process| process.alive && process.executed.is_some();
        self.process(id).is_some_and(is_executing)
    }

    fn is_anything_alive(&self) -> bool {
        self.processes.values().any(|process| process.alive)
    }
}
