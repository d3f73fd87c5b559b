//! The termination of a pod: steps that share the grace period.
//!
//! KEP-753 draft, "shutdown sequence steps", and the defer proposal. A step is over when nothing of
//! it is alive; the next one begins in the same breath. How long each may take is the policy's
//! business (`grace.rs`).

use std::time::Duration;

use crate::plan::{ContainerKind, DeferTurn, GracePolicy, Role, SidecarStopOrder};

use super::action::{Cause, ContainerId, Report, Step};
use super::container::{Container, State};
use super::extension::Extension;
use super::grace::{Budget, LEAST};
use super::time::Time;
use super::{Pod, Timer};

/// How long a step is kept up by a process that SIGKILL has not ended.
const STUCK: Duration = Duration::from_secs(1);

/// A termination under way.
#[derive(Clone, Debug)]
pub(super) struct Termination {
    cause: Cause,
    /// When the first of its requests came: its clock starts there.
    since: Time,
    /// When the grace period is over.
    deadline: Time,
    /// The grace period as its requests tell it: it chooses the policy, and a SIGKILL that comes
    /// early does not.
    grace: Duration,
    /// When it was recognised as one.
    known: Time,
    /// A person wants it, whatever it began with: then it is for those, too, that usher orders nothing
    /// of.
    by_hand: bool,
    /// Its caller leaves no time for hooks and defer containers.
    forced: bool,
    /// A running defer container was killed: no later one runs.
    defers_killed: bool,
    step: Step,
    step_began: Time,
    /// The step was not skipped.
    is_under_way: bool,
    /// How much time who has used in this step.
    used: Vec<(String, Duration)>,
    /// What defer containers have been granted beyond the grace period.
    pub extension: Extension,
    /// It was reported that the grace period is over.
    over_reported: bool,
}

/// When a step ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ends {
    /// When those are asked whose turn would have come later; nothing new begins then.
    pub ask_all: Time,
    /// When what is left of it is killed.
    pub kill: Time,
}

impl Ends {
    /// When what cannot even be killed is not waited for any longer.
    pub fn stuck(self) -> Time {
        self.kill.after(STUCK)
    }
}

impl Termination {
    pub fn new(cause: Cause, since: Time, deadline: Time, now: Time) -> Termination {
        Termination {
            by_hand: cause == Cause::Stopped,
            cause,
            since,
            deadline,
            grace: deadline.since(since),
            known: now,
            forced: false,
            defers_killed: false,
            step: Step::Hooks,
            step_began: now,
            is_under_way: false,
            used: Vec::new(),
            extension: Extension::default(),
            over_reported: false,
        }
    }

    /// Its caller leaves no time for hooks and defer containers.
    pub fn forced(self, forced: bool) -> Termination {
        Termination { forced, ..self }
    }

    pub fn step(&self) -> Step {
        self.step
    }

    pub fn since(&self) -> Time {
        self.since
    }

    pub fn deadline(&self) -> Time {
        self.deadline
    }

    pub fn step_began(&self) -> Time {
        self.step_began
    }

    /// It is for certain, because of `cause`, and is to be over by `deadline` at the latest. One that
    /// was decided before keeps its cause.
    pub fn decide(&mut self, cause: Cause, deadline: Time) {
        self.by_hand |= cause == Cause::Stopped;
        if !self.cause.is_decided() {
            self.cause = cause;
        }
        self.deadline = self.deadline.min(deadline);
        self.grace = self.grace.min(deadline.since(self.since));
    }

    pub fn cause(&self) -> &Cause {
        &self.cause
    }

    pub fn is_by_hand(&self) -> bool {
        self.by_hand
    }

    /// A running defer container was killed.
    pub fn kill_defers(&mut self) {
        self.defers_killed = true;
    }
}

impl Pod {
    pub(super) fn settle_termination(&mut self, now: Time) {
        if !self.has_orders() && self.termination.is_none() {
            return;
        }
        if self.termination.is_none() {
            let Some(termination) = self
                .sandbox_died(now)
                .or_else(|| self.completed(now))
                .or_else(|| self.infer_termination(now))
            else {
                return;
            };
            self.report(Report::Terminating {
                because: termination.cause.clone(),
                grace: termination.deadline.since(termination.since),
            });
            self.termination = Some(termination);
        }
        self.learn_deadline(now);
        self.end_grace(now);
        self.take_steps(now);
    }

    /// The containers of a pod whose sandbox is gone have lost their network: they are to end, in
    /// their order.
    fn sandbox_died(&self, now: Time) -> Option<Termination> {
        let is_dead_sandbox = |container: &&Container| {
            container.kind == ContainerKind::Sandbox && matches!(container.state, State::Exited)
        };
        self.containers.values().find(is_dead_sandbox)?;
        let alive = self
            .containers
            .values()
            .find(|container| container.is_ordered() && container.is_alive())?;
        let deadline = now.after(self.annotated_grace(alive));
        Some(Termination::new(Cause::SandboxDied, now, deadline, now))
    }

