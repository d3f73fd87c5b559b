//! The status of the pod for the command `usher`, made from the core's state and from the
//! [record](crate::record) of what has happened.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use protobuf::MessageField;
use protobuf::well_known_types::duration::Duration as DurationMessage;
use protobuf::well_known_types::timestamp::Timestamp;
use tokio::sync::watch;

use crate::events::{message_pid, timestamp};
use crate::pod_meta::PodMeta;
use crate::record::{Event, Past, Record, What};
use usher_api as api;
use usher_core::lifecycle::{
    Cause, ContainerId, KeptAlive, Lateness, Phase, Pod, RolePolicy, Time, View, Wait,
};
use usher_core::plan::{ContainerKind, Signal};

/// Clients that watch the pod. After each change of the pod's record, each client is sent the
/// number of changes.
#[derive(Debug, Default)]
pub(crate) struct Watchers(watch::Sender<u64>);

impl Watchers {
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }

    /// True if the clients were notified of the latest change of the record.
    pub fn are_up_to_date(&self, record: &Record) -> bool {
        *self.0.borrow() == record.changes()
    }

    /// Notifies the clients that the record has changed. Before that, records which stages are done
    /// and whether the pod is ready. Called only after a change of the record.
    pub fn notify(&mut self, core: &Pod, record: &mut Record, now: Time) {
        let changes = record.changes();
        let view = core.view(now);
        let is_ready = view.phase == Phase::Running && view.ready.0 == view.ready.1;
        let stages = view.stages.iter();
        let stages =
            stages.filter_map(|stage| Some((stage.names.first()?.as_str(), stage.is_done)));
        record.progress(now, stages, is_ready);
        self.0.send_replace(changes);
    }
}

/// A point in time, both in the core's time and on the wall clock.
#[derive(Clone, Copy)]
struct Clock {
    core: Time,
    wall: SystemTime,
}

/// The sources from which the status of a pod is made.
pub(crate) struct Status<'a> {
    core: &'a Pod,
    record: &'a Record,
    meta: &'a PodMeta,
    /// Process ids of the containers' running init processes.
    pids: BTreeMap<&'a ContainerId, i32>,
    clock: Clock,
    view: View,
}

