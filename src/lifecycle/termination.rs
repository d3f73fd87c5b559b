//! The termination of a pod: steps that share the grace period.
//!
//! KEP-753 draft, "shutdown sequence steps", and the defer proposal. A step is over when nothing of
//! it is alive; the next one begins in the same breath. The policy is `Shared`: each step may use
//! all that is left, and at the end of the grace period everything alive gets a last signal and two
//! seconds.

use crate::plan::{ContainerKind, Role, SidecarStopOrder};

use super::action::{Cause, ContainerId, Report, Step};
use super::container::{Container, State};
use super::stop::LAST_CHANCE;
use super::time::Time;
use super::{Pod, Timer};

/// A termination under way.
#[derive(Clone, Debug)]
pub(super) struct Termination {
    cause: Cause,
    /// When the first of its requests came: its clock starts there.
    since: Time,
    /// When the grace period is over.
    deadline: Time,
    /// When it was recognised as one.
    known: Time,
    step: Step,
    step_began: Time,
    /// It was reported that the grace period is over.
    over_reported: bool,
}

impl Termination {
    pub fn new(cause: Cause, since: Time, deadline: Time, now: Time) -> Termination {
        Termination {
            cause,
            since,
            deadline,
            known: now,
            step: Step::Hooks,
            step_began: now,
            over_reported: false,
        }
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
        if !self.cause.is_decided() {
            self.cause = cause;
        }
        self.deadline = self.deadline.min(deadline);
    }

    pub fn cause(&self) -> &Cause {
        &self.cause
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
        self.take_steps(now);
        self.end_grace(now);
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

    /// A request that comes later may tell that the caller gives less time.
    fn learn_deadline(&mut self, now: Time) {
        let open = self.containers.values().filter_map(|container| {
            let counts = container.is_ordered() && container.has_open_request(now);
            container
                .request
                .as_ref()
                .filter(|request| counts && !request.disproved)
        });
        let earliest = open.map(|request| request.deadline).min();
        if let (Some(termination), Some(earliest)) = (&mut self.termination, earliest) {
            termination.deadline = termination.deadline.min(earliest);
        }
    }

    /// What was asked to stop is killed: for its caller the grace period is over, whatever was
    /// computed.
    pub(super) fn learn_of_kill(&mut self, now: Time, id: &ContainerId) {
        let was_asked = self
            .containers
            .get(id)
            .and_then(|container| container.request.as_ref())
            .is_some_and(|request| request.signal.is_some() && !request.disproved);
        if let (Some(termination), true) = (&mut self.termination, was_asked) {
            termination.deadline = termination.deadline.min(now);
        }
    }

    fn take_steps(&mut self, now: Time) {
        while let Some(step) = self.termination.as_ref().map(Termination::step) {
            let over = match step {
                // Containers of these steps are refused at Create as not supported yet.
                Step::Hooks | Step::PreExit | Step::PostExit => true,
                Step::Apps | Step::Sidecars => self.stop(step, now),
                Step::Over => return,
            };
            let Some(termination) = &mut self.termination else {
                return;
            };
            if !over {
                return;
            }
            let took = now.since(termination.step_began);
            termination.step = step.next();
            termination.step_began = now;
            if matches!(step, Step::Apps | Step::Sidecars) {
                self.report(Report::StepOver { step, took });
            }
        }
    }

    /// Asks those to stop whose turn it is; true when nothing of the step is left.
    fn stop(&mut self, step: Step, now: Time) -> bool {
        let mut left = self.members(step).len();
        while left > 0 {
            for id in self.turn(step) {
                if self.stop_is_due(&id, now) {
                    self.deliver_stop(&id, now);
                }
            }
            // What had no process has ended in that, and it is the turn of the next.
            let before = std::mem::replace(&mut left, self.members(step).len());
            if left == before {
                return false;
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
                // Nobody else will ask it.
                Role::NativeInit => self.is_stopped_by_hand(),
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
        let turn = self.turn(Step::Sidecars);
        let turn = turn.iter().filter_map(|id| self.containers.get(id));
        is_time
            && turn
                .filter(|other| !other.is_parked())
                .all(|other| place(other) <= place(sidecar))
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
            ) => None,
        }
    }

    /// At the end of the grace period everything that is alive gets its last chance.
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
        for id in alive {
            match self.containers.get(&id).is_some_and(Container::is_parked) {
                true => self.deliver_stop(&id, now),
                false => self.last_chance(&id, deadline.after(LAST_CHANCE), now),
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
        let turn = self.turn(termination.step);
        for container in turn.iter().filter_map(|id| self.containers.get(id)) {
            let pending = !container.is_asked()
                && !container.stopping.signalled
                && container.ends_as.is_none();
            if pending
                && matches!(
                    container.state,
                    State::Running(_) | State::Created | State::Held(_)
                )
                && let Some(until) = self.unasked_until(container)
            {
                timers.push((until, Timer::Unasked));
            }
        }
    }
}

/// The place of a sidecar in the order of starts; one that is just being started is last.
fn place(sidecar: &Container) -> u64 {
    match sidecar.state {
        State::Releasing { .. } => u64::MAX,
        _ => sidecar.place,
    }
}
