//! Defer containers: what runs when the pod terminates, one after another.
//!
//! The defer proposal ("Defer Containers", 2017). They are created and held from the start, so that
//! their images are there and their configuration is proven before they are needed. Each runs once
//! in a sandbox, however the end came about, and none when it was forced.

use crate::plan::{DeferExitCode, DeferTurn, RestartPolicy, Role};
use crate::process::ExitStatus;

use super::action::{ContainerId, Report, Step};
use super::container::{Blocked, Container, Held, State};
use super::grace::LEAST;
use super::stop::NEVER_EXECUTED;
use super::termination::Ends;
use super::time::Time;
use super::{Pod, Timer};

impl Step {
    /// The step in which defer containers of that turn run.
    pub(super) fn of(turn: DeferTurn) -> Step {
        match turn {
            DeferTurn::PreExit => Step::PreExit,
            DeferTurn::PostExit => Step::PostExit,
        }
    }
}

impl Pod {
    /// A defer container is held from its Start on, whatever the start mode.
    pub(super) fn hold_defers(&mut self, now: Time) {
        for id in self.ids() {
            let Some(container) = self.containers.get_mut(&id) else {
                continue;
            };
            if let (Role::Defer(_), State::Blocked(Blocked { request, .. })) =
                (container.role, &container.state)
            {
                let request = *request;
                container.state = State::Held(Held {
                    since: now,
                    told: false,
                });
                self.started(now, &id, request);
            }
        }
    }

    /// Those that wait for a turn that will not come.
    pub(super) fn settle_defers(&mut self, now: Time) {
        for id in self.ids() {
            let Some(container) = self.containers.get(&id) else {
                continue;
            };
            let Some(turn) = container.defer_turn() else {
                continue;
            };
            let is_past = self
                .termination
                .as_ref()
                .is_some_and(|termination| termination.step() > Step::of(turn));
            if !matches!(container.state, State::Held(_)) || container.ends_as.is_some() {
                continue;
            }
            if self.has_been_run(&container.name) {
                self.end(&id, 0, None);
            } else if is_past {
                self.skip_defer(&id, now);
            }
        }
    }

    fn has_been_run(&self, name: &str) -> bool {
        self.history.of(name).is_some_and(|past| past.deferred)
    }

    /// Runs the defer containers of a step, one after another; true when the last has ended.
    pub(super) fn run_defers(&mut self, turn: DeferTurn, ends: Ends, now: Time) -> bool {
        for id in self.defers(turn) {
            let Some(container) = self.containers.get(&id) else {
                continue;
            };
            match container.state {
                State::Held(_) if container.ends_as.is_some() => {}
                State::Held(_) if self.has_been_run(&container.name) => self.end(&id, 0, None),
                State::Held(_) if now >= ends.ask_all => self.skip_defer(&id, now),
                State::Held(_) => {
                    self.run_defer(&id, now);
                    return false;
                }
                State::Creating | State::Created | State::Blocked(_) | State::Exited => {}
                State::Releasing { .. }
                | State::Running(_)
                | State::BackingOff { .. }
                | State::Restarting { .. }
                | State::Withheld { .. } => {
                    if !self.is_out_of_time(&id, ends, now) {
                        return false;
                    }
                }
            }
        }
        true
    }

    fn run_defer(&mut self, id: &ContainerId, now: Time) {
        if let Some(termination) = &mut self.termination {
            termination.extension.begin();
        }
        if let Some(container) = self.containers.get_mut(id) {
            container.turn_began = Some(now);
            self.history.deferred(&container.name);
        }
        self.release(id, now);
    }

    /// Ends a running defer container whose time is over; true if it is not to be waited for.
    fn is_out_of_time(&mut self, id: &ContainerId, ends: Ends, now: Time) -> bool {
        let Some(container) = self.containers.get(id) else {
            return true;
        };
        let own = self.own_ends(container, ends);
        let is_capped = own.ask_all < ends.ask_all;
        if now >= own.kill {
            self.kill_now(id, own.kill, now);
        } else if now >= own.ask_all && (is_capped || !self.is_extended(id, now)) {
            self.deliver_stop(id, now);
        }
        let Some(container) = self.containers.get_mut(id) else {
            return true;
        };
        container.stopping.given_up |= now >= own.stuck();
        container.stopping.given_up || !container.is_alive()
    }

