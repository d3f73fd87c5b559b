//! What a person sees of the pod: who is where, what waits for what, and how long it can last.
//!
//! Only looks: nothing in here decides anything. What has happened is not kept here either, but in
//! the driver's record.

use crate::plan::{ContainerKind, DeferTurn, Role};

use super::action::{Cause, ContainerId, Step};
use super::container::{Container, Startup, State};
use super::termination::Termination;
use super::time::Time;
use super::{Phase, Pod};

/// A pod as it is.
#[derive(Clone, Debug)]
pub struct View {
    pub phase: Phase,
    /// In a few words, as `kubectl get pods` has it: `Init:1/2`, `Sidecar:0/1`, `Running`,
    /// `Defer:1/4`, `Terminating`, `Completed`.
    pub status: String,
    /// Of the sidecars and apps: how many are ready, and how many there are.
    pub ready: (usize, usize),
    /// In the order in which they start.
    pub stages: Vec<StageView>,
    pub termination: Option<TerminationView>,
    /// In the order of their creation.
    pub containers: Vec<ContainerView>,
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
    /// When the grace period is over.
    pub deadline: Time,
    pub step: Step,
    pub step_began: Time,
}

/// A container as it is.
#[derive(Clone, Debug)]
pub struct ContainerView {
    pub id: ContainerId,
    pub name: String,
    pub kind: ContainerKind,
    pub role: Role,
    /// As the OCI runtime specification has it where it has one.
    pub state: &'static str,
    /// It is started, or has done its part.
    pub is_ready: bool,
    /// The caller's own count of its restarts.
    pub restart_count: u32,
    pub wait: Option<Wait>,
}

/// What a container waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    pub obstacles: Vec<Obstacle>,
    /// Where the core knows it.
    pub since: Option<Time>,
    /// When it is over at the latest; none where nothing bounds it.
    pub until: Option<Time>,
    /// What happens then.
    pub then: &'static str,
}

/// One thing that is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// A container and its role; none where it is something else.
    pub container: Option<(String, Role)>,
    /// What is still missing.
    pub missing: String,
}

impl Obstacle {
    fn other(missing: impl Into<String>) -> Obstacle {
        Obstacle {
            container: None,
            missing: missing.into(),
        }
    }
}

impl Pod {
    /// What a container is to its pod.
    pub fn role_of(&self, id: &ContainerId) -> Role {
        self.containers
            .get(id)
            .map_or(Role::Guest, |container| container.role)
    }

