//! What people are told of the pod: the core's view, with what the record remembers.

use std::time::{Duration, SystemTime};

use protobuf::MessageField;
use protobuf::well_known_types::duration::Duration as DurationMessage;
use protobuf::well_known_types::timestamp::Timestamp;

use crate::control::{self, api};
use crate::lifecycle::{Cause, ContainerView, Obstacle, Phase, Time, View, Wait};
use crate::plan::{ContainerKind, DeferTurn, Role};
use crate::record::{Event, Killer, Past, What};
use crate::task::timestamp;

use super::{Actor, CallError, Kind, Reply};

/// A moment by both clocks: the core's, and the one on the wall.
#[derive(Clone, Copy)]
struct Clock {
    core: Time,
    wall: SystemTime,
}

impl Actor {
    /// The pod as it is, if there is one; with what has happened to it, if `events`.
    pub fn status(&self, events: bool, reply: Reply<api::Pod>) {
        let answer = match self.tasks.is_empty() {
            true => Err(CallError::new(Kind::NotFound, "the pod has no container")),
            false => Ok(self.pod(events)),
        };
        let _ = reply.send(answer);
    }

    /// Keeps what is known of a pod whose last container is gone, and forgets it here.
    pub(super) fn keep_record(&mut self) {
        // The first events of a long life are forgotten.
        let has_been = self.record.forgotten() > 0
            || self
                .record
                .events()
                .any(|(_, event)| event.what == What::Created);
        let mut pod = self.pod(true);
        self.record.begin_anew();
        if has_been {
            pod.ended = MessageField::some(timestamp(SystemTime::now()));
            // Not now: somebody is waiting for the answer to a Delete.
            tokio::spawn(async move { control::keep(&pod) });
        }
    }

    fn pod(&self, events: bool) -> api::Pod {
        let clock = Clock {
            core: self.now(),
            wall: SystemTime::now(),
        };
        let view = self.core.view(clock.core);
        let containers: Vec<_> = self
            .record
            .names()
            .iter()
            .map(|past| self.container(clock, &view, past))
            .collect();
        let restarts = containers.iter().map(|container| container.restarts);
        let events = self.record.events().filter(|_| events);
        api::Pod {
            containerd_namespace: self.namespace.clone(),
            id: self.identity.id.clone(),
            name: self.identity.name.clone(),
            namespace: self.identity.namespace.clone(),
            uid: self.identity.uid.clone(),
            shim_pid: std::process::id(),
            status: view.status.clone(),
            phase: match view.phase {
                Phase::Initializing => "Initializing",
                Phase::Running => "Running",
                Phase::Terminating(_) => "Terminating",
                Phase::Terminated => "Terminated",
            }
            .to_owned(),
            ready: number(view.ready.0),
            total: number(view.ready.1),
            restarts: restarts.fold(0, u32::saturating_add),
            created: clock.maybe(self.record.began()),
            became_ready: clock.maybe(self.record.became_ready()),
            now: MessageField::some(timestamp(clock.wall)),
            stages: self.stages(clock, &view),
            termination: self.termination(clock, &view),
            containers,
            events: events
                .map(|(name, event)| clock.event(name, event))
                .collect(),
            forgotten_events: self.record.forgotten(),
            ..api::Pod::new()
        }
    }

    fn stages(&self, clock: Clock, view: &View) -> Vec<api::Stage> {
        let stages = view.stages.iter().enumerate().map(|(index, stage)| {
            let done = self.record.stage_done(index);
            api::Stage {
                containers: stage.names.clone(),
                done: clock.maybe(done),
                ..api::Stage::new()
            }
        });
        stages.collect()
    }

    fn termination(&self, clock: Clock, view: &View) -> MessageField<api::Termination> {
        let Some(termination) = &view.termination else {
            return MessageField::none();
        };
        let over = self.record.steps().iter().map(|(step, took)| api::Step {
            name: step.word().to_owned(),
            took: MessageField::some(duration(*took)),
            ..api::Step::new()
        });
        MessageField::some(api::Termination {
            cause: cause_word(&termination.cause).to_owned(),
            because: termination.cause.to_string(),
            since: clock.some(termination.since),
            deadline: clock.some(termination.deadline),
            step: termination.step.word().to_owned(),
            step_since: clock.some(termination.step_began),
            over: over.collect(),
            ..api::Termination::new()
        })
    }

    fn container(&self, clock: Clock, view: &View, past: &Past) -> api::Container {
        let live = view.containers.iter().find(|live| live.id == past.id);
        let pid = self.tasks.get(&past.id).filter(|task| task.ended.is_none());
        let pid = pid.map_or(0, |task| task.init.pid);
        let kills = past.kills.iter().map(|(killer, count)| {
            let who = match killer {
                Killer::Caller => "caller",
                Killer::Grace => "grace-over",
                Killer::Held => "held",
            };
            (who.to_owned(), *count)
        });
        let has_succeeded = past.role == Role::Init && past.exit_code == Some(0);
        api::Container {
            name: past.name.clone(),
            id: past.id.to_string(),
            role: role_word(past.kind, past.role).to_owned(),
            state: live.map_or("gone", |live| live.state).to_owned(),
            since: clock.maybe(past.since()),
            ready: has_succeeded || live.is_some_and(|live| live.is_ready),
            pid: u32::try_from(pid).unwrap_or_default(),
            created: clock.some(past.created),
            executed: clock.maybe(past.executed),
            became_ready: clock.maybe(past.became_ready),
            exited: clock.maybe(past.exited),
            held: MessageField(past.held.map(|held| Box::new(duration(held)))),
            exit_code: past.exit_code,
            reported_code: past.reported_code,
            restarts: past.restarts.max(live.map_or(0, |live| live.restart_count)),
            oom_kills: past.oom_kills,
            kills: kills.collect(),
            wait: clock.wait(live.and_then(|live| live.wait.as_ref().map(|wait| (live, wait)))),
            ..api::Container::new()
        }
    }
}

