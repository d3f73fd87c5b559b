//! Starting: who may run now, and what the caller is told meanwhile.
//!
//! The order is that of the plan's stages (KEP-753, "Proposal": init containers and sidecars in
//! their order, then the apps). A gate is not an object that is opened: it is the question which
//! names a container still waits for, asked anew whenever something has happened.

use std::time::Duration;

use crate::plan::{ContainerKind, Plan, Role, StartMode};

use super::action::{Action, ContainerId, Refusal, Report, RequestId};
use super::container::{
    Blocked, Container, ExitStatus, Held, NewContainer, Running, Startup, State, Stopping,
};
use super::time::Time;
use super::{HOLD_NOTICE, Pod, Timer};

/// In `Auto` a sandbox's callers are kept waiting for no longer than this all told: while kubelet
/// waits, the pod has no IP and a deletion is not acted on.
const AUTO_BLOCKS_FOR: Duration = Duration::from_secs(10);

/// A blocked Start fails this long before its caller gives up, so that the caller sees the reason.
const ANSWER_LEAD: Duration = Duration::from_secs(2);

/// The exit code of a container that was held for too long.
const HELD_TOO_LONG: u32 = 1;

/// How much of the time that `Auto` may keep callers waiting is gone.
#[derive(Debug, Default)]
pub(super) struct AutoBudget {
    spent: Duration,
    /// Since when at least one Start is blocked.
    since: Option<Time>,
}

impl AutoBudget {
    /// When the budget is gone if it is used from now on.
    fn ends(&self, now: Time) -> Time {
        self.since
            .unwrap_or(now)
            .after(AUTO_BLOCKS_FOR.saturating_sub(self.spent))
    }

    fn update(&mut self, blocking: bool, now: Time) {
        match (self.since, blocking) {
            (None, true) => self.since = Some(now),
            (Some(since), false) => {
                self.spent = self.spent.saturating_add(now.since(since));
                self.since = None;
            }
            _ => {}
        }
    }
}

// === what happened ===

impl Pod {
    /// The caller wants a container created. `timeout` is what its call is willing to wait.
    ///
    /// After `Ok` the driver creates it and says [`handle_created`](Pod::handle_created) or
    /// [`handle_removed`](Pod::handle_removed).
    ///
    /// # Errors
    ///
    /// [`Refusal::AlreadyExists`], and [`Refusal::OtherPlan`] where no sandbox container says whose
    /// annotations count. A refused container leaves nothing behind.
    pub fn handle_create(
        &mut self,
        now: Time,
        id: &ContainerId,
        new: NewContainer,
        plan: Plan,
        timeout: Option<Duration>,
    ) -> Result<(), Refusal> {
        if self.containers.contains_key(id) {
            return Err(Refusal::AlreadyExists { id: id.clone() });
        }
        self.adopt(&new.name, plan)?;
        let NewContainer { name, kind, facts } = new;
        let role = match (kind, &self.plan) {
            (ContainerKind::Workload, Some(plan)) => plan.role(&name),
            _ => Role::Guest,
        };
        if kind == ContainerKind::Workload {
            if let Some(timeout) = timeout {
                let whole = Duration::from_secs(timeout.as_secs_f64().ceil() as u64);
                self.request_timeout = self.request_timeout.max(Some(whole));
            }
            self.disprove_termination(now, &name);
            self.succeeded.remove(&name);
        }
        self.creations = self.creations.saturating_add(1);
        let container = Container {
            name,
            kind,
            role,
            facts,
            number: self.creations,
            state: State::Creating,
            request: None,
            stopping: Stopping::default(),
            ends_as: None,
            startup_failed: false,
            post_start: None,
        };
        self.containers.insert(id.clone(), container);
        self.settle(now);
        Ok(())
    }

    /// The container has been created: its init process is parked.
    pub fn handle_created(&mut self, now: Time, id: &ContainerId) {
        if let Some(container) = self.containers.get_mut(id)
            && matches!(container.state, State::Creating)
        {
            container.state = State::Created;
        }
        self.settle(now);
    }

    /// The container is gone: it was deleted, or could not be created. With the last one the pod is
    /// over, and the next container opens a new one.
    pub fn handle_removed(&mut self, now: Time, id: &ContainerId) {
        self.containers.remove(id);
        if self.containers.is_empty() {
            let actions = std::mem::take(&mut self.actions);
            *self = Pod {
                actions,
                ..Pod::default()
            };
        }
        self.settle(now);
    }

