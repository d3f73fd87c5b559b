//! Creation: whose annotations count, and what a container is in its pod.

use std::time::Duration;

use crate::plan::{ContainerKind, Plan, RestartPolicy, Role};

use super::Pod;
use super::action::{ContainerId, Refusal, Report};
use super::container::{Blocked, Container, Hooks, NewContainer, State, Stopping};
use super::history::{End, NEVER_CREATED};
use super::restart::BackOff;
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
        if self.containers.contains_key(id) {
            return Err(Refusal::AlreadyExists { id: id.clone() });
        }
        if new.kind == ContainerKind::Workload && self.sandbox_is_gone {
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
            self.history
                .created(&name, self.creations.saturating_add(1));
        }
        self.creations = self.creations.saturating_add(1);
        let container = Container {
            name,
            kind,
            role,
            facts,
            demands,
            number: self.creations,
            state: State::Creating,
            request: None,
            answers: Vec::new(),
            stopping: Stopping::default(),
            hooks: Hooks::default(),
            turn_began: None,
            ends_as: None,
            startup_failed: false,
            probe_cost: None,
            back_off: BackOff::default(),
            place: 0,
            answered: None,
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
            if container.kind == ContainerKind::Sandbox {
                self.sandbox_is_gone = false;
            }
            self.end_if_stopped(id);
        }
        self.settle(now);
    }

    /// The container is gone: it was deleted, or could not be created. With the last one the pod is
    /// over, and the next container opens a new one.
    pub fn handle_removed(&mut self, now: Time, id: &ContainerId) {
        self.answer_withheld(id);
        let removed = self.containers.remove(id);
        if let Some(container) = &removed
            && container.kind == ContainerKind::Workload
            && !matches!(container.state, State::Exited)
        {
            self.undo(now, container);
        }
        // One that is restored from a checkpoint has no process whose end would answer its Start.
        if let Some(Container { state, name, .. }) = removed
            && let State::Blocked(Blocked { request, .. }) = state
        {
            self.answer_start(id, request, Err(Refusal::EndedBeforeStart { name }));
        }
        if self.containers.is_empty() {
            let actions = std::mem::take(&mut self.actions);
            *self = Pod {
                actions,
                ..Pod::default()
            };
        }
        self.settle(now);
    }

    /// The creation of a container came to nothing.
    fn undo(&mut self, now: Time, container: &Container) {
        let (name, number) = (&container.name, container.number);
        if let Some(heir) = self.current(name).filter(|heir| heir.is_alive()) {
            let heir = heir.number;
            return self.history.inherit(name, number, heir);
        }
        // As if it had failed. Whoever restarts what has failed will try again.
        let for_good = self
            .plan
            .as_ref()
            .is_some_and(|plan| plan.settings().restart_policy == RestartPolicy::Never);
        let fatal = self
            .fatal_end(container, NEVER_CREATED)
            .filter(|_| for_good);
        let end = End {
            at: now,
            code: NEVER_CREATED,
            has_run: false,
            asked: false,
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
}
