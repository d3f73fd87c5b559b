//! Creation: whose annotations count, and what a container is in its pod.

use std::time::Duration;

use crate::plan::{ContainerKind, Plan, Role};

use super::Pod;
use super::action::{Cause, ContainerId, Refusal};
use super::container::{AtTheEnd, Container, NewContainer};
use super::deeds::Hand;
use super::duty::Duty;
use super::history::{End, NEVER_CREATED};
use super::life::Life;
use super::report::Report;
use super::restart::BackOff;
use super::run::Run;
use super::stop::STOPPED;
use super::task::Task;
use super::time::Time;

/// Whether a container comes in time that has just been created.
pub(super) enum Comes {
    InTime,
    /// The end was over when it was still being created: it has to do with what comes after it.
    ForTheNextRun,
    /// The pod is being stopped by hand.
    TooLate,
}

impl Pod {
    /// The caller wants a container created. `plan` is what its annotations say of the pod; none where the
    /// sandbox was told all of that. `timeout` is what its call is willing to wait.
    ///
    /// After `Ok` the driver creates it and says [`handle_created`](Pod::handle_created) or
    /// [`handle_removed`](Pod::handle_removed).
    ///
    /// # Errors
    ///
    /// [`Refusal::AlreadyExists`], [`Refusal::SandboxGone`], and [`Refusal::OtherPlan`] where no sandbox
    /// container says whose annotations count. A refused container leaves nothing behind.
    pub fn handle_create(
        &mut self,
        now: Time,
        id: &ContainerId,
        new: NewContainer,
        plan: Option<Plan>,
        timeout: Option<Duration>,
    ) -> Result<(), Refusal> {
        self.now = now;
        if self.containers.contains_key(id) {
            return Err(Refusal::AlreadyExists { id: id.clone() });
        }
        if new.kind == ContainerKind::Workload && self.sandbox_is_gone {
            // Its caller creates it in the next sandbox.
            self.history.wanted(&new.name);
            return Err(Refusal::SandboxGone { name: new.name });
        }
        if let Some(plan) = plan {
            self.adopt(&new.name, plan)?;
        }
        let NewContainer {
            name,
            kind,
            facts,
            mut demands,
            is_ungrouped,
            bundle,
        } = new;
        let role = match (kind, &self.plan) {
            (ContainerKind::Workload, Some(plan)) => plan.role(&name),
            _ => Role::Guest,
        };
        demands.size = self.size_at_creation(&name, role, demands.size);
        if kind == ContainerKind::Workload {
            let is_new = self.history.of(&name).is_none();
            let is_restart_of_all = self.is_restart_of_all(&name);
            // What is created again in its sandbox was not left out of it.
            self.is_later_sandbox |= facts.restart_count > 0 && is_new && !self.was_restarted;
            if let Some(timeout) = timeout {
                let whole = Duration::from_secs(timeout.as_secs_f64().ceil() as u64);
                self.request_timeout = self.request_timeout.max(Some(whole));
            }
            self.disprove_termination(&name);
            if is_restart_of_all {
                self.restart_all(&name);
            }
            // In a pod that starts over every name is new again.
            if self.history.of(&name).is_none() {
                self.last_new_name = now;
            }
            self.disprove_post_starts();
            self.last_creation = now;
        }
        self.creations = self.creations.saturating_add(1);
        let run = match kind {
            ContainerKind::Workload => self.run_of(&name, role),
            ContainerKind::Sandbox => Run::Current,
        };
        if run == Run::NextFromTheStart {
            self.restart_all(&name);
        }
        let is_of_next_run = run != Run::Current;
        if kind == ContainerKind::Workload && !is_of_next_run {
            self.came(&name, self.creations);
        }
        let container = Container {
            name,
            kind,
            role,
            facts,
            demands,
            is_ungrouped,
            number: self.creations,
            is_of_next_run,
            life: Life::creating(),
            task: Task::new(bundle),
            request: None,
            kills: Vec::new(),
            answers: Vec::new(),
            at_the_end: AtTheEnd::of(Duty::of(role)),
            probe_cost: None,
            back_off: BackOff::default(),
            place: 0,
            is_given_up: false,
        };
        self.containers.insert(id.clone(), container);
        self.settle(now);
        Ok(())
    }