    /// The caller asks for a container's start and is willing to wait for `patience`. The answer
    /// comes as [`Action::AnswerStart`].
    pub fn handle_start(
        &mut self,
        now: Time,
        id: &ContainerId,
        request: RequestId,
        patience: Option<Duration>,
    ) {
        let refusal = match self.containers.get_mut(id) {
            None => Some(Refusal::NotFound { id: id.clone() }),
            Some(container) => match container.state {
                State::Created => {
                    container.state = State::Blocked(Blocked {
                        request,
                        since: now,
                        deadline: patience.map(|patience| now.after(patience)),
                    });
                    None
                }
                _ => Some(Refusal::NotCreated {
                    name: container.name.clone(),
                    state: container.state_word(),
                }),
            },
        };
        if let Some(refusal) = refusal {
            self.answer_start(id, request, Err(refusal));
        }
        self.settle(now);
    }

    /// The caller of a Start has gone away or given up. A container whose Start was not answered
    /// is as it was before: nobody knows of a start that nobody heard of.
    pub fn handle_start_abandoned(&mut self, now: Time, id: &ContainerId, request: RequestId) {
        if let Some(container) = self.containers.get_mut(id)
            && let State::Blocked(blocked) = &container.state
            && blocked.request == request
        {
            container.state = State::Created;
        }
        self.settle(now);
    }

    /// What became of [`Action::Release`]: the program is being executed, or the reason why not.
    pub fn handle_released(&mut self, now: Time, id: &ContainerId, outcome: Result<(), String>) {
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let State::Releasing { request, exit, .. } = container.state else {
            return;
        };
        let name = container.name.clone();
        match outcome {
            Ok(()) => {
                self.releases = self.releases.saturating_add(1);
                let probe = self
                    .plan
                    .as_ref()
                    .and_then(|plan| plan.container(&name).startup_probe.clone());
                container.state = State::Running(Running {
                    since: now,
                    number: self.releases,
                    answered: now,
                    creations: self.creations,
                    startup: Startup::begin(probe, now),
                });
                if let Some(request) = request {
                    self.answer_start(id, request, Ok(()));
                }
                self.report_if_started(now, id);
            }
            Err(reason) => {
                container.state = State::Created;
                match request {
                    Some(request) => {
                        let refusal = Refusal::NotReleased { name, reason };
                        self.answer_start(id, request, Err(refusal));
                    }
                    // Its Start was answered long ago: all that can be done is to let it fail.
                    None if exit.is_none() => {
                        let message = format!("usher: {name} could not be released: {reason}");
                        self.end(id, HELD_TOO_LONG, Some(message));
                    }
                    None => {}
                }
            }
        }
        if let Some(exit) = exit {
            self.exited(id, exit);
        }
        self.settle(now);
    }

    /// The container's init process is gone.
    pub fn handle_exit(&mut self, now: Time, id: &ContainerId, status: ExitStatus) {
        match self
            .containers
            .get_mut(id)
            .map(|container| &mut container.state)
        {
            // TaskStart has to be published before TaskExit, so the news of the release come first.
            Some(State::Releasing { exit, .. }) => *exit = Some(status),
            Some(_) => self.exited(id, status),
            None => {}
        }
        self.settle(now);
    }
}

// === what follows ===

impl Pod {
    /// Takes the first container's plan for the pod's, and compares every later one with it.
    fn adopt(&mut self, name: &str, plan: Plan) -> Result<(), Refusal> {
        match &self.plan {
            None => self.plan = Some(plan),
            Some(own) if *own == plan => {}
            // containerd reads the pod's annotations anew for every container: they may have been
            // edited since the sandbox came, and the sandbox's plan stands.
            Some(_) if self.has_sandbox() => {
                self.report(Report::OtherPlan {
                    name: name.to_owned(),
                });
            }
            Some(_) => {
                return Err(Refusal::OtherPlan {
                    name: name.to_owned(),
                });
            }
        }
        Ok(())
    }

    /// The names that `container` waits for, in the order of the plan.
    pub(super) fn missing(&self, container: &Container) -> Vec<String> {
        let before = match (&self.plan, container.role) {
            (Some(plan), Role::Init | Role::Sidecar) => {
                plan.position(&container.name).unwrap_or(usize::MAX)
            }
            (Some(_), Role::App) => usize::MAX,
            _ => return Vec::new(),
        };
        let stages = self.plan.iter().flat_map(|plan| plan.stages()).take(before);
        let names = stages.flat_map(|stage| stage.0.iter());
        names
            .filter(|name| !self.has_done_its_part(name))
            .cloned()
            .collect()
    }