    /// The cap of a defer container is for its whole turn.
    fn own_ends(&self, container: &Container, ends: Ends) -> Ends {
        let cap = self
            .plan
            .as_ref()
            .and_then(|plan| plan.container(&container.name).grace_period);
        let (Some(cap), Some(began)) = (cap, container.turn_began) else {
            return ends;
        };
        let half = cap.checked_div(2).unwrap_or_default();
        let kill = began.after(cap);
        Ends {
            ask_all: ends.ask_all.min(kill.before(half.min(LEAST))),
            kill: ends.kill.min(kill),
        }
    }

    /// None of a step's defer containers is run that has not been.
    pub(super) fn skip_defers(&mut self, turn: DeferTurn, now: Time) -> bool {
        for id in self.defers(turn) {
            let is_held = self
                .containers
                .get(&id)
                .is_some_and(|container| matches!(container.state, State::Held(_)));
            if is_held {
                self.skip_defer(&id, now);
            }
        }
        true
    }

    pub(super) fn skip_defer(&mut self, id: &ContainerId, now: Time) {
        if let Some(container) = self.containers.get(id)
            && container.ends_as.is_none()
        {
            let name = container.name.clone();
            let code = self.code_of_defer(container, NEVER_EXECUTED, now);
            self.report(Report::DeferSkipped { name });
            self.end(id, code, None);
        }
    }

    /// The defer containers of a turn, in their order.
    fn defers(&self, turn: DeferTurn) -> Vec<ContainerId> {
        let Some(plan) = &self.plan else {
            return Vec::new();
        };
        let names = match turn {
            DeferTurn::PreExit => plan.pre_exit(),
            DeferTurn::PostExit => plan.post_exit(),
        };
        let place = |container: &Container| names.iter().position(|name| *name == container.name);
        let mut defers: Vec<_> = self
            .containers
            .iter()
            .filter(|(_, container)| container.defer_turn() == Some(turn))
            .map(|(id, container)| (place(container), container.number, id.clone()))
            .collect();
        defers.sort();
        defers.into_iter().map(|(.., id)| id).collect()
    }

    /// Whether a defer container that has ended with `status` is run again: until it succeeds or
    /// its time is up.
    pub(super) fn is_run_again(
        &self,
        container: &Container,
        status: ExitStatus,
        now: Time,
    ) -> bool {
        let Some(turn) = container.defer_turn() else {
            return false;
        };
        let wanted =
            self.restart_policy(&container.name) != RestartPolicy::Never && !self.sandbox_is_gone;
        let is_its_step = self
            .termination
            .as_ref()
            .is_some_and(|termination| termination.step() == Step::of(turn));
        let has_time = self
            .ends()
            .is_some_and(|ends| now < self.own_ends(container, ends).ask_all);
        wanted
            && status != ExitStatus::Code(0)
            && is_its_step
            && has_time
            && !container.was_told()
            && !container.stopping.killed
    }

    /// The code that is told of a defer container (defer proposal: the failure of one never
    /// restarts a pod).
    pub(super) fn code_of_defer(
        &self,
        container: &Container,
        status: ExitStatus,
        now: Time,
    ) -> u32 {
        let policy = self
            .plan
            .as_ref()
            .map(|plan| plan.settings().defer_exit_code);
        match policy {
            Some(DeferExitCode::Mask) if container.turn_began.is_none() => {
                self.code_of_no_failure(now)
            }
            Some(DeferExitCode::Mask) => 0,
            Some(DeferExitCode::Propagate) | None => status.code(),
        }
    }

    /// Whether there is any defer container in the plan.
    pub(super) fn has_defers(&self) -> bool {
        self.plan
            .as_ref()
            .is_some_and(|plan| !plan.pre_exit().is_empty() || !plan.post_exit().is_empty())
    }

    /// Whether a defer container is listed that was never created here, or is not started yet.
    pub(super) fn is_a_defer_missing(&self) -> bool {
        let listed = self
            .plan
            .iter()
            .flat_map(|plan| plan.pre_exit().iter().chain(plan.post_exit()));
        listed.into_iter().any(|name| match self.current(name) {
            None => self.history.of(name).is_none(),
            Some(container) => {
                matches!(container.state, State::Creating | State::Created)
                    && container.ends_as.is_none()
            }
        })
    }

    pub(super) fn defer_timers(
        &self,
        turn: DeferTurn,
        ends: Ends,
        timers: &mut Vec<(Time, Timer)>,
    ) {
        let defers = self.defers(turn);
        for container in defers.iter().filter_map(|id| self.containers.get(id)) {
            let is_running = container.is_alive() && !container.is_parked();
            if is_running && !container.stopping.given_up {
                self.end_timers(container, self.own_ends(container, ends), timers);
            }
        }
    }
}
