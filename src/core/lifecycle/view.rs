//! The pod as a person sees it: the state of containers, what they wait for, and how long they wait
//! at most.
//!
//! This module only reads the pod, and decides nothing. It does not show past events: the driver
//! records them.

use crate::plan::{ContainerKind, DeferTurn, Origin, Role, StartMode};

use super::action::{Cause, ContainerId, ProbeKind, Step};
use super::container::Container;
use super::gate::Missing;
use super::kept::KeptAlive;
use super::remedy::{Lateness, Remedy};
use super::role_policy::{ReadyWhen, RolePolicy};
use super::state::{Blocked, Running, StateSummary};
use super::termination::Termination;
use super::time::Time;
use super::{Phase, Pod};

/// The current state of a pod.
#[derive(Clone, Debug)]
pub struct View {
    pub phase: Phase,
    pub status: Status,
    /// Sidecars and apps: how many are ready, and how many there are.
    pub ready: (usize, usize),
    /// The stages in start order.
    pub stages: Vec<StageView>,
    pub termination: Option<TerminationView>,
    /// Set while all known apps are done but the run is not complete, because more apps may be
    /// created.
    pub lateness: Option<Lateness>,
    /// The containers that keep the pod alive after its run.
    pub kept: Option<KeptAlive>,
    /// The containers in the order of their creation.
    pub containers: Vec<ContainerView>,
}

/// The status of a pod, in the words of `kubectl get pods`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The init phase is under way. The values are the number of init containers that have
    /// succeeded, and the number of all init containers.
    Init(usize, usize),
    /// An init container has failed.
    InitError,
    /// Sidecars are being started. The values are the number of started sidecars, and the number of
    /// all sidecars.
    Sidecar(usize, usize),
    Running,
    /// The apps have all exited with 0. Also shown when the termination of a complete run is over,
    /// whatever the exit codes.
    Completed,
    /// All apps have exited, at least one of them with a code other than 0, and no termination has
    /// begun.
    Error,
    /// A step of defer containers is under way. The values are the number of defer containers that
    /// are done (exited, skipped or never created), and the number of all defer containers.
    Defer(usize, usize),
    Terminating,
    /// The termination is over. A person requested it with `usher stop`.
    Stopped,
    /// The termination is over; a failure caused it.
    Failed,
    /// The termination is over. The caller requested it, or the sandbox has died.
    Terminated,
}

/// Init containers and sidecars that start side by side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageView {
    pub names: Vec<String>,
    pub is_done: bool,
}

/// A termination under way, or over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TerminationView {
    pub cause: Cause,
    pub since: Time,
    /// The end of the grace period.
    pub deadline: Time,
    pub step: Step,
    pub step_began: Time,
}

/// The current state of a container.
#[derive(Clone, Debug)]
pub struct ContainerView {
    pub id: ContainerId,
    pub name: String,
    pub kind: ContainerKind,
    pub role: Role,
    pub state: StateSummary,
    /// True if the container is ready: a sidecar while it is started, an init container while its
    /// success is withheld, and any other container while its program runs.
    pub is_ready: bool,
    /// The caller's own count of restarts.
    pub restart_count: u32,
    pub wait: Option<Wait>,
}

/// The wait of a container, before its program runs or before it exits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    pub obstacles: Vec<Obstacle>,
    /// Start of the wait, if the core knows it.
    pub since: Option<Time>,
    /// Time by which the wait ends at the latest, and the event that ends it then. `None` if the
    /// wait has no bound.
    pub until: Option<(Time, Then)>,
    /// Annotations that could avoid the wait.
    pub remedies: Vec<Remedy>,
}

/// The event that ends a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    StartFails,
    /// The Start is answered, but the program is not executed yet.
    Held,
    /// The container is ended, and its program is never executed.
    Ended,
    /// The program is restarted in place.
    ExecutedAnew,
    /// The container is stopped because its startup probe has failed too often.
    Stopped,
    /// The stop signal is delivered, and the container has time left.
    StopSignal,
    /// The stop signal is delivered, possibly for the second time; SIGKILL follows two seconds
    /// later at the latest.
    LastSignal,
    Killed,
    /// The defer container's turn comes, and its program is executed.
    ItsTurn,
    /// No time is left for a defer container: its program is never executed.
    LeftOut,
}