    /// Whether what comes after `name` in the start order need not wait for it any more: an init
    /// container has exited 0, a sidecar is started.
    fn has_done_its_part(&self, name: &str) -> bool {
        match self.plan.as_ref().map(|plan| plan.role(name)) {
            Some(Role::Init) => self.succeeded.contains(name),
            _ => self.current(name).is_some_and(Container::is_started),
        }
    }

    /// The first of the first `before` stages that is not done.
    pub(super) fn closed_stage(&self, before: usize) -> Option<usize> {
        let plan = self.plan.as_ref()?;
        let mut stages = plan.stages().iter().take(before);
        stages.position(|stage| stage.0.iter().any(|name| !self.has_done_its_part(name)))
    }

    /// Whether a container may be executed now.
    fn may_run(&self, container: &Container) -> bool {
        if !container.is_ordered() {
            return true;
        }
        match container.role {
            Role::Defer(_) => false,
            _ => self.termination.is_none() && self.missing(container).is_empty(),
        }
    }

    /// Whether every container that `container` waits for has been created and is alive: only then
    /// can its turn come without the caller creating anything.
    fn can_come_by_itself(&self, missing: &[String]) -> bool {
        missing.iter().all(|name| {
            self.current(name)
                .is_some_and(|other| other.is_alive() || matches!(other.state, State::Creating))
        })
    }

    pub(super) fn settle_starts(&mut self, now: Time) {
        for id in self.ids() {
            let Some(container) = self.containers.get(&id) else {
                continue;
            };
            match container.state {
                State::Blocked(_) | State::Held(_) if self.may_run(container) => {
                    self.release(&id, now);
                }
                State::Blocked(_) => self.settle_blocked(&id, now),
                State::Held(_) => self.settle_held(&id, now),
                _ => {}
            }
        }
        let blocking = self
            .containers
            .values()
            .any(|container| matches!(container.state, State::Blocked(_)));
        self.auto_budget.update(blocking, now);
    }

    fn release(&mut self, id: &ContainerId, now: Time) {
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let (request, since) = match &container.state {
            State::Blocked(blocked) => (Some(blocked.request), blocked.since),
            State::Held(held) => (None, held.since),
            _ => return,
        };
        container.state = State::Releasing {
            request,
            exit: None,
        };
        if container.is_ordered() {
            let report = Report::Released {
                name: container.name.clone(),
                role: container.role,
                waited: now.since(since),
            };
            self.report(report);
        }
        self.actions.push_back(Action::Release { id: id.clone() });
    }

    fn settle_blocked(&mut self, id: &ContainerId, now: Time) {
        let Some(container) = self.containers.get(id) else {
            return;
        };
        let State::Blocked(blocked) = &container.state else {
            return;
        };
        let (request, since) = (blocked.request, blocked.since);
        let name = container.name.clone();
        if self.termination.is_some() && !matches!(container.role, Role::Defer(_)) {
            self.unblock(id, State::Created);
            return self.answer_start(id, request, Err(Refusal::Terminating { name }));
        }
        let missing = self.missing(container);
        match self.start_mode(container) {
            StartMode::Block if self.block_ends(blocked) <= now => {
                let waits_for = self.describe(&missing);
                self.unblock(id, State::Created);
                let within = now.since(since);
                self.answer_start(
                    id,
                    request,
                    Err(Refusal::StartTimedOut {
                        name,
                        within,
                        waits_for,
                    }),
                );
            }
            StartMode::Auto
                if self.can_come_by_itself(&missing) && now < self.auto_ends(blocked, now) => {}
            StartMode::Block => {}
            StartMode::Auto | StartMode::Hold => {
                self.unblock(
                    id,
                    State::Held(Held {
                        since: now,
                        told: false,
                    }),
                );
                self.report(Report::Held {
                    name,
                    waits_for: missing,
                });
                self.answer_start(id, request, Ok(()));
            }
        }
    }

    /// A defer container is always held: its turn is at the end.
    fn start_mode(&self, container: &Container) -> StartMode {
        match (&self.plan, container.role) {
            (_, Role::Defer(_)) | (None, _) => StartMode::Hold,
            (Some(plan), _) => plan.settings().start_mode,
        }
    }

    fn unblock(&mut self, id: &ContainerId, state: State) {
        if let Some(container) = self.containers.get_mut(id) {
            container.state = state;
        }
    }

    /// When a Start in `Block` fails.
    fn block_ends(&self, blocked: &Blocked) -> Time {
        let own = blocked.since.after(self.startup_timeout());
        blocked
            .deadline
            .map_or(own, |deadline| own.min(deadline.before(ANSWER_LEAD)))
    }