impl<'a> Status<'a> {
    /// Creates the status at a point in time, which is passed in the core's time and on the wall
    /// clock.
    pub fn new(
        core: &'a Pod,
        record: &'a Record,
        meta: &'a PodMeta,
        pids: BTreeMap<&'a ContainerId, i32>,
        (now, wall): (Time, SystemTime),
    ) -> Status<'a> {
        Status {
            core,
            record,
            meta,
            pids,
            clock: Clock { core: now, wall },
            view: core.view(now),
        }
    }

    /// Builds the message for the command `usher`, with the pod's events if `events` is true.
    pub fn message(&self, events: bool) -> api::Pod {
        let (clock, view) = (self.clock, &self.view);
        let containers: Vec<_> = self
            .record
            .names()
            .iter()
            .map(|past| self.container(past))
            .collect();
        let restarts = containers.iter().map(|container| container.restarts);
        let events = self.record.events().filter(|_| events);
        let identity = self.meta.identity();
        api::Pod {
            containerd_namespace: self.meta.namespace().to_owned(),
            id: identity.id.clone(),
            name: identity.name.clone(),
            namespace: identity.namespace.clone(),
            uid: identity.uid.clone(),
            shim_pid: std::process::id(),
            status: MessageField::some(view.status.into()),
            phase: api::Phase::from(view.phase).into(),
            ready: number(view.ready.0),
            total: number(view.ready.1),
            restarts: restarts.fold(0, u32::saturating_add),
            created: clock.maybe(self.record.began()),
            became_ready: clock.maybe(self.record.became_ready()),
            now: MessageField::some(timestamp(clock.wall)),
            stages: self.stages(),
            termination: self.termination(),
            containers,
            events: events
                .map(|(name, event)| clock.event(name, event))
                .collect(),
            forgotten_events: self.record.forgotten(),
            late: clock.late(view.lateness.as_ref()),
            kept: clock.kept(view.kept.as_ref()),
            shim_version: usher_api::VERSION.to_owned(),
            ..api::Pod::new()
        }
    }

    fn stages(&self) -> Vec<api::Stage> {
        let stages = self.view.stages.iter().map(|stage| {
            let first = stage.names.first();
            let done = first.and_then(|first| self.record.stage_done(first));
            api::Stage {
                containers: stage.names.clone(),
                done: self.clock.maybe(done),
                ..api::Stage::new()
            }
        });
        stages.collect()
    }

    fn termination(&self) -> MessageField<api::Termination> {
        let (clock, view) = (self.clock, &self.view);
        let Some(termination) = &view.termination else {
            return MessageField::none();
        };
        let over = self.record.steps().iter().map(|(step, took)| api::Step {
            name: api::StepName::from(*step).into(),
            took: MessageField::some(duration(*took)),
            ..api::Step::new()
        });
        let (cause, whose) = api::cause(&termination.cause);
        MessageField::some(api::Termination {
            cause: cause.into(),
            failed: whose.map(|(name, _)| name.to_owned()),
            exit_code: whose.map(|(_, code)| code),
            since: clock.some(termination.since),
            deadline: clock.some(termination.deadline),
            step: api::StepName::from(termination.step).into(),
            step_since: clock.some(termination.step_began),
            over: over.collect(),
            ..api::Termination::new()
        })
    }

    fn container(&self, past: &Past) -> api::Container {
        let (clock, view) = (self.clock, &self.view);
        let live = view.containers.iter().find(|live| live.id == past.id);
        let pid = self.pids.get(&past.id).copied().unwrap_or_default();
        let kills = past.kills.iter().map(|(why, count)| api::Kills {
            why: api::Why::from(*why).into(),
            count: *count,
            ..api::Kills::new()
        });
        let is_workload = past.kind == ContainerKind::Workload;
        let origin = is_workload.then(|| self.core.origin(&past.name));
        let state = live.map_or(api::State::STATE_GONE, |live| live.state.into());
        let has_succeeded = past
            .exit_code
            .is_some_and(|code| RolePolicy::of(past.role).succeeds_with(code));
        api::Container {
            name: past.name.clone(),
            id: past.id.to_string(),
            role: api::role(past.kind, past.role).into(),
            state: state.into(),
            since: clock.maybe(past.since()),
            ready: has_succeeded || live.is_some_and(|live| live.is_ready),
            pid: message_pid(pid),
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
            wait: clock.wait(live.and_then(|live| live.wait.as_ref())),
            role_origin: origin.map(api::RoleOrigin::from).unwrap_or_default().into(),
            optional: origin.is_some() && self.core.is_optional(&past.name),
            failed_probe: clock.failed_probe(past),
            ..api::Container::new()
        }
    }
}