/// A condition that keeps a container waiting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// A container earlier in the start order.
    Container {
        name: String,
        role: Role,
        missing: Missing,
    },
    /// The caller's Start call: none has come yet, or the last one has failed.
    Start,
    /// The back-off before the container's restart in place.
    BackOff,
    /// The container's startup probe. It has not succeeded yet, and has failed `failures` times.
    StartupProbe { failures: u32, threshold: u32 },
    /// The exit of the container after its stop signal.
    Exit,
    /// The exit of a defer container that runs in its turn and has got no stop signal.
    Work,
    /// The container's turn to get its stop signal in the termination. `step` is the step under
    /// way. `defer` is the defer container that runs in this step, if any.
    TurnToStop { step: Step, defer: Option<String> },
    /// The turn of a defer container. `step` is the step under way, if the pod terminates. `defer`
    /// is the defer container that runs in this step, if any.
    TurnAtTheEnd {
        step: Option<Step>,
        defer: Option<String>,
    },
    /// The time in which a second stop request may come, usually the termination window. Until this
    /// time is over, the shim does not know if the container's stop request means the end of the
    /// pod.
    TerminationWindow,
}

impl Pod {
    /// The role of a container; [`Role::Guest`] for an unknown container.
    pub fn role_of(&self, id: &ContainerId) -> Role {
        self.known(id)
            .map_or(Role::Guest, |container| container.role)
    }

    /// The reason why a container of this name has its role. [`Origin::Default`] if the pod has no
    /// plan.
    pub fn origin(&self, name: &str) -> Origin {
        let plan = self.plan.as_ref();
        plan.map_or(Origin::Default, |plan| plan.origin(name))
    }

    /// True if a container of this name need not be created.
    pub fn is_optional(&self, name: &str) -> bool {
        let plan = self.plan.as_ref();
        plan.is_some_and(|plan| plan.is_optional(name))
    }

    /// The state of the pod as `usher` shows it.
    pub fn view(&self, now: Time) -> View {
        let mut containers: Vec<_> = self.containers.iter().collect();
        containers.sort_by_key(|(_, container)| container.number);
        let containers = containers
            .into_iter()
            .map(|(id, container)| self.view_of(now, id, container));
        View {
            phase: self.phase(),
            status: self.status(),
            ready: self.readiness(),
            stages: self.stage_views(),
            termination: self.termination.as_ref().map(TerminationView::of),
            lateness: self.lateness(),
            kept: self.kept(),
            containers: containers.collect(),
        }
    }

    fn view_of(&self, now: Time, id: &ContainerId, container: &Container) -> ContainerView {
        ContainerView {
            id: id.clone(),
            name: container.name.clone(),
            kind: container.kind,
            role: container.role,
            state: container.state.summary(),
            is_ready: self.is_ready(container),
            restart_count: container.facts.restart_count,
            wait: self.wait(now, id, container),
        }
    }

    fn is_ready(&self, container: &Container) -> bool {
        match container.role_policy().ready_when {
            Some(ReadyWhen::Completed) => container.state.is_withheld(),
            Some(ReadyWhen::Started) => container.state.is_started(),
            None => container.state.is_running(),
        }
    }