    /// A request that comes later may tell that the caller gives less time, or that it does give
    /// some.
    fn learn_deadline(&mut self, now: Time) {
        let open = self.containers.values().filter_map(|container| {
            let counts = container.is_ordered() && container.has_open_request(now);
            container
                .request
                .as_ref()
                .filter(|request| counts && !request.disproved)
        });
        let learned = open
            .map(|request| (request.deadline, request.forced))
            .reduce(|(deadline, forced), next| (deadline.min(next.0), forced && next.1));
        if let (Some(termination), Some((earliest, forced))) = (&mut self.termination, learned) {
            termination.deadline = termination.deadline.min(earliest);
            termination.grace = termination.grace.min(earliest.since(termination.since));
            termination.forced &= forced;
        }
    }

    /// What was asked to stop is killed: for its caller the grace period is over, whatever was
    /// computed.
    pub(super) fn learn_of_kill(&mut self, now: Time, id: &ContainerId) {
        let was_asked = self
            .containers
            .get(id)
            // That of a defer container is about defer containers.
            .filter(|container| container.defer_turn().is_none())
            .and_then(|container| container.request.as_ref())
            .is_some_and(|request| request.signal.is_some() && !request.disproved);
        if let (Some(termination), true) = (&mut self.termination, was_asked) {
            termination.deadline = termination.deadline.min(now);
        }
    }

    /// How the steps share their time; none if the pod does not terminate.
    pub(super) fn budget(&self) -> Option<Budget> {
        let (termination, plan) = self.termination.as_ref().zip(self.plan.as_ref())?;
        Some(Budget {
            grace: termination.deadline.since(termination.since),
            ..Budget::new(plan.settings(), termination.grace)
        })
    }

    /// When the step ends that the termination is in; none if it is to be skipped.
    pub(super) fn ends(&self) -> Option<Ends> {
        let termination = self.termination.as_ref()?;
        let (since, step) = (termination.since, termination.step);
        let share = self
            .budget()?
            .share(step, termination.step_began.since(since));
        let ends = match share {
            Some(share) => Ends {
                ask_all: since.after(share.ask_all),
                kill: since.after(share.kill),
            },
            // Its caller gives less time than it did when the step began.
            None if termination.is_under_way => Ends {
                ask_all: termination.deadline,
                kill: termination.deadline,
            },
            None => return None,
        };
        match step {
            Step::PreExit | Step::PostExit => Some(self.extended(ends)),
            _ => Some(ends),
        }
    }

    fn take_steps(&mut self, now: Time) {
        while let Some(step) = self.termination.as_ref().map(Termination::step) {
            if step == Step::Over || !self.work_on(step, now) {
                return;
            }
            let Some(termination) = &mut self.termination else {
                return;
            };
            let took = now.since(termination.step_began);
            let used = std::mem::take(&mut termination.used);
            termination.step = step.next();
            termination.step_began = now;
            termination.is_under_way = false;
            if matches!(step, Step::Apps | Step::Sidecars) || !used.is_empty() {
                self.report(Report::StepOver { step, took, used });
            }
        }
    }

    /// Does what a step calls for; true when it is over.
    fn work_on(&mut self, step: Step, now: Time) -> bool {
        let leaves_out = self
            .termination
            .as_ref()
            .is_some_and(|termination| termination.forced);
        let no_defers = leaves_out
            || !self.has_released
            || self
                .termination
                .as_ref()
                .is_some_and(|termination| termination.defers_killed);
        let ends = self.ends();
        if let Some(termination) = &mut self.termination {
            termination.is_under_way = ends.is_some();
        }
        match (step, ends) {
            (Step::Over, _) => false,
            (Step::Hooks, None) => true,
            (Step::Hooks, Some(ends)) => leaves_out || self.run_hooks(ends, now),
            (Step::PreExit, Some(ends)) if !no_defers => {
                self.run_defers(DeferTurn::PreExit, ends, now)
            }
            (Step::PostExit, Some(ends)) if !no_defers => {
                self.run_defers(DeferTurn::PostExit, ends, now)
            }
            (Step::PreExit, _) => self.skip_defers(DeferTurn::PreExit, now),
            (Step::PostExit, _) => self.skip_defers(DeferTurn::PostExit, now),
            (Step::Apps | Step::Sidecars, Some(ends)) => self.stop(step, ends, now),
            (Step::Apps | Step::Sidecars, None) => true,
        }
    }

