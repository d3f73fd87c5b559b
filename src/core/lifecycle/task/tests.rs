//! Exploration of all orders in which calls and effects of one container can come, fail and
//! overlap.
//!
//! The model keeps track of what is under way outside of the core, as the shim does. It checks what
//! the OCI runtime and the caller expect of the core.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use crate::lifecycle::{
    Action, ActionError, BundleFacts, Call, CleanupOutcome, ContainerId, Deletion, Demands, Exec,
    Kill, NewContainer, Pod, RequestId, TaskStatus, Time,
};
use crate::plan::{ContainerKind, KubeletFacts, Plan, Signal};
use crate::process::ExitStatus;
use crate::simulator::expand;
use crate::sizing::{Bytes, Limit, SizeChange};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Effect {
    Create,
    Release,
    Restore,
    Restart,
    CleanUp,
    Delete,
    ReadOutput,
    ReadExecOutput,
    StartExec,
    Freeze(bool),
    Checkpoint(bool),
    Update,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Init {
    Absent,
    Parked,
    Running,
    Dead,
    /// The container has exited without ever having had a process.
    Unrestored,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ExecState {
    Absent,
    Added,
    Starting,
    Running,
    Dead,
    Published,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Event {
    /// An effect has ended. The `bool` is true if the effect has succeeded.
    Over(Effect, bool),
    /// The caller of the creation has gone away.
    CreateAbandoned,
    InitDies,
    ExecDies,
    Start,
    Kill(Signal),
    Delete,
    Pause,
    Resume,
    Checkpoint(bool),
    /// An Update to a memory limit of so many bytes.
    Update(u64),
    AddExec,
    StartExec,
    DeleteExec,
    /// A person stops the pod (`usher stop`).
    StopPod,
    /// A person releases the container (`usher release`).
    ReleaseByHand,
    Timer,
}

/// Numbers of calls, failures and deaths that may still happen.
#[derive(Clone, Copy, Debug, Hash)]
struct Limits {
    calls: u8,
    failures: u8,
    deaths: u8,
}

#[derive(Clone)]
struct Fork {
    pod: Pod,
    /// True if the container is created from a checkpoint.
    has_checkpoint: bool,
    now: Time,
    under_way: BTreeSet<Effect>,
    init: Init,
    exec: ExecState,
    is_published: bool,
    is_killed: bool,
    is_frozen: bool,
    /// A Start was answered with success.
    is_started: bool,
    is_removed: bool,
    /// Kills that are neither answered nor delivered.
    kills: BTreeSet<RequestId>,
    /// Updates that are not answered yet: their requests and memory limits.
    updates: BTreeMap<RequestId, u64>,
    /// The memory limit in force.
    memory: Limit<Bytes>,
    left: Limits,
}

fn web() -> ContainerId {
    ContainerId::from("web")
}

impl Fork {
    fn new(annotations: &[(&str, &str)], has_checkpoint: bool, left: Limits) -> Fork {
        let mut pod = Pod::default();
        let new = NewContainer {
            name: "web".to_owned(),
            kind: ContainerKind::Workload,
            facts: KubeletFacts::default(),
            demands: Demands::default(),
            is_ungrouped: false,
            bundle: BundleFacts {
                has_own_pid_namespace: true,
                has_poststop_hooks: false,
            },
        };
        let plan = Plan::parse(&expand(annotations)).unwrap();
        let created = pod.handle_create(Time::default(), &web(), new, Some(plan), None);
        created.unwrap();
        Fork {
            pod,
            has_checkpoint,
            now: Time::default(),
            under_way: BTreeSet::from([Effect::Create]),
            init: Init::Absent,
            exec: ExecState::Absent,
            is_published: false,
            is_killed: false,
            is_frozen: false,
            is_started: false,
            is_removed: false,
            kills: BTreeSet::new(),
            updates: BTreeMap::new(),
            memory: Limit::default(),
            left,
        }
    }

    fn key(&self) -> u64 {
        let mut key = DefaultHasher::new();
        (&self.pod, self.now, &self.under_way, self.init, self.exec).hash(&mut key);
        let flags = (
            self.is_published,
            self.is_killed,
            self.is_frozen,
            self.is_started,
        );
        (flags, self.left).hash(&mut key);
        (&self.kills, &self.updates, self.memory).hash(&mut key);
        key.finish()
    }

    fn is_under_way(&self, effect: Effect) -> bool {
        self.under_way.contains(&effect)
    }

    /// All events that can happen next, except that time passes.
    fn possible(&self) -> Vec<Event> {
        if self.is_removed {
            return Vec::new();
        }
        let mut events: Vec<_> = self
            .under_way
            .iter()
            .map(|it| Event::Over(*it, true))
            .collect();
        if self.left.failures > 0 {
            let can_fail =
                |it: &&Effect| !matches!(it, Effect::ReadOutput | Effect::ReadExecOutput);
            let failures = self.under_way.iter().filter(can_fail);
            events.extend(failures.map(|it| Event::Over(*it, false)));
            if self.is_under_way(Effect::Create) {
                events.push(Event::CreateAbandoned);
            }
        }
        let lives = matches!(self.init, Init::Parked | Init::Running);
        if lives && (self.is_killed || self.left.deaths > 0) {
            events.push(Event::InitDies);
        }
        if self.exec == ExecState::Running && (!lives || self.left.deaths > 0) {
            events.push(Event::ExecDies);
        }
        if self.left.calls > 0 {
            events.extend([
                Event::Start,
                Event::Kill(Signal::TERM),
                Event::Kill(Signal::KILL),
                Event::Delete,
                Event::Pause,
                Event::Resume,
                Event::Checkpoint(true),
                Event::Checkpoint(false),
                Event::Update(1),
                Event::Update(2),
                Event::AddExec,
                Event::StartExec,
                Event::DeleteExec,
                Event::StopPod,
                Event::ReleaseByHand,
            ]);
        }
        events
    }

    fn happen(&mut self, event: Event) {
        let (now, id) = (self.now, web());
        let is_call = !matches!(
            event,
            Event::Over(..)
                | Event::CreateAbandoned
                | Event::InitDies
                | Event::ExecDies
                | Event::Timer
        );
        self.left.calls -= u8::from(is_call);
        match event {
            Event::Over(effect, is_well) => {
                self.under_way.remove(&effect);
                self.left.failures -= u8::from(!is_well);
                self.over(effect, is_well);
            }
            Event::CreateAbandoned => {
                self.left.failures -= 1;
                self.under_way.remove(&Effect::Create);
                if !self.has_checkpoint {
                    self.init = Init::Parked;
                }
                self.pod.handle_create_abandoned(now, &id);
            }
            Event::InitDies => {
                self.left.deaths -= u8::from(!self.is_killed);
                (self.is_killed, self.is_frozen) = (false, false);
                self.init = Init::Dead;
                self.pod
                    .handle_container_exited(now, &id, ExitStatus::Code(1));
            }
            Event::ExecDies => {
                self.left.deaths -= u8::from(self.init != Init::Dead);
                self.exec = ExecState::Dead;
                let status = Some(ExitStatus::Code(0));
                self.pod.handle_exec_over(now, &id, "exec", status);
                self.under_way.insert(Effect::ReadExecOutput);
            }
            Event::Start => self.pod.handle_start(now, &id, RequestId(1), None),
            Event::Kill(signal) => {
                let kill = Kill {
                    signal,
                    all: false,
                    call_timeout: None,
                };
                if self.pod.is_known(&id) {
                    let request = self.next_request();
                    self.kills.insert(request);
                    self.pod.handle_kill(now, &id, request, kill);
                }
            }
            Event::Delete => drop(self.pod.handle_delete(now, &id)),
            Event::Pause => {
                if self.pod.is_known(&id) && self.pod.handle_pause(&id).is_ok() {
                    self.under_way.insert(Effect::Freeze(true));
                }
            }
            Event::Resume => {
                if self.pod.is_known(&id) && self.pod.allows(&id, Call::Resume).is_ok() {
                    self.under_way.insert(Effect::Freeze(false));
                }
            }
            Event::Checkpoint(exits) => {
                if self.pod.is_known(&id) && self.pod.handle_checkpoint(&id, exits).is_ok() {
                    self.under_way.insert(Effect::Checkpoint(exits));
                }
            }
            Event::Update(bytes) => {
                let request = self.next_request();
                let change = SizeChange {
                    memory_limit: Some(Limit::Of(Bytes(bytes))),
                    ..SizeChange::default()
                };
                let accepted = self.pod.handle_update(now, &id, request, change);
                assert_eq!(accepted.is_ok(), self.pod.is_known(&id));
                if accepted.is_ok() {
                    self.updates.insert(request, bytes);
                }
            }
            Event::AddExec => self.add_exec(),
            Event::StartExec => {
                if self.pod.handle_exec_start(&id, "exec").is_ok() {
                    assert_eq!(self.exec, ExecState::Added, "a start of an exec");
                    self.exec = ExecState::Starting;
                    self.under_way.insert(Effect::StartExec);
                }
            }
            Event::DeleteExec => {
                if self.pod.handle_exec_delete(now, &id, "exec").is_ok() {
                    let runs = matches!(self.exec, ExecState::Running | ExecState::Dead);
                    assert!(!runs, "a running exec is deleted");
                    self.exec = ExecState::Absent;
                    self.under_way.remove(&Effect::StartExec);
                }
            }
            Event::StopPod => drop(self.pod.handle_stop(now, None)),
            Event::ReleaseByHand => drop(self.pod.handle_release(now, &id)),
            Event::Timer => {
                self.now = self.pod.poll_timeout().unwrap().max(now);
                self.pod.handle_timeout(self.now);
            }
        }
        self.carry_out();
        self.check_calls();
    }

    /// Checks the task state that the caller reads, and the calls that the core allows.
    fn check_calls(&self) {
        if self.is_removed || !self.pod.is_known(&web()) {
            return;
        }
        match self.pod.task_status(&web()) {
            Some(TaskStatus::Created) => assert!(!self.is_started, "it reads created"),
            Some(TaskStatus::Running) => assert!(self.is_started, "it reads running"),
            Some(TaskStatus::Paused) => assert!(self.is_frozen, "it reads paused"),
            _ => {}
        }
        for call in [Call::Pause, Call::Checkpoint, Call::Pids, Call::KillZero] {
            let is_allowed = self.pod.allows(&web(), call.clone()).is_ok();
            let is_to_be_restored = call == Call::KillZero && self.pod.is_to_be_restored(&web());
            assert!(
                !is_allowed || self.init != Init::Absent || is_to_be_restored,
                "{call:?} is allowed without a process"
            );
        }
    }

    /// Numbers requests in the order of the calls.
    fn next_request(&self) -> RequestId {
        RequestId(200 - u64::from(self.left.calls))
    }

    fn add_exec(&mut self) {
        let exec = Exec {
            id: "exec",
            argv: &[],
            has_deadline: false,
            is_interactive: true,
        };
        if self.pod.is_known(&web()) && self.pod.handle_exec(self.now, &web(), &exec).is_ok() {
            assert_eq!(self.exec, ExecState::Absent, "an exec is added twice");
            self.exec = ExecState::Added;
        }
    }

    fn over(&mut self, effect: Effect, is_well: bool) {
        let (now, id) = (self.now, web());
        let failure = || ActionError::reported("simulated");
        match effect {
            Effect::Create if is_well && self.has_checkpoint => {
                self.pod.handle_created_to_restore(now, &id);
            }
            Effect::Create if is_well => {
                self.init = Init::Parked;
                self.pod.handle_created(now, &id);
            }
            Effect::Create => self.removed(),
            Effect::Release => {
                // A process that has died in the meantime stays dead, even if its release succeeds.
                if is_well && self.init == Init::Parked {
                    self.init = Init::Running;
                }
                let outcome = is_well.then_some(()).ok_or_else(failure);
                self.pod.handle_released(now, &id, outcome);
            }
            Effect::Restore => {
                if is_well {
                    self.init = Init::Running;
                }
                let outcome = is_well.then_some(()).ok_or_else(failure);
                self.pod.handle_restored(now, &id, outcome);
            }
            Effect::Restart => {
                if is_well {
                    self.init = Init::Running;
                    self.pod.handle_created_again(&id);
                }
                let outcome = is_well.then_some(()).ok_or_else(failure);
                self.pod.handle_restarted(now, &id, outcome);
            }
            Effect::CleanUp => {
                let outcome = match is_well {
                    true => CleanupOutcome::Done,
                    false => CleanupOutcome::TimedOut,
                };
                self.pod.handle_cleaned_up(now, &id, outcome);
            }
            // If a creation cannot be undone, the shim forgets the container.
            Effect::Delete if is_well || !self.pod.is_known(&id) => self.removed(),
            Effect::Delete => self.pod.handle_not_deleted(now, &id),
            Effect::ReadOutput => self.pod.handle_output_read(now, &id),
            Effect::ReadExecOutput => self.pod.handle_exec_output_read(now, &id, "exec"),
            Effect::StartExec if is_well && matches!(self.init, Init::Parked | Init::Running) => {
                self.exec = ExecState::Running;
                let is_in_time = self.pod.handle_exec_started(&id, "exec");
                assert!(is_in_time, "the container runs");
            }
            Effect::StartExec => {
                self.exec = ExecState::Published;
                self.pod.handle_exec_over(now, &id, "exec", None);
            }
            Effect::Update => {
                let (_, bytes) = self.updates.pop_first().expect("an update under way");
                if is_well {
                    self.memory = Limit::Of(Bytes(bytes));
                }
                self.pod.handle_updated(now, &id, is_well);
            }
            Effect::Freeze(freezes) => {
                let is_alive = matches!(self.init, Init::Parked | Init::Running);
                if is_well && is_alive {
                    self.is_frozen = freezes;
                }
                match freezes {
                    true => self.pod.handle_paused(now, &id, is_well),
                    false => self.pod.handle_resumed(now, &id, is_well),
                }
            }
            Effect::Checkpoint(exits) => {
                if exits {
                    self.is_killed |= is_well;
                    self.pod.handle_checkpointed(now, &id);
                }
            }
        }
    }

    fn removed(&mut self) {
        self.is_removed = true;
        self.pod.handle_removed(self.now, &web());
    }

    fn carry_out(&mut self) {
        while let Some(action) = self.pod.poll_action() {
            match action {
                Action::Release { .. } => self.release(),
                Action::ExitUnrestored { status, .. } => {
                    assert_eq!(self.init, Init::Absent, "its process exits by itself");
                    self.init = Init::Unrestored;
                    self.pod.handle_container_exited(self.now, &web(), status);
                }
                Action::AnswerStart { answer, .. } => self.is_started |= answer.is_ok(),
                Action::AnswerKill { request, .. } => {
                    assert!(self.kills.remove(&request), "a Kill is answered twice");
                }
                Action::Restart { is_cleaned_up, .. } => {
                    assert_eq!(self.init, Init::Dead, "a restart beside a process");
                    assert!(!self.is_published, "a restart after the exit");
                    assert!(!is_cleaned_up || !self.is_under_way(Effect::CleanUp));
                    self.begin(Effect::Restart);
                }
                Action::CleanUp { .. } => {
                    let has_exited = matches!(self.init, Init::Dead | Init::Unrestored);
                    assert!(has_exited, "a cleanup beside a process");
                    let is_live = matches!(self.exec, ExecState::Starting | ExecState::Running);
                    assert!(!is_live, "a cleanup beside an exec");
                    self.begin(Effect::CleanUp);
                }
                Action::Delete { how, .. } => {
                    let had_process = !matches!(self.init, Init::Absent | Init::Unrestored);
                    let has_ended = self.is_published || !had_process;
                    assert!(
                        how == Deletion::Forced || has_ended,
                        "deleted before its exit"
                    );
                    self.begin(Effect::Delete);
                }
                Action::KillParked { .. } => self.is_killed = true,
                Action::Signal { order, .. } => {
                    assert_ne!(self.init, Init::Absent, "a signal to no process");
                    self.is_killed |= order.signal == Signal::KILL;
                    if let Some(request) = order.request {
                        assert!(self.kills.remove(&request), "a Kill is delivered twice");
                    }
                }
                Action::CancelRestart { .. } => {}
                Action::Update {
                    request,
                    for_next_process,
                    ..
                } => {
                    let first = self.updates.first_key_value();
                    let (first, bytes) = first.expect("an update that is not answered");
                    assert_eq!(request, *first, "updates overtake each other");
                    match for_next_process {
                        true => {
                            self.memory = Limit::Of(Bytes(*bytes));
                            self.updates.pop_first();
                        }
                        false => assert!(self.under_way.insert(Effect::Update), "two updates"),
                    }
                }
                Action::RefuseUpdate { request, .. } => {
                    assert!(self.updates.remove(&request).is_some(), "answered twice");
                }
                Action::EndOutput { .. } => {
                    self.under_way.insert(Effect::ReadOutput);
                }
                Action::PublishExecExit { .. } => {
                    assert_eq!(self.exec, ExecState::Dead, "an exec's exit that is none");
                    self.exec = ExecState::Published;
                }
                Action::PublishExit { .. } => {
                    assert_ne!(self.exec, ExecState::Dead, "before the exit of an exec");
                    assert!(!self.is_published, "published twice");
                    assert!(!self.is_removed, "published when it is gone");
                    self.is_published = true;
                }
                _ => {}
            }
        }
    }

    fn release(&mut self) {
        if !self.pod.is_to_be_restored(&web()) {
            return self.begin(Effect::Release);
        }
        match self.pod.handle_restore_begun(&web()) {
            true => self.begin(Effect::Restore),
            false => {
                let reason = Err(ActionError::RestoreFailedBefore);
                self.pod.handle_released(self.now, &web(), reason);
            }
        }
    }

    /// Begins an effect of the OCI runtime. Checks that the OCI runtime does only one thing to the
    /// container at a time, except that a Delete may begin during a Release.
    fn begin(&mut self, effect: Effect) {
        let others = [
            Effect::Create,
            Effect::Release,
            Effect::Restore,
            Effect::Restart,
            Effect::CleanUp,
            Effect::Delete,
            Effect::Checkpoint(true),
        ];
        let beside = others.into_iter().find(|other| self.is_under_way(*other));
        let is_checkpoint_of_the_dead = beside == Some(Effect::Checkpoint(true));
        let is_forced = effect == Effect::Delete && beside == Some(Effect::Release);
        assert!(
            beside.is_none() || is_forced && !is_checkpoint_of_the_dead,
            "{effect:?} begins beside {beside:?}"
        );
        self.under_way.insert(effect);
    }

    /// Checks a final state, in which nothing more can happen except that time passes.
    fn check_at_rest(&self) {
        assert!(self.kills.is_empty(), "a Kill is not answered");
        if self.is_removed {
            let is_under_way = usize::from(self.is_under_way(Effect::Update));
            assert_eq!(
                self.updates.len(),
                is_under_way,
                "an update is not answered"
            );
            return;
        }
        let id = web();
        assert!(self.updates.is_empty(), "an update is not answered");
        let size = self.pod.known(&id).unwrap().demands.size;
        assert_eq!(
            size.limits.memory, self.memory,
            "the limit in force is unknown"
        );
        let waits = self.pod.poll_timeout().is_some();
        let status = self.pod.task_status(&id);
        if matches!(self.init, Init::Dead | Init::Unrestored) && !waits {
            assert!(self.is_published, "its exit is never published: {status:?}");
        }
        assert!(
            !self.pod.is_deletion_wanted(&id) || waits,
            "its deletion is forgotten"
        );
        assert_eq!(
            self.is_published,
            status == Some(TaskStatus::Stopped),
            "its caller reads {status:?}"
        );
    }
}

/// Explores every order of events, and returns the number of states. Prints the events that led to
/// a panic.
fn explore(annotations: &[(&str, &str)], has_checkpoint: bool, left: Limits) -> usize {
    let mut seen = HashSet::new();
    let mut roads = vec![(Fork::new(annotations, has_checkpoint, left), Vec::new())];
    while let Some((fork, way)) = roads.pop() {
        if !seen.insert(fork.key()) {
            continue;
        }
        let events = fork.possible();
        if events.is_empty() {
            let rested = catch_unwind(AssertUnwindSafe(|| fork.check_at_rest()));
            if let Err(panic) = rested {
                eprintln!("{way:?}");
                resume_unwind(panic);
            }
        }
        let is_soon = |at: Time| at.since(Time::default()) < Duration::from_secs(60);
        let timer = fork.pod.poll_timeout().filter(|at| is_soon(*at));
        let timer = timer.filter(|_| !fork.is_removed).map(|_| Event::Timer);
        for event in events.into_iter().chain(timer) {
            let (mut next, mut way) = (fork.clone(), way.clone());
            way.push(event);
            let happened = catch_unwind(AssertUnwindSafe(|| next.happen(event)));
            if let Err(panic) = happened {
                eprintln!("{way:?}");
                resume_unwind(panic);
            }
            roads.push((next, way));
        }
    }
    seen.len()
}

const LIMITS: Limits = Limits {
    calls: 3,
    failures: 2,
    deaths: 2,
};

#[test]
fn calls_and_effects_of_a_container_overlap_in_any_order() {
    assert!(explore(&[], false, LIMITS) > 1_000);
}

#[test]
fn calls_and_effects_overlap_while_a_container_is_restored() {
    assert!(explore(&[], true, LIMITS) > 1_000);
}

#[test]
fn calls_and_effects_overlap_while_a_container_is_held() {
    let annotations = [("init", "setup"), ("start-mode", "Hold")];
    assert!(explore(&annotations, false, LIMITS) > 1_000);
}

#[test]
fn calls_and_effects_overlap_while_a_sidecar_is_restarted_in_place() {
    let annotations = [("sidecars", "web"), ("restart-policy", "OnFailure")];
    assert!(explore(&annotations, false, LIMITS) > 1_000);
}