    /// The wait of the container: until its program runs, until its startup probe succeeds, or
    /// until it exits. `None` if the container waits for nothing, for example while an app simply
    /// runs.
    fn wait(&self, now: Time, id: &ContainerId, container: &Container) -> Option<Wait> {
        let state = &container.state;
        if state.is_created() {
            return Some(Wait {
                obstacles: vec![Obstacle::Start],
                since: None,
                until: None,
                remedies: Vec::new(),
            });
        }
        if let Some(blocked) = state.as_blocked() {
            return Some(Wait {
                obstacles: self.obstacles(container),
                since: Some(blocked.since),
                until: Some(self.start_answer_bound(container, blocked)),
                remedies: self.remedies(container, &self.awaited_names(container)),
            });
        }
        if let Some(held) = state.as_held() {
            let missing = self.awaited_names(container);
            let is_defer = container.defer_turn().is_some();
            let until = match is_defer {
                true => self.turn_comes(container),
                false => Some((self.hold_ended_at(held, &missing), Then::Ended)),
            };
            let termination = self.termination_for(container).filter(|_| is_defer);
            return Some(Wait {
                obstacles: self.obstacles(container),
                since: Some(termination.map_or(held.since, Termination::since)),
                until,
                remedies: self.remedies(container, &missing),
            });
        }
        if let Some(backing_off) = state.as_backing_off() {
            return Some(Wait {
                obstacles: vec![Obstacle::BackOff],
                since: None,
                until: Some((backing_off.until, Then::ExecutedAnew)),
                remedies: Vec::new(),
            });
        }
        let running = state.as_running()?;
        self.wait_for_its_work(container)
            .or_else(|| self.wait_to_stop(now, id, container))
            .or_else(|| wait_to_be_started(now, running))
    }

    /// The latest time at which a waiting Start call is answered, and the answer that it gets then.
    fn start_answer_bound(&self, container: &Container, blocked: &Blocked) -> (Time, Then) {
        match self.start_mode() {
            StartMode::Block => {
                let ends = self.start_refused_at(blocked, &self.awaited_names(container));
                (ends, Then::StartFails)
            }
            StartMode::Auto | StartMode::Hold => (self.start_answered_by(blocked), Then::Held),
        }
    }

    /// The wait of a defer container that runs in its turn: until its exit, at the latest until its
    /// SIGKILL. `None` for any other container.
    fn wait_for_its_work(&self, container: &Container) -> Option<Wait> {
        let ends = self.ends().filter(|_| self.has_the_turn(container))?;
        let stop = container.state.stop();
        let kill_at = stop
            .kill_at()
            .unwrap_or_else(|| self.own_ends(container, ends).kill);
        Some(Wait {
            obstacles: vec![match stop.is_delivered() {
                true => Obstacle::Exit,
                false => Obstacle::Work,
            }],
            since: container.turn_began(),
            until: Some((kill_at, Then::Killed)),
            remedies: Vec::new(),
        })
    }

    /// The wait of a container that is to stop:
    ///
    /// - for its exit, if the container has got its signal;
    /// - otherwise for its signal, if the caller has sent a stop signal, or if the container's turn
    ///   in a termination is still to come.
    ///
    /// `None` for any other container.
    fn wait_to_stop(&self, now: Time, id: &ContainerId, container: &Container) -> Option<Wait> {
        let asked = container.request.as_ref().filter(|_| container.is_asked());
        let wait = |obstacle| Wait {
            obstacles: vec![obstacle],
            since: asked.map(|request| request.at()),
            until: self.next_stop_signal(now, id, container),
            remedies: Vec::new(),
        };
        if container.state.stop().is_delivered() {
            return Some(wait(Obstacle::Exit));
        }
        // A container waits for its step, and a sidecar also waits for the sidecars that stop
        // before it. These waits are shown even without a stop request of the caller.
        let is_before_its_turn = self.is_to_be_stopped(container)
            && self.termination.as_ref().is_some_and(|termination| {
                let step = self.step_of(container);
                !termination.is_over()
                    && (step > Some(termination.step())
                        || step == Some(Step::Sidecars) && !self.turn_has_come(container))
            });
        if asked.is_none() && !is_before_its_turn {
            return None;
        }
        let obstacle = match &self.termination {
            Some(termination) => Obstacle::TurnToStop {
                step: termination.step(),
                defer: self.name_of_running_defer(),
            },
            None => Obstacle::TerminationWindow,
        };
        Some(wait(obstacle))
    }