    /// Asks those to stop whose turn it is; true when nothing of the step is left.
    fn stop(&mut self, step: Step, ends: Ends, now: Time) -> bool {
        let mut left = self.members(step).len();
        while left > 0 {
            let turn = match now >= ends.ask_all {
                true => self.members(step),
                false => self.turn(step),
            };
            for id in turn {
                if now >= ends.kill {
                    self.kill_now(&id, ends.kill, now);
                } else if now >= ends.ask_all
                    || self.stop_is_due(&id, now)
                        && !self.is_kept_by_pre_stop(&id, ends.ask_all, now)
                {
                    self.deliver_stop(&id, now);
                }
            }
            // What had no process has ended in that, and it is the turn of the next.
            let before = std::mem::replace(&mut left, self.members(step).len());
            if left == before {
                return now >= ends.stuck();
            }
        }
        true
    }

    /// What is alive of those that a step is for. Init containers are stopped with the apps: nothing
    /// outlives them that they need. Those of the caller's own are the caller's: it asks its
    /// long-running ones only when all others are gone.
    fn members(&self, step: Step) -> Vec<ContainerId> {
        match step {
            Step::Apps => self
                .alive(|container| matches!(container.role, Role::App | Role::Init | Role::Guest)),
            Step::Sidecars => self.alive(|container| match container.role {
                Role::Sidecar => true,
                // Nobody else will ask them. A guest is stopped with the apps, if it was not too late for
                // that when the pod was stopped by hand.
                Role::NativeInit | Role::Guest => self.is_stopped_by_hand(),
                _ => false,
            }),
            _ => Vec::new(),
        }
    }

    /// Those of a step that may be asked now: the apps all at once, the sidecars as the plan says.
    fn turn(&self, step: Step) -> Vec<ContainerId> {
        match step {
            Step::Sidecars => self.sidecars_whose_turn_it_is(),
            _ => self.members(step),
        }
    }

    fn sidecars_whose_turn_it_is(&self) -> Vec<ContainerId> {
        let order = self
            .plan
            .as_ref()
            .map_or(SidecarStopOrder::Reverse, |plan| {
                plan.settings().sidecar_stop_order
            });
        let sidecars = self.members(Step::Sidecars);
        // What never ran holds nobody up.
        let (parked, running): (Vec<_>, Vec<_>) = sidecars
            .into_iter()
            .partition(|id| self.containers.get(id).is_some_and(Container::is_parked));
        let turn = match order {
            SidecarStopOrder::Parallel => running,
            SidecarStopOrder::Reverse => running
                .into_iter()
                .max_by_key(|id| self.containers.get(id).map(place))
                .into_iter()
                .collect(),
        };
        parked.into_iter().chain(turn).collect()
    }

    /// Whether it is a sidecar's turn to stop, dead or alive.
    pub(super) fn turn_has_come(&self, sidecar: &Container) -> bool {
        let is_time = self
            .termination
            .as_ref()
            .is_some_and(|termination| termination.step >= Step::Sidecars);
        let is_everybodys = self
            .plan
            .as_ref()
            .is_some_and(|plan| plan.settings().sidecar_stop_order == SidecarStopOrder::Parallel);
        let turn = self.turn(Step::Sidecars);
        let turn = turn.iter().filter_map(|id| self.containers.get(id));
        let mut before = turn.filter(|other| !other.is_parked());
        is_time && (is_everybodys || before.all(|other| place(other) <= place(sidecar)))
    }

    /// Whether a container whose step has come is to be signalled now: it was asked to stop, or
    /// nobody will ask.
    fn stop_is_due(&self, id: &ContainerId, now: Time) -> bool {
        self.containers.get(id).is_some_and(|container| {
            // Nothing is left of it to be asked.
            container.is_asked()
                || container.is_between_lives()
                || self
                    .unasked_until(container)
                    .is_none_or(|until| until <= now)
        })
    }

    /// Until when the request for a container may still come, with the signal of its own choice:
    /// kubelet's come within milliseconds, but after the container's preStop handler.
    fn unasked_until(&self, container: &Container) -> Option<Time> {
        let termination = self.termination.as_ref()?;
        match (&container.facts.pre_stop, &termination.cause) {
            (Some(_), Cause::Inferred | Cause::SandboxDied) => Some(termination.deadline),
            (None, Cause::Inferred) => Some(termination.known.after(self.termination_window())),
            // Kubelet asks these too, but there is nothing to wait for.
            (None, Cause::SandboxDied) => None,
            // Kubelet does not know of it: it will ask for nothing.
            (
                _,
                Cause::Completed
                | Cause::EssentialFailed { .. }
                | Cause::InitFailed { .. }
                | Cause::Stopped,
            ) => {
                // But it may have begun before with a preStop handler, which its request follows.
                let request = container.request.as_ref();
                request
                    .filter(|request| request.signal.is_none() && !request.forced)
                    .map(|request| request.deadline.min(termination.deadline))
            }
        }
    }