    /// Whether a container comes in time that has just been created.
    pub(super) fn comes(&self, container: &Container) -> Comes {
        // A defer container has its turn, if that is not past.
        let is_late = container.kind == ContainerKind::Workload
            && container.defer_turn().is_none()
            && !container.is_of_next_run;
        match self.termination.as_ref().filter(|_| is_late) {
            Some(termination) if termination.is_by_hand() => Comes::TooLate,
            // No sandbox container says how long a pod lasts.
            Some(termination)
                if termination.is_over()
                    && !self.has_sandbox()
                    && *termination.cause() != Cause::Completed =>
            {
                Comes::ForTheNextRun
            }
            _ => Comes::InTime,
        }
    }

    /// The container is gone: it was deleted, or could not be created. With the last one the pod is
    /// over, and the next container opens a new one.
    pub fn handle_removed(&mut self, now: Time, id: &ContainerId) {
        self.now = now;
        self.circles.forget(id);
        match self.containers.remove(id) {
            Some(container) => self.removed(id, &container),
            None => self.out.report(Report::TooLate { id: id.clone() }),
        }
        self.settle(now);
    }

    fn removed(&mut self, id: &ContainerId, container: &Container) {
        // Nobody who asked for its end waits any longer.
        let kills = container.kills.iter().map(|(request, _)| *request);
        let answers = container.answers.iter().map(|answer| answer.request);
        for request in answers.chain(kills) {
            self.out.answer_kill(request);
        }
        if container.kind == ContainerKind::Workload
            && !container.life.is_exited()
            && !container.is_of_next_run
        {
            self.undo(container);
        }
        // One that is restored from a checkpoint has no process whose end would answer its Start.
        if let Some(blocked) = container.life.as_blocked() {
            let refusal = Refusal::EndedBeforeStart {
                name: container.name.clone(),
            };
            self.out.answer_start(id, blocked.request, Err(refusal));
        }
        if self.containers.is_empty() {
            let out = std::mem::take(&mut self.out);
            *self = Pod {
                out,
                // What comes for a sandbox that has died comes too late, though nothing is left of it.
                sandbox_is_gone: self.sandbox_is_gone,
                ..Pod::default()
            };
        }
    }

    /// The creation of a container came to nothing.
    fn undo(&mut self, container: &Container) {
        let (name, number) = (&container.name, container.number);
        if let Some(heir) = self.current(name).filter(|heir| heir.life.is_alive()) {
            let heir = heir.number;
            return self.history.inherit(name, number, heir);
        }
        // As if it had failed. Whoever restarts what has failed will try again.
        let fatal = self
            .fatal_end(container, NEVER_CREATED)
            .filter(|_| !self.restart_policy_of(name).restarts_failed());
        let end = End {
            at: self.now,
            code: NEVER_CREATED,
            has_run: false,
            asked: false,
            told: false,
            caller_restarts: false,
        };
        self.history.ended(name, number, end, fatal);
    }

    /// A container of this name is of the pod that there is, as number `number`: from now on it is waited
    /// for, and has its turns, whether it had to come or not.
    pub(super) fn came(&mut self, name: &str, number: u64) {
        self.history.created(name, number);
        if let Some(plan) = &mut self.plan {
            plan.comes(name);
        }
    }

    /// Takes the first container's plan for the pod's, and compares every later one with it.
    fn adopt(&mut self, name: &str, plan: Plan) -> Result<(), Refusal> {
        match &self.plan {
            None => self.plan = Some(plan),
            Some(own) if own.is_written_as(&plan) => {}
            // containerd reads the pod's annotations anew for every container: they may have been
            // edited since the sandbox came, and the sandbox's plan stands.
            Some(_) if self.has_sandbox() => {
                self.out.report(Report::OtherPlan {
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
}

impl Hand<'_> {
    pub(super) fn created(&mut self, comes: Comes) {
        let outcome = self.container.life.created();
        if self.noted(outcome).is_none() {
            return;
        }
        match comes {
            Comes::InTime if self.container.kind == ContainerKind::Sandbox => {
                *self.sandbox_is_gone = false;
            }
            Comes::InTime => {}
            Comes::ForTheNextRun => self.container.is_of_next_run = true,
            Comes::TooLate => self.end(STOPPED, None),
        }
    }
}