impl Past {
    /// Time of the container's last change of state: its creation, execution, readiness, stop
    /// signal or exit. Never `None`, because the time of the creation is always known.
    fn since(&self) -> Option<Time> {
        [
            Some(self.created),
            self.executed,
            self.became_ready,
            self.stop_delivered,
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

    fn wait(self, wait: Option<&Wait>) -> MessageField<api::Wait> {
        let Some(wait) = wait else {
            return MessageField::none();
        };
        // The status has no end time for a wait that never ends by itself.
        let until = wait
            .until
            .filter(|(until, _)| until.since(self.core) < NEVER);
        MessageField::some(api::Wait {
            obstacles: wait.obstacles.iter().map(api::Obstacle::from).collect(),
            since: self.maybe(wait.since),
            until: self.maybe(until.map(|(until, _)| until)),
            then: until.map(|(_, then)| api::Then::from(then).into()),
            remedies: wait.remedies.iter().map(api::Remedy::from).collect(),
            ..api::Wait::new()
        })
    }

    fn failed_probe(self, past: &Past) -> MessageField<api::FailedProbe> {
        let failed = past.failed_probe.as_ref();
        MessageField(failed.map(|(at, failed)| {
            Box::new(api::FailedProbe {
                probe: api::Probe::from(failed.probe).into(),
                at: self.some(*at),
                reason: failed.reason.to_string(),
                ..api::FailedProbe::new()
            })
        }))
    }

    fn late(self, late: Option<&Lateness>) -> MessageField<api::Late> {
        let late = late.map(|late| api::Late {
            until: self.some(late.until),
            remedy: MessageField::some(api::Remedy::from(&late.remedy)),
            ..api::Late::new()
        });
        MessageField(late.map(Box::new))
    }

    fn kept(self, kept: Option<&KeptAlive>) -> MessageField<api::Kept> {
        let kept = kept.map(|kept| api::Kept {
            since: self.some(kept.since),
            by: kept.by.clone(),
            ..api::Kept::new()
        });
        MessageField(kept.map(Box::new))
    }

    fn event(self, name: Option<&str>, event: &Event) -> api::Event {
        let mut message = api::Event {
            at: self.some(event.at),
            container: name.unwrap_or_default().to_owned(),
            ..api::Event::new()
        };
        message.what = describe(&mut message, &event.what).into();
        message
    }
}

/// Adds the details of the recorded event `what`, such as the signal, to the message `event`.
/// Returns the kind of the event. The caller writes the kind, the time and the container into the
/// message.
fn describe(event: &mut api::Event, what: &What) -> api::What {
    let number = |signal: &Signal| u32::try_from(signal.number()).unwrap_or(0);
    let over_or_failed = |event: &mut api::Event, hook: api::Hook, why: &Option<Box<str>>| {
        event.hook = Some(hook.into());
        event.reason = why.as_deref().map(str::to_owned);
        match why {
            None => api::What::WHAT_HOOK_OVER,
            Some(_) => api::What::WHAT_HOOK_FAILED,
        }
    };
    match what {
        What::Created => api::What::WHAT_CREATED,
        What::Held => api::What::WHAT_HELD,
        What::Executed => api::What::WHAT_EXECUTED,
        What::Ready => api::What::WHAT_READY,
        What::Released => api::What::WHAT_RELEASED,
        What::Asked { signal, is_stop } => {
            event.number = number(signal);
            event.stops = Some(*is_stop);
            api::What::WHAT_ASKED
        }
        What::Signalled { signal, why } => {
            event.number = number(signal);
            event.stops = Some(why.is_stop());
            event.why = Some(api::Why::from(*why).into());
            api::What::WHAT_SIGNALLED
        }
        What::Killed(why) => {
            event.number = number(&Signal::KILL);
            event.why = Some(api::Why::from(*why).into());
            api::What::WHAT_KILLED
        }
        What::Exited(code) => {
            event.number = *code;
            api::What::WHAT_EXITED
        }
        What::Reported(code) => {
            event.number = *code;
            api::What::WHAT_REPORTED
        }
        What::BackingOff(wait) => {
            event.duration = MessageField::some(duration(*wait));
            api::What::WHAT_BACKING_OFF
        }
        What::NotRestarted(why) => {
            event.reason = Some(why.to_string());
            api::What::WHAT_NOT_RESTARTED
        }
        What::OomKilled => api::What::WHAT_OOM_KILLED,
        What::ProbeFailed(failed) => {
            event.probe = Some(api::Probe::from(failed.probe).into());
            event.number = failed.failures;
            event.threshold = Some(failed.threshold);
            event.reason = Some(failed.reason.to_string());
            api::What::WHAT_PROBE_FAILED
        }
        What::HookOver(kind, why) => over_or_failed(event, (*kind).into(), why),
        What::PostStarted(why) => over_or_failed(event, api::Hook::HOOK_POST_START, why),
        What::Skipped => api::What::WHAT_SKIPPED,
        What::Extended(by) => {
            event.duration = MessageField::some(duration(*by));
            api::What::WHAT_EXTENDED
        }
        What::Gone => api::What::WHAT_GONE,
        What::Terminating(because) => {
            tell_cause(event, because);
            api::What::WHAT_TERMINATING
        }
        What::NotTerminating => api::What::WHAT_NOT_TERMINATING,
        What::StartsOver => api::What::WHAT_STARTS_OVER,
        What::StepOver(step) => {
            event.step = Some(api::StepName::from(*step).into());
            api::What::WHAT_STEP_OVER
        }
        What::GraceOver => api::What::WHAT_GRACE_OVER,
        What::SandboxKilled => api::What::WHAT_SANDBOX_KILLED,
    }
}

fn tell_cause(event: &mut api::Event, because: &Cause) {
    let (cause, whose) = api::cause(because);
    event.cause = Some(cause.into());
    if let Some((name, code)) = whose {
        event.failed = Some(name.to_owned());
        event.number = code;
    }
}

/// A wait of at least this length is shown as endless.
const NEVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn duration(duration: Duration) -> DurationMessage {
    DurationMessage::from(duration)
}