    /// The conditions that are still to be met before the program of a container is executed. The
    /// container is held, or its Start call is not answered yet.
    pub(super) fn obstacles(&self, container: &Container) -> Vec<Obstacle> {
        if container.defer_turn().is_some() {
            let step = self.termination_for(container).map(Termination::step);
            let defer = step.and_then(|_| self.name_of_running_defer());
            return vec![Obstacle::TurnAtTheEnd { step, defer }];
        }
        let names = self.awaited_names(container).into_iter();
        let obstacles = names.map(|name| Obstacle::Container {
            role: self.role(&name),
            missing: self.missing_of(&name),
            name,
        });
        obstacles.collect()
    }

    fn name_of_running_defer(&self) -> Option<String> {
        self.running_defer().map(|defer| defer.name.clone())
    }

    fn role(&self, name: &str) -> Role {
        self.plan
            .as_ref()
            .map_or(Role::Guest, |plan| plan.role(name))
    }

    fn stage_views(&self) -> Vec<StageView> {
        let stages = self.plan.iter().flat_map(|plan| plan.stages());
        let views = stages.map(|stage| StageView {
            names: stage.0.clone(),
            is_done: stage
                .0
                .iter()
                .all(|name| self.has_done_its_part(name, u64::MAX)),
        });
        views.collect()
    }

    /// Returns how many sidecars and apps are ready, and how many there are: the column READY of
    /// `usher ps`. A sidecar is ready when it has started, an app when its program runs.
    ///
    /// Counts each name once: listed names, even of containers that were never created, and other
    /// sidecars and apps that exist or that the history records. An optional name counts only if
    /// its container was created. All containers of a pod without a plan count as apps.
    fn readiness(&self) -> (usize, usize) {
        let plan = self.plan.as_ref().filter(|plan| !plan.is_empty());
        let listed = plan.into_iter().flat_map(|plan| {
            let apps = plan.apps().into_iter().flatten();
            plan.sidecars().iter().chain(apps)
        });
        let counts = |policy: RolePolicy| plan.is_none() || policy.is_helper || policy.is_work;
        let created = self.containers.values().filter(|container| {
            container.kind == ContainerKind::Workload && counts(container.role_policy())
        });
        // Containers that the caller has deleted are part of the total number.
        let deleted = self.history.all().into_iter().flatten();
        let deleted = deleted.map(|(name, _)| name);
        let mut names: Vec<&str> = created.map(|container| container.name.as_str()).collect();
        names.extend(deleted.filter(|name| counts(RolePolicy::of(self.role(name)))));
        names.extend(listed.map(String::as_str));
        names.sort_unstable();
        names.dedup();
        let is_ready = |name: &&&str| {
            self.current(name)
                .is_some_and(|container| self.is_ready(container))
        };
        (names.iter().filter(is_ready).count(), names.len())
    }

    fn status(&self) -> Status {
        match &self.termination {
            None => self.status_of_the_living(),
            Some(termination) => match (termination.step(), termination.cause()) {
                (Step::PreExit, _) => self.defers_done(DeferTurn::PreExit),
                (Step::PostExit, _) => self.defers_done(DeferTurn::PostExit),
                (Step::Over, Cause::Completed) => Status::Completed,
                (
                    Step::Over,
                    Cause::EssentialFailed { .. }
                    | Cause::InitFailed { .. }
                    | Cause::SidecarFailed { .. },
                ) => Status::Failed,
                (Step::Over, Cause::Stopped) => Status::Stopped,
                (Step::Over, Cause::Inferred | Cause::SandboxDied) => Status::Terminated,
                (Step::Hooks | Step::Apps | Step::Sidecars, _) => Status::Terminating,
            },
        }
    }

