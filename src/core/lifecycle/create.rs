//! Creation of containers: which annotations apply, and the container's role and run. A
//! [run](super::run) of a pod ends with a termination; another run may follow in the same sandbox.

use std::time::Duration;

use crate::plan::{ContainerKind, Plan, Role};

use super::Pod;
use super::action::{Action, Cause, ContainerId, Refusal};
use super::container::{Container, NewContainer, TerminationWork};
use super::effects::ContainerContext;
use super::history::{End, NEVER_CREATED};
use super::report::Report;
use super::restart::BackOff;
use super::role_policy::RolePolicy;
use super::run::Run;
use super::state::{ContainerState, InvalidTransition};
use super::stop::STOPPED;
use super::task::{Cleanup, Execs, Removal, Updates};
use super::time::Time;

/// The relation of a just-created container to the termination under way.
enum Arrival {
    /// The container stays in the run that its Create has assigned to it.
    InTime,
    /// The termination is over, and the pod has no sandbox container: the container belongs to the
    /// next run.
    ForTheNextRun,
    /// The container was created while a person stops the pod: it is ended at once.
    TooLate,
}

impl Pod {
    /// Registers a container that the caller wants to create. `plan` is the pod's plan according to
    /// the container's annotations, or `None` if the plan of the sandbox applies. `timeout` is the
    /// deadline of the caller's Create.
    ///
    /// After `Ok` the driver creates the container and reports with
    /// [`handle_created`](Pod::handle_created) or [`handle_removed`](Pod::handle_removed).
    ///
    /// # Errors
    ///
    /// [`Refusal::AlreadyExists`], [`Refusal::SandboxGone`], and [`Refusal::OtherPlan`] if there is
    /// no sandbox container to say which annotations apply. A refused container is not registered.
    /// After `SandboxGone` the container's work counts as not done, because the caller creates the
    /// container again in the next sandbox.
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
            // The caller creates the container again in the next sandbox.
            self.history.record_attempt(&new.name);
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
            // kubelet says that it has restarted this container, but the name is new in this
            // sandbox. So the container has run in an earlier sandbox of the pod. The exception is
            // a restart of the whole pod in this sandbox, which clears the history.
            self.is_later_sandbox |= facts.restart_count > 0 && is_new && !self.was_restarted;
            if let Some(timeout) = timeout {
                let whole = Duration::from_secs(timeout.as_secs_f64().ceil() as u64);
                self.request_timeout = self.request_timeout.max(Some(whole));
            }
            self.disprove_termination(&name);
            if is_restart_of_all {
                self.note_restart_of_all(&name);
            }
            // If the pod starts over with this Create, the history was just cleared. So the name
            // counts as new.
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
            self.note_restart_of_all(&name);
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
            state: ContainerState::creating(),
            execs: Execs::default(),
            updates: Updates::default(),
            pending_signals: Vec::new(),
            cleanup: Cleanup::None,
            removal: Removal::None,
            bundle,
            request: None,
            kills: Vec::new(),
            answers: Vec::new(),
            termination_work: TerminationWork::of(RolePolicy::of(role)),
            probe_cost: None,
            back_off: BackOff::default(),
            place: 0,
            is_given_up: false,
        };
        self.containers.insert(id.clone(), container);
        self.settle(now);
        Ok(())
    }

    /// Records that the OCI runtime has created a container, whose init process waits to execute
    /// the program.
    pub fn handle_created(&mut self, now: Time, id: &ContainerId) {
        self.park_init(now, id, ContainerState::created);
    }

    /// Records a container created from a checkpoint: the process is restored when the container's
    /// turn comes. Otherwise like [`handle_created`](Pod::handle_created).
    pub fn handle_created_to_restore(&mut self, now: Time, id: &ContainerId) {
        self.park_init(now, id, ContainerState::created_to_restore);
    }

    fn park_init(
        &mut self,
        now: Time,
        id: &ContainerId,
        transition: fn(&mut ContainerState) -> Result<(), InvalidTransition>,
    ) {
        self.now = now;
        self.on_event(id, Pod::arrival, |context, arrival| {
            let outcome = transition(&mut context.container.state);
            context.apply_arrival(outcome, arrival);
        });
        self.settle(now);
    }

    /// Decides what becomes of `container` when the OCI runtime has created it: the container stays
    /// in its run, moves to the next run, or is ended at once. Without a termination, the container
    /// always stays in its run ([`Arrival::InTime`]).
    fn arrival(&self, container: &Container) -> Arrival {
        // A defer container is not late, because its turn in the termination may still come. If
        // the turn is over, the rule `defer_is_skipped` ends the container after its Start.
        let is_late = container.kind == ContainerKind::Workload
            && container.defer_turn().is_none()
            && !container.is_of_next_run;
        match self.termination.as_ref().filter(|_| is_late) {
            Some(termination) if termination.is_by_hand() => Arrival::TooLate,
            // Without a sandbox container nothing marks the end of the pod. So a container that is
            // created after the termination begins the next run.
            Some(termination)
                if termination.is_over()
                    && !self.has_sandbox()
                    && *termination.cause() != Cause::Completed =>
            {
                Arrival::ForTheNextRun
            }
            _ => Arrival::InTime,
        }
    }

    /// Removes a container that was deleted, or could not be created. Its open Kills succeed, and
    /// its open Start and Updates are refused. With the last container the pod is over, and the
    /// next container opens a new pod.
    pub fn handle_removed(&mut self, now: Time, id: &ContainerId) {
        self.now = now;
        self.suspended_rules.forget(id);
        match self.containers.remove(id) {
            Some(container) => self.clear_removed(id, &container),
            None => self.out.report(Report::TooLate { id: id.clone() }),
        }
        self.settle(now);
    }

    fn clear_removed(&mut self, id: &ContainerId, container: &Container) {
        // The container is gone, so all of its stop requests are answered.
        let kills = container.kills.iter().map(|(request, _)| *request);
        let answers = container.answers.iter().map(|answer| answer.request);
        let pending = container.pending_signals.iter();
        let pending = pending.filter_map(|order| order.request);
        for request in answers.chain(kills).chain(pending) {
            self.out.answer_kill(request);
        }
        for request in container.updates.waiting() {
            let refusal = Refusal::NotFound { id: id.clone() };
            self.out.push(Action::RefuseUpdate { request, refusal });
        }
        if container.kind == ContainerKind::Workload
            && !container.state.is_exited()
            && !container.is_of_next_run
        {
            self.undo(container);
        }
        // Usually the exit of the process answers an open Start. But a container that is still to
        // be restored from a checkpoint has no process. So its Start is answered here.
        if let Some(blocked) = container.state.as_blocked() {
            let refusal = Refusal::EndedBeforeStart {
                name: container.name.clone(),
            };
            self.out.answer_start(id, blocked.request, Err(refusal));
        }
        if self.containers.is_empty() {
            let out = std::mem::take(&mut self.out);
            *self = Pod {
                out,
                // The sandbox stays dead: containers created for it later are still refused.
                sandbox_is_gone: self.sandbox_is_gone,
                ..Pod::default()
            };
        }
    }

    /// Records the removal of a container that has not exited, usually because its creation failed.
    /// If an earlier container of this name is alive, that container becomes the current one again.
    /// Otherwise the history records a failure for this name.
    fn undo(&mut self, container: &Container) {
        let (name, number) = (&container.name, container.number);
        if let Some(heir) = self.current(name).filter(|heir| heir.state.is_alive()) {
            let (is_started, heir) = (heir.is_started_sidecar(), heir.number);
            self.history.inherit(name, number, heir);
            // While a newer container with the same name existed, the history ignored the startup
            // of `heir`. The newer container is now removed, so the startup is recorded here.
            if is_started {
                self.history.record_start(name, heir);
            }
            return;
        }
        // A container that could not be created counts as failed. If the caller restarts failed
        // containers, it tries again.
        let fatal = self
            .fatal_end(container, NEVER_CREATED)
            .filter(|_| !self.restart_policy_of(name).restarts_failed());
        let end = End {
            at: self.now,
            code: NEVER_CREATED,
            has_run: false,
            asked: false,
            was_signaled: false,
            caller_restarts: false,
        };
        self.history.record_end(name, number, end, fatal);
    }

    /// Records that container `number` of this name belongs to the current run. From now on a name
    /// that was optional is like any other: containers wait for it, and it has its turn in a
    /// termination.
    pub(super) fn came(&mut self, name: &str, number: u64) {
        self.history.record_creation(name, number);
        if let Some(plan) = &mut self.plan {
            plan.mark_present(name);
        }
    }

    /// Adopts the plan of the first container for the pod, and compares every later plan with it. A
    /// different plan is logged if the pod has a sandbox container, and refused otherwise.
    fn adopt(&mut self, name: &str, plan: Plan) -> Result<(), Refusal> {
        match &self.plan {
            None => self.plan = Some(plan),
            Some(own) if own.is_written_as(&plan) => {}
            // containerd reads the pod's annotations anew for every container. They may have been
            // edited since the sandbox was created, but the plan of the sandbox stays.
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

impl ContainerContext<'_> {
    fn apply_arrival(&mut self, outcome: Result<(), InvalidTransition>, arrival: Arrival) {
        if self.ok_or_log(outcome).is_none() {
            return;
        }
        match arrival {
            Arrival::InTime if self.container.kind == ContainerKind::Sandbox => {
                *self.sandbox_is_gone = false;
            }
            Arrival::InTime => {}
            Arrival::ForTheNextRun => self.container.is_of_next_run = true,
            Arrival::TooLate => self.end(STOPPED, None),
        }
    }
}