    /// When a Start in `Auto` is answered at the latest.
    fn auto_ends(&self, blocked: &Blocked, now: Time) -> Time {
        let budget = self.auto_budget.ends(now);
        match blocked.deadline {
            None => budget,
            Some(deadline) => budget.min(blocked.since.after(half(deadline.since(blocked.since)))),
        }
    }

    fn settle_held(&mut self, id: &ContainerId, now: Time) {
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let State::Held(held) = &mut container.state else {
            return;
        };
        if matches!(container.role, Role::Defer(_)) {
            return;
        }
        let waited = now.since(held.since);
        let tell = !held.told && waited >= HOLD_NOTICE;
        held.told |= tell;
        let name = container.name.clone();
        let Some(container) = self.containers.get(id) else {
            return;
        };
        if container.ends_as.is_some() {
            return;
        }
        let waits_for = self.describe(&self.missing(container));
        if waited >= self.startup_timeout() {
            let message = format!(
                "usher: {name} was held for {waited:?} and is ended: it waited for {waits_for}"
            );
            self.end(id, HELD_TOO_LONG, Some(message));
        } else if tell {
            let message = format!("usher: {name} is held: it waits for {waits_for}");
            self.actions.push_back(Action::Tell {
                id: id.clone(),
                message,
                last_words: false,
            });
        }
    }

    fn startup_timeout(&self) -> Duration {
        self.plan
            .as_ref()
            .map_or(Duration::MAX, |plan| plan.settings().startup_timeout)
    }

    /// Names with their roles and states, for a person.
    pub(super) fn describe(&self, names: &[String]) -> String {
        let Some(plan) = &self.plan else {
            return String::new();
        };
        let words = names.iter().map(|name| {
            let state = match self.current(name) {
                None => "never created: if the caller runs it as an init container of its own, it belongs in usher/native-init",
                Some(container) if container.is_started() => "started",
                Some(container) if matches!(container.state, State::Running(_)) => "not started yet",
                Some(container) => container.state_word(),
            };
            format!("{} {name} ({state})", plan.role(name))
        });
        words.collect::<Vec<_>>().join(", ")
    }

    /// Ends a container whose program has not been executed: it reports `code`.
    pub(super) fn end(&mut self, id: &ContainerId, code: u32, last_words: Option<String>) {
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        if container.ends_as.is_some() || !container.is_parked() {
            return;
        }
        container.ends_as = Some(code);
        container.stopping.killed = true;
        if let Some(message) = last_words {
            self.actions.push_back(Action::Tell {
                id: id.clone(),
                message,
                last_words: true,
            });
        }
        self.actions.push_back(Action::Signal {
            id: id.clone(),
            signal: crate::plan::Signal::KILL,
            all: false,
            request: None,
        });
    }

    fn exited(&mut self, id: &ContainerId, status: ExitStatus) {
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let was = std::mem::replace(&mut container.state, State::Exited);
        let ran = matches!(was, State::Running(_));
        if ran && container.role == Role::Init && status == ExitStatus::Code(0) {
            self.succeeded.insert(container.name.clone());
        }
        if let State::Blocked(Blocked { request, .. }) = was {
            let refusal = Refusal::EndedBeforeStart {
                name: container.name.clone(),
            };
            self.answer_start(id, request, Err(refusal));
        }
        if let Some(code) = self
            .containers
            .get(id)
            .map(|container| self.reported_code(container, status))
        {
            self.actions.push_back(Action::ReportExit {
                id: id.clone(),
                code,
            });
        }
    }

    pub(super) fn answer_start(
        &mut self,
        id: &ContainerId,
        request: RequestId,
        answer: Result<(), Refusal>,
    ) {
        self.actions.push_back(Action::AnswerStart {
            id: id.clone(),
            request,
            answer,
        });
    }

    pub(super) fn start_timers(&self, timers: &mut Vec<(Time, Timer)>) {
        for container in self.containers.values() {
            match &container.state {
                State::Blocked(blocked) => {
                    let at = match self.start_mode(container) {
                        StartMode::Block => self.block_ends(blocked),
                        StartMode::Auto => self.auto_ends(blocked, blocked.since),
                        StartMode::Hold => continue,
                    };
                    timers.push((at, Timer::StartWait));
                }
                State::Held(held)
                    if container.ends_as.is_none() && !matches!(container.role, Role::Defer(_)) =>
                {
                    timers.push((held.since.after(self.startup_timeout()), Timer::HoldEnds));
                    if !held.told {
                        timers.push((held.since.after(HOLD_NOTICE), Timer::HoldNotice));
                    }
                }
                _ => {}
            }
        }
    }
}

fn half(time: Duration) -> Duration {
    time.checked_div(2).unwrap_or_default()
}