    /// The pod as it is at `now`.
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
            containers: containers.collect(),
        }
    }

    fn view_of(&self, now: Time, id: &ContainerId, container: &Container) -> ContainerView {
        let told = container.stopping.signalled || container.stopping.killed;
        let state = match container.state {
            State::Running(_) if told || container.ends_as.is_some() => "stopping",
            _ if container.is_parked() && container.ends_as.is_some() => "stopping",
            _ => container.state_word(),
        };
        ContainerView {
            id: id.clone(),
            name: container.name.clone(),
            kind: container.kind,
            role: container.role,
            state,
            is_ready: self.is_ready(container),
            restart_count: container.facts.restart_count,
            wait: self.wait(now, container),
        }
    }

    fn is_ready(&self, container: &Container) -> bool {
        match container.role {
            Role::Init => matches!(container.state, State::Withheld { .. }),
            Role::Sidecar => container.is_started(),
            _ => matches!(container.state, State::Running(_)),
        }
    }

    /// What the container waits for, before it runs and when it is to stop.
    fn wait(&self, now: Time, container: &Container) -> Option<Wait> {
        match &container.state {
            State::Created => Some(Wait {
                obstacles: vec![Obstacle::other("the caller's Start")],
                since: None,
                until: None,
                then: "",
            }),
            State::Blocked(blocked) => Some(Wait {
                obstacles: self.obstacles(container),
                since: Some(blocked.since),
                until: blocked.deadline,
                then: "its Start fails, or is answered with the program held",
            }),
            State::Held(held) => {
                let until = held.since.after(self.startup_timeout());
                let is_bounded = !matches!(container.role, Role::Defer(_));
                Some(Wait {
                    obstacles: self.obstacles(container),
                    since: Some(held.since),
                    until: is_bounded.then_some(until),
                    then: match is_bounded {
                        true => "it is ended with exit code 1 (usher/startup-timeout)",
                        false => "",
                    },
                })
            }
            State::BackingOff { until, .. } => Some(Wait {
                obstacles: vec![Obstacle::other("the back-off of its restart in place")],
                since: None,
                until: Some(*until),
                then: "its program is executed anew",
            }),
            State::Running(running) => self.wait_to_stop(now, container).or_else(|| {
                let Startup::Probing(probing) = &running.startup else {
                    return None;
                };
                let (failures, threshold) = (probing.failures, probing.probe.failure_threshold);
                let missing = match failures {
                    0 => "its startup probe has not succeeded yet".to_owned(),
                    _ => format!("its startup probe has failed {failures} of {threshold} times"),
                };
                let left = threshold.saturating_sub(failures);
                let next = probing.next.unwrap_or(now);
                let rest = probing.probe.period.saturating_mul(left.saturating_sub(1));
                Some(Wait {
                    obstacles: vec![Obstacle::other(missing)],
                    since: Some(running.since),
                    until: Some(next.after(rest)),
                    then: "it is stopped, since its startup probe has failed too often",
                })
            }),
            _ => None,
        }
    }

    /// What keeps a container that is asked to stop, or whose end was decided, from stopping.
    fn wait_to_stop(&self, now: Time, container: &Container) -> Option<Wait> {
        let asked = container.request.as_ref().filter(|_| container.is_asked());
        let kill_at = container.stopping.kill_at;
        let deadline = self.termination.as_ref().map(Termination::deadline);
        let deadline = deadline.filter(|_| self.is_to_be_stopped(container));
        let until = [
            kill_at,
            deadline,
            asked.map(|request| request.deadline.max(now)),
        ];
        let until = until.into_iter().flatten().min();
        if container.stopping.signalled {
            return Some(Wait {
                obstacles: vec![Obstacle::other("its exit: it has got its stop signal")],
                since: asked.map(|request| request.at),
                until,
                then: "it is killed",
            });
        }
        asked?;
        let obstacle = match &self.termination {
            Some(termination) => Obstacle::other(format!(
                "its turn to stop: it is that of the {}",
                termination.step()
            )),
            None => Obstacle::other("the end of the termination window: is it the end of the pod?"),
        };
        Some(Wait {
            obstacles: vec![obstacle],
            since: asked.map(|request| request.at),
            until,
            then: "it gets a last signal, and SIGKILL two seconds later",
        })
    }

    /// What a container that is held waits for.
    pub(super) fn obstacles(&self, container: &Container) -> Vec<Obstacle> {
        if matches!(container.role, Role::Defer(_)) {
            return vec![Obstacle::other("its turn when the pod terminates")];
        }
        let names = self.missing(container).into_iter();
        let obstacles = names.map(|name| Obstacle {
            // Without advice, which is given once for all.
            missing: self.how_far(&name).split(':').take(1).collect(),
            container: Some((name.clone(), self.role(&name))),
        });
        obstacles.collect()
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

    /// Of the sidecars and apps that are listed or were created: how many are ready, and how many
    /// there are. Those of a pod without orders are all apps.
    fn readiness(&self) -> (usize, usize) {
        let plan = self.plan.as_ref().filter(|plan| !plan.is_empty());
        let listed = plan.into_iter().flat_map(|plan| {
            let apps = plan.apps().into_iter().flatten();
            plan.sidecars().iter().chain(apps)
        });
        let counts = |container: &&Container| {
            container.kind == ContainerKind::Workload
                && match plan {
                    Some(_) => matches!(container.role, Role::Sidecar | Role::App),
                    None => true,
                }
        };
        let created = self.containers.values().filter(counts);
        let mut names: Vec<&str> = created.map(|container| container.name.as_str()).collect();
        names.extend(listed.map(String::as_str));
        names.sort_unstable();
        names.dedup();
        let is_ready = |name: &&&str| {
            self.current(name)
                .is_some_and(|container| self.is_ready(container))
        };
        (names.iter().filter(is_ready).count(), names.len())
    }

    /// The status in a few words.
    fn status(&self) -> String {
        match &self.termination {
            None => self.status_of_the_living(),
            Some(termination) => match (termination.step(), termination.cause()) {
                (Step::PreExit, _) => self.defers_done(DeferTurn::PreExit),
                (Step::PostExit, _) => self.defers_done(DeferTurn::PostExit),
                (Step::Over, Cause::Completed) => "Completed".to_owned(),
                (Step::Over, Cause::EssentialFailed { .. } | Cause::InitFailed { .. }) => {
                    "Failed".to_owned()
                }
                (Step::Over, Cause::Stopped) => "Stopped".to_owned(),
                (Step::Over, Cause::Inferred | Cause::SandboxDied) => "Terminated".to_owned(),
                _ => "Terminating".to_owned(),
            },
        }
    }

    fn status_of_the_living(&self) -> String {
        let Some(plan) = self.plan.as_ref().filter(|plan| !plan.is_empty()) else {
            return self.status_of_apps();
        };
        let Some(stage) = self
            .closed_stage(usize::MAX)
            .and_then(|at| plan.stages().get(at))
        else {
            return self.status_of_apps();
        };
        let open = stage
            .0
            .iter()
            .find(|name| !self.has_done_its_part(name, u64::MAX));
        let done = |names: &[String]| {
            let done = names
                .iter()
                .filter(|name| self.has_done_its_part(name, u64::MAX));
            format!("{}/{}", done.count(), names.len())
        };
        match open.map(|name| (plan.role(name), name)) {
            Some((Role::Init, name)) => match self.history.of(name).and_then(|past| past.code) {
                Some(code) if code != 0 => "Init:Error".to_owned(),
                _ => format!("Init:{}", done(plan.init())),
            },
            _ => format!("Sidecar:{}", done(plan.sidecars())),
        }
    }

    /// Where all is started the apps say what the pod does.
    fn status_of_apps(&self) -> String {
        let is_app = |name: &str| !self.has_orders() || self.role(name) == Role::App;
        let lives = |container: &Container| {
            container.kind == ContainerKind::Workload
                && is_app(&container.name)
                && !matches!(container.state, State::Exited)
        };
        let pasts = self.history.all().into_iter().flatten();
        let codes: Option<Vec<_>> = pasts
            .filter(|(name, _)| is_app(name))
            .map(|(_, past)| past.code)
            .collect();
        match codes {
            _ if self.containers.values().any(lives) => "Running".to_owned(),
            Some(codes) if codes.is_empty() => "Running".to_owned(),
            Some(codes) if codes.iter().all(|code| *code == 0) => "Completed".to_owned(),
            Some(_) => "Error".to_owned(),
            None => "Running".to_owned(),
        }
    }

    /// How many of the defers of a turn have run.
    fn defers_done(&self, turn: DeferTurn) -> String {
        let Some(plan) = &self.plan else {
            return String::new();
        };
        let all = plan.pre_exit().iter().chain(plan.post_exit());
        let lives = |name: &String| {
            self.current(name)
                .is_some_and(|container| !matches!(container.state, State::Exited))
        };
        let names: Vec<_> = all.collect();
        // Those of the earlier turn are all behind it.
        let left = names.iter().filter(|name| {
            let is_later = plan.role(name) == Role::Defer(DeferTurn::PostExit);
            lives(name) && (turn == DeferTurn::PreExit || is_later)
        });
        let done = names.len().saturating_sub(left.count());
        format!("Defer:{done}/{}", names.len())
    }
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