impl Past {
    /// Since when it is as it is.
    fn since(&self) -> Option<Time> {
        [
            Some(self.created),
            self.executed,
            self.became_ready,
            self.told,
            self.exited,
        ]
        .into_iter()
        .flatten()
        .max()
    }
}

impl Clock {
    fn at(self, time: Time) -> Timestamp {
        let ahead = time.since(self.core);
        let at = self.wall.checked_add(ahead);
        let at = at.and_then(|at| at.checked_sub(self.core.since(time)));
        timestamp(at.unwrap_or(self.wall))
    }

    fn some(self, time: Time) -> MessageField<Timestamp> {
        MessageField::some(self.at(time))
    }

    fn maybe(self, time: Option<Time>) -> MessageField<Timestamp> {
        MessageField(time.map(|time| Box::new(self.at(time))))
    }

    fn wait(self, wait: Option<(&ContainerView, &Wait)>) -> MessageField<api::Wait> {
        let Some((_, wait)) = wait else {
            return MessageField::none();
        };
        // Who waits for ever need not be told of an end of time.
        let until = wait.until.filter(|until| until.since(self.core) < NEVER);
        MessageField::some(api::Wait {
            obstacles: wait.obstacles.iter().map(obstacle).collect(),
            since: self.maybe(wait.since),
            until: self.maybe(until),
            then: wait.then.to_owned(),
            ..api::Wait::new()
        })
    }

    fn event(self, name: Option<&str>, event: &Event) -> api::Event {
        let signal_of = |signal: crate::plan::Signal| u32::try_from(signal.number()).unwrap_or(0);
        let (what, number, detail) = match &event.what {
            What::Created => ("created", 0, String::new()),
            What::Held => ("held", 0, String::new()),
            What::Executed => ("executed", 0, String::new()),
            What::Ready => ("ready", 0, String::new()),
            What::Released => ("released", 0, String::new()),
            What::Asked(signal) => ("asked", signal_of(*signal), signal.to_string()),
            What::Signalled(signal) => ("signalled", signal_of(*signal), signal.to_string()),
            What::Killed(killer) => {
                let by = match killer {
                    Killer::Caller => "by its caller",
                    Killer::Grace => "the grace period was over",
                    Killer::Held => "its program was not executed",
                };
                ("killed", 9, by.to_owned())
            }
            What::Exited(code) => ("exited", *code, String::new()),
            What::Reported(code) => ("reported", *code, String::new()),
            What::BackingOff(wait) => ("backing-off", 0, format!("{wait:?}")),
            What::OomKilled => ("oom-killed", 0, String::new()),
            What::HookOver(kind, None) => ("hook-over", 0, kind.to_string()),
            What::HookOver(kind, Some(why)) => ("hook-failed", 0, format!("{kind}: {why}")),
            What::Skipped => ("skipped", 0, String::new()),
            What::Extended(by) => ("extended", 0, format!("by {by:?}")),
            What::Gone => ("gone", 0, String::new()),
            What::Terminating(cause) => ("terminating", 0, cause.to_string()),
            What::NotTerminating => ("not-terminating", 0, String::new()),
            What::StepOver(step) => ("step-over", 0, step.to_string()),
            What::GraceOver => ("grace-over", 0, String::new()),
        };
        api::Event {
            at: self.some(event.at),
            container: name.unwrap_or_default().to_owned(),
            what: what.to_owned(),
            number,
            detail,
            ..api::Event::new()
        }
    }
}

/// What is that far away does not come.
const NEVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// What is waited for, as the messages have it.
pub(super) fn obstacle(obstacle: &Obstacle) -> api::Obstacle {
    let (container, role) = match &obstacle.container {
        Some((name, role)) => (name.clone(), role_word(ContainerKind::Workload, *role)),
        None => (String::new(), ""),
    };
    api::Obstacle {
        container,
        role: role.to_owned(),
        missing: obstacle.missing.clone(),
        ..api::Obstacle::new()
    }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn duration(duration: Duration) -> DurationMessage {
    DurationMessage::from(duration)
}

fn role_word(kind: ContainerKind, role: Role) -> &'static str {
    match (kind, role) {
        (ContainerKind::Sandbox, _) => "sandbox",
        (_, Role::Init) => "init",
        (_, Role::NativeInit) => "native-init",
        (_, Role::Sidecar) => "sidecar",
        (_, Role::App) => "app",
        (_, Role::Defer(DeferTurn::PreExit)) => "pre-exit",
        (_, Role::Defer(DeferTurn::PostExit)) => "post-exit",
        (_, Role::Guest) => "guest",
    }
}

fn cause_word(cause: &Cause) -> &'static str {
    match cause {
        Cause::Inferred => "inferred",
        Cause::SandboxDied => "sandbox-died",
        Cause::Completed => "completed",
        Cause::EssentialFailed { .. } => "essential-failed",
        Cause::InitFailed { .. } => "init-failed",
        Cause::Stopped => "stopped",
    }
}