    fn status_of_the_living(&self) -> Status {
        let Some(plan) = self.plan.as_ref().filter(|plan| !plan.is_empty()) else {
            return self.status_of_apps();
        };
        let Some(stage) = self.closed_stage().and_then(|at| plan.stages().get(at)) else {
            return self.status_of_apps();
        };
        let is_done = |name: &&String| self.has_done_its_part(name, u64::MAX);
        let open = stage.0.iter().find(|name| !is_done(name));
        let done = |names: &[String]| names.iter().filter(is_done).count();
        match open.map(|name| (RolePolicy::of(plan.role(name)).ready_when, name)) {
            Some((Some(ReadyWhen::Completed), name)) => {
                match self.history.of(name).and_then(|past| past.code) {
                    Some(code) if code != 0 => Status::InitError,
                    _ => Status::Init(done(plan.init()), plan.init().len()),
                }
            }
            _ => Status::Sidecar(done(plan.sidecars()), plan.sidecars().len()),
        }
    }

    /// The pod's status when all init containers and sidecars have done their part. `Completed` or
    /// `Error` if all apps have exited, by their exit codes. `Running` if an app has not exited, or
    /// if no exit of an app is known.
    fn status_of_apps(&self) -> Status {
        let is_app = |name: &str| !self.has_orders() || RolePolicy::of(self.role(name)).is_work;
        let lives = |container: &Container| {
            container.kind == ContainerKind::Workload
                && is_app(&container.name)
                && !container.state.is_exited()
        };
        let pasts = self.history.all().into_iter().flatten();
        let codes: Option<Vec<_>> = pasts
            .filter(|(name, _)| is_app(name))
            .map(|(_, past)| past.code)
            .collect();
        match codes {
            _ if self.containers.values().any(lives) => Status::Running,
            Some(codes) if codes.is_empty() => Status::Running,
            Some(codes) if codes.iter().all(|code| *code == 0) => Status::Completed,
            Some(_) => Status::Error,
            None => Status::Running,
        }
    }

    /// Returns the `Defer` status: the number of done defer containers, and the number of all that
    /// the plan lists, in both steps together. `turn` is the turn of the step under way. A defer
    /// container is done if its turn is earlier than `turn`. It is also done if it has exited or
    /// does not exist, for example because it was never created.
    fn defers_done(&self, turn: DeferTurn) -> Status {
        let Some(plan) = &self.plan else {
            return Status::Terminating;
        };
        let all = plan.pre_exit().iter().chain(plan.post_exit());
        let lives = |name: &String| {
            self.current(name)
                .is_some_and(|container| !container.state.is_exited())
        };
        let names: Vec<_> = all.collect();
        // All defer containers of an earlier turn are done.
        let left = names.iter().filter(|name| {
            lives(name) && RolePolicy::of(plan.role(name)).defer_turn() >= Some(turn)
        });
        Status::Defer(names.len().saturating_sub(left.count()), names.len())
    }
}

/// The wait of a running container for its startup probe. `None` if it has no startup probe, or the
/// probe has succeeded.
fn wait_to_be_started(now: Time, running: &Running) -> Option<Wait> {
    let (kind, probing) = running.watch.probing()?;
    if kind != ProbeKind::Startup {
        return None;
    }
    let (failures, threshold) = (probing.failures, probing.probe.failure_threshold);
    let left = threshold.saturating_sub(failures);
    // If no next attempt is scheduled, an attempt is under way. It began at `now` or before.
    let next = probing.next.unwrap_or(now);
    let others = probing.probe.longest_period();
    let others = others.saturating_mul(left.saturating_sub(1));
    let rest = others.saturating_add(probing.probe.timeout);
    Some(Wait {
        obstacles: vec![Obstacle::StartupProbe {
            failures,
            threshold,
        }],
        since: Some(running.since),
        until: Some((next.after(rest), Then::Stopped)),
        remedies: Vec::new(),
    })
}

impl TerminationView {
    fn of(termination: &Termination) -> TerminationView {
        TerminationView {
            cause: termination.cause().clone(),
            since: termination.since(),
            deadline: termination.deadline(),
            step: termination.step(),
            step_began: termination.step_began(),
        }
    }
}
