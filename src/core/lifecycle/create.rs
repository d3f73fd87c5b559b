//! Creation: whose annotations count, and what a container is in its pod.

use std::time::Duration;

use crate::plan::{ContainerKind, Plan, Role};

use super::Pod;
use super::action::{ContainerId, Refusal};
use super::container::{AtTheEnd, Container, NewContainer};
use super::duty::Duty;
use super::history::{End, NEVER_CREATED};
use super::life::Life;
use super::report::Report;
use super::restart::BackOff;
use super::rules::Deed;
use super::stop::STOPPED;
use super::termination::Termination;
use super::time::Time;

impl Pod {
    /// The caller wants a container created. `timeout` is what its call is willing to wait.
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
        plan: Plan,
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
        self.adopt(&new.name, plan)?;
        let NewContainer {
            name,
            kind,
            facts,
            mut demands,
        } = new;
        let role = match (kind, &self.plan) {
            (ContainerKind::Workload, Some(plan)) => plan.role(&name),
            _ => Role::Guest,
        };
        demands.size = self.size_at_creation(&name, role, demands.size);
        if kind == ContainerKind::Workload {
            self.is_later_sandbox |= facts.restart_count > 0 && self.history.of(&name).is_none();
            if let Some(timeout) = timeout {
                let whole = Duration::from_secs(timeout.as_secs_f64().ceil() as u64);
                self.request_timeout = self.request_timeout.max(Some(whole));
            }
            self.disprove_termination(&name);
            self.last_creation = now;
        }
        self.creations = self.creations.saturating_add(1);
        let is_of_next_run =
            kind == ContainerKind::Workload && self.is_for_the_next_run(&name, role);
        if kind == ContainerKind::Workload && !is_of_next_run {
            self.history.created(&name, self.creations);
        }
        let container = Container {
            name,
            kind,
            role,
            facts,
            demands,
            number: self.creations,
            is_of_next_run,
            life: Life::creating(),
            request: None,
            kills: Vec::new(),
            answers: Vec::new(),
            at_the_end: AtTheEnd::of(Duty::of(role)),
            probe_cost: None,
            back_off: BackOff::default(),
            place: 0,
        };
        self.containers.insert(id.clone(), container);
        self.settle(now);
        Ok(())
    }

    /// Whether a container that is created now has to do with what comes after the end of the pod: one
    /// that was decided stays. But a defer container is for the end that there is.
    fn is_for_the_next_run(&self, name: &str, role: Role) -> bool {
        let Some(termination) = &self.termination else {
            return false;
        };
        match Duty::of(role).defer_turn() {
            Some(_) => termination.is_over() && !self.history.was_deferred(name),
            // What comes while a person stops the pod comes too late for it.
            None => termination.is_over() || !termination.is_by_hand(),
        }
    }

    /// What was still being created when the end was over has to do with what comes after it, where no
    /// sandbox container says how long a pod lasts.
    fn join_next_run(&mut self, id: &ContainerId) {
        let is_over = |ended: &Termination| ended.is_over() && !ended.is_by_hand();
        if self.has_sandbox() || !self.termination.as_ref().is_some_and(is_over) {
            return;
        }
        if let Some(container) = self.containers.get_mut(id)
            && container.kind == ContainerKind::Workload
            && container.life.is_created()
            && container.defer_turn().is_none()
        {
            container.is_of_next_run = true;
        }
    }

    /// A container has been created in a pod that is being stopped by hand: it is too late.
    fn end_if_stopped(&mut self, id: &ContainerId) {
        let is_being_stopped = self
            .termination
            .as_ref()
            .is_some_and(Termination::is_by_hand);
        let is_too_late = self.containers.get(id).is_some_and(|container| {
            // A defer container has its turn, if that is not past.
            let is_left = container.defer_turn().is_none() && container.life.is_created();
            container.kind == ContainerKind::Workload && is_left && !container.is_of_next_run
        });
        if is_being_stopped && is_too_late {
            let (code, words) = (STOPPED, None);
            self.do_to(id, Deed::End { code, words });
        }
    }

    /// The container has been created: its init process is parked.
    pub fn handle_created(&mut self, now: Time, id: &ContainerId) {
        self.now = now;
        if let Some(mut hand) = self.hand(id) {
            let is_sandbox = hand.container.kind == ContainerKind::Sandbox;
            let outcome = hand.container.life.created();
            if hand.noted(outcome).is_some() && is_sandbox {
                self.sandbox_is_gone = false;
            }
        }
        self.join_next_run(id);
        self.end_if_stopped(id);
        self.settle(now);
    }

    /// The container is gone: it was deleted, or could not be created. With the last one the pod is
    /// over, and the next container opens a new one.
    pub fn handle_removed(&mut self, now: Time, id: &ContainerId) {
        self.now = now;
        self.answer_all(id);
        let removed = self.containers.remove(id);
        if let Some(container) = &removed
            && container.kind == ContainerKind::Workload
            && !container.life.is_exited()
            && !container.is_of_next_run
        {
            self.undo(container);
        }
        // One that is restored from a checkpoint has no process whose end would answer its Start.
        if let Some(container) = removed
            && let Some(blocked) = container.life.as_blocked()
        {
            let refusal = Refusal::EndedBeforeStart {
                name: container.name.clone(),
            };
            self.out.answer_start(id, blocked.request, Err(refusal));
        }
        if self.containers.is_empty() {
            let out = std::mem::take(&mut self.out);
            *self = Pod {
                out,
                ..Pod::default()
            };
        }
        self.settle(now);
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
            .filter(|_| !self.is_restarted_by_its_caller());
        let end = End {
            at: self.now,
            code: NEVER_CREATED,
            has_run: false,
            asked: false,
            told: false,
        };
        self.history.ended(name, number, end, fatal);
    }

    /// Takes the first container's plan for the pod's, and compares every later one with it.
    fn adopt(&mut self, name: &str, plan: Plan) -> Result<(), Refusal> {
        match &self.plan {
            None => self.plan = Some(plan),
            Some(own) if *own == plan => {}
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