    /// At the end of the grace period everything that is alive gets its last chance, where no step
    /// has any time of its own.
    fn end_grace(&mut self, now: Time) {
        let Some(termination) = &self.termination else {
            return;
        };
        let deadline = termination.deadline;
        if now < deadline || termination.step == Step::Over {
            return;
        }
        let alive = self.alive(|_| true);
        if !termination.over_reported {
            let names = alive.iter().filter_map(|id| self.containers.get(id));
            let names = names.map(|container| container.name.clone()).collect();
            self.report(Report::GraceOver { alive: names });
        }
        if let Some(termination) = &mut self.termination {
            termination.over_reported = true;
        }
        if self
            .budget()
            .is_none_or(|budget| budget.policy != GracePolicy::Shared)
        {
            return;
        }
        for id in alive {
            match self.containers.get(&id).is_some_and(Container::is_parked) {
                true => self.deliver_stop(&id, now),
                false => self.last_chance(&id, deadline.after(LEAST), now),
            }
        }
    }

    /// What is alive of those that are to be stopped.
    fn alive(&self, which: impl Fn(&Container) -> bool) -> Vec<ContainerId> {
        let alive = self.containers.iter().filter(|(_, container)| {
            self.is_to_be_stopped(container) && container.is_alive() && which(container)
        });
        alive.map(|(id, _)| id.clone()).collect()
    }

    /// Remembers, for the log, how much time a container has used of a termination.
    pub(super) fn note_used(&mut self, name: &str, began: Option<Time>, now: Time) {
        if let (Some(termination), Some(began)) = (&mut self.termination, began) {
            let time = now.since(began.max(termination.since));
            termination.used.push((name.to_owned(), time));
        }
    }

    /// Remembers how much time a termination hook has used of its step.
    pub(super) fn note_hook(&mut self, name: &str, now: Time) {
        let began = self.termination.as_ref().and_then(|termination| {
            let is_its_step = termination.step == Step::Hooks;
            is_its_step.then_some(termination.step_began)
        });
        self.note_used(name, began, now);
    }

    pub(super) fn termination_timers(&self, timers: &mut Vec<(Time, Timer)>) {
        let Some(termination) = &self.termination else {
            return;
        };
        if termination.step == Step::Over {
            return;
        }
        if !termination.over_reported {
            timers.push((termination.deadline, Timer::GraceOver));
        }
        let Some(ends) = self.ends() else {
            return;
        };
        match termination.step {
            Step::Hooks => timers.push((ends.kill, Timer::StepEnds)),
            Step::PreExit => self.defer_timers(DeferTurn::PreExit, ends, timers),
            Step::PostExit => self.defer_timers(DeferTurn::PostExit, ends, timers),
            step => {
                self.unasked_timers(step, timers);
                let members = self.members(step);
                for container in members.iter().filter_map(|id| self.containers.get(id)) {
                    self.end_timers(container, ends, timers);
                }
            }
        }
    }

    fn unasked_timers(&self, step: Step, timers: &mut Vec<(Time, Timer)>) {
        let turn = self.turn(step);
        for container in turn.iter().filter_map(|id| self.containers.get(id)) {
            if !container.is_asked()
                && container.is_to_be_told()
                && container.hooks.pre_stop == Default::default()
                && let Some(until) = self.unasked_until(container)
            {
                timers.push((until, Timer::Unasked));
            }
        }
    }

    /// When something is done about a container of the step if it lives on.
    pub(super) fn end_timers(
        &self,
        container: &Container,
        ends: Ends,
        timers: &mut Vec<(Time, Timer)>,
    ) {
        if container.is_to_be_told() || container.is_between_lives() {
            timers.push((ends.ask_all, Timer::StepEnds));
        }
        let is_ending = container.ends_as.is_some()
            || container.stopping.killed
            || container
                .stopping
                .kill_at
                .is_some_and(|kill_at| kill_at <= ends.kill);
        timers.push(match is_ending {
            true => (ends.stuck(), Timer::StepEnds),
            false => (ends.kill, Timer::StepEnds),
        });
    }
}

impl Container {
    /// Whether it could be told to stop, and has not been.
    fn is_to_be_told(&self) -> bool {
        let can_be = matches!(
            self.state,
            State::Running(_) | State::Created | State::Held(_)
        );
        let is_told = self.stopping.signalled || self.stopping.killed;
        can_be && !is_told && self.ends_as.is_none()
    }
}

/// The place of a sidecar in the order of starts; one that is just being started is last.
fn place(sidecar: &Container) -> u64 {
    match sidecar.state {
        State::Releasing { .. } => u64::MAX,
        _ => sidecar.place,
    }
}
