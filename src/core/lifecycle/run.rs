//! Runs of a pod in one sandbox, and which of them a created container belongs to.
//!
//! A run ends with a termination, and another run may follow. The shim may infer a termination from
//! stop requests. If the caller then creates a container, the inference was a mistake, and the run
//! goes on. A termination that the shim has decided goes on even if the caller creates more
//! containers. Such a container belongs to the termination (for example a sidecar of a finished
//! Job) or to the next run. A caller may also restart all containers of a living pod in its sandbox
//! (Kubernetes' RestartAllContainers, KEP-5532).

use crate::plan::{ContainerKind, Role};

use super::Pod;
use super::action::Cause;
use super::container::{Container, HookState, TerminationWork};
use super::history::{ExitReason, ReportedExit};
use super::report::Report;
use super::role_policy::RolePolicy;
use super::termination::Termination;

/// The run to which a newly created container belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Run {
    /// The current run, or its termination.
    Current,
    /// The run after the termination. When that run begins, [`Pod::start_over`] decides if results
    /// of the current run still count, for example finished init containers.
    Next,
    /// The run after the termination, in which the caller creates the whole pod again.
    NextFromTheStart,
}

impl Pod {
    /// Drops an inferred termination, if there is one, because the caller creates the container
    /// `new_container`: kubelet creates no containers in a pod that it ends. Hooks and defer
    /// containers run again in the next termination. If the pod has no sandbox container and has
    /// ended, a new pod begins instead. A decided termination stays.
    pub(super) fn disprove_termination(&mut self, new_container: &str) {
        let is_inferred = |termination: &Termination| !termination.cause().is_decided();
        if !self.termination.as_ref().is_some_and(is_inferred) {
            return;
        }
        let was_over = self.termination.take().is_some_and(|it| it.is_over());
        let mut containers = self.containers.values();
        let is_alive = containers.any(|it| it.is_ordered() && it.state.is_alive());
        // Without a sandbox container, the new container begins a new pod if the old pod has ended.
        if was_over && !is_alive && !self.has_sandbox() {
            return self.note_restart_of_all(new_container);
        }
        self.history.forget_defers();
        for container in self.containers.values_mut() {
            if let Some(request) = &mut container.request {
                request.disprove();
            }
            if container.termination_work == TerminationWork::Hook(HookState::Over) {
                container.termination_work = TerminationWork::Hook(HookState::Pending);
            }
        }
        self.out.report(Report::NotTerminating {
            disproved_by: new_container.to_owned(),
        });
    }

    pub(super) fn run_of(&self, name: &str, role: Role) -> Run {
        let Some(termination) = &self.termination else {
            // This container has failed. The pod will terminate because of it, but still waits
            // until the caller has created the defer containers. If the failed container is created
            // again, it belongs to the next run.
            return match self.awaits_defers() && self.history.is_fatal(name) {
                true => Run::Next,
                false => Run::Current,
            };
        };
        let (policy, is_over) = (RolePolicy::of(role), termination.is_over());
        if *termination.cause() == Cause::Completed && !termination.is_by_hand() {
            return self.run_after_completion(name, policy, termination);
        }
        let is_next = match policy.defer_turn() {
            Some(_) => is_over && !self.history.was_deferred(name),
            // A container that is created while a person stops the pod does not belong to the next
            // run: it is stopped, too.
            None => is_over || !termination.is_by_hand(),
        };
        match is_next {
            true if self.shows_a_restart_of_all(name, policy) => Run::NextFromTheStart,
            true => Run::Next,
            false => Run::Current,
        }
    }

    /// True if a Create during or after a termination proves that the caller restarts the whole
    /// pod. This is so for an init container or sidecar whose exit was reported, if neither its
    /// restart policy nor its setting `caller-restarts` explains the Create.
    fn shows_a_restart_of_all(&self, name: &str, policy: RolePolicy) -> bool {
        let exit = self.history.of(name).and_then(|past| past.reported);
        policy.ready_when.is_some() && exit.is_some_and(|exit| !self.comes_again(name, exit))
    }

    /// Returns the run of a container that is created during or after a termination for
    /// [`Cause::Completed`]. If the caller restarts the whole pod, every container belongs to the
    /// next run. Otherwise only two kinds of containers belong to the next run: apps, and
    /// containers that the caller alone starts and stops. All others belong to the current run.
    fn run_after_completion(
        &self,
        name: &str,
        policy: RolePolicy,
        termination: &Termination,
    ) -> Run {
        // A termination does not apply to containers that the caller alone starts and stops.
        let is_no_part = policy.is_work || policy.step.is_none();
        if termination.is_followed_from_the_start() || is_no_part {
            return Run::Next;
        }
        match self.shows_a_restart_of_all(name, policy) {
            true => Run::NextFromTheStart,
            // All other containers belong to the current run, even defer containers. If a defer
            // container is created again after its turn, it is ended with code 0.
            false => Run::Current,
        }
    }

    /// True if the caller creates a container of this name again after the exit `exit`, by the
    /// restart policy or by the container's setting `caller-restarts`.
    pub(super) fn comes_again(&self, name: &str, exit: ReportedExit) -> bool {
        let plan = self.plan.as_ref();
        plan.is_some_and(|plan| plan.is_created_again(name, exit.code))
    }

    /// True if a Create of this name shows that the caller restarts the whole pod in its sandbox
    /// (KEP-5532). All containers that usher orders must have exited, and [their exits must fit
    /// this restart](super::history::History::is_restart_of_all).
    pub(super) fn is_restart_of_all(&self, name: &str) -> bool {
        let is_ordered = |name: &str| {
            let plan = self.plan.as_ref();
            plan.is_some_and(|plan| RolePolicy::of(plan.role(name)).is_ordered)
        };
        let mut containers = self.containers.values();
        let lives = |it: &Container| it.is_ordered() && !it.state.is_exited();
        self.has_orders()
            && !containers.any(lives)
            && self.history.is_restart_of_all(name, is_ordered)
    }

    /// Records that the caller restarts the whole pod, as its Create of the container `name` shows.
    /// The next run begins at once or, in a termination, when the termination is over. When it
    /// begins, the results of the last run are forgotten.
    pub(super) fn note_restart_of_all(&mut self, name: &str) {
        match &mut self.termination {
            Some(termination) => termination.follow_from_the_start(),
            None => {
                self.forget_last_run();
                self.was_restarted = true;
                self.out.report(Report::StartsOver {
                    with: name.to_owned(),
                    from_the_start: true,
                });
            }
        }
    }

    /// Forgets the results of all containers, for a run in which the caller creates the whole pod
    /// again. Containers that still exist and have not exited belong to the new run.
    pub(super) fn forget_last_run(&mut self) {
        self.history.start_over(true);
        self.has_released = false;
        if let Some(plan) = &mut self.plan {
            plan.forget_who_came();
        }
        // Containers that were created in the last run but never started belong to the new run,
        // too: the caller may still start them.
        let is_there = |container: &&Container| {
            container.kind == ContainerKind::Workload
                && !container.is_of_next_run
                && !container.state.is_exited()
        };
        let there = self.containers.values().filter(is_there);
        let there = there.map(|it| (it.number, it.name.clone())).collect();
        self.note_all(there);
    }

    /// Moves the containers created for the next run to the current one. Called when the next run
    /// begins, and when a termination is to stop these containers with all others.
    pub(super) fn move_next_run_to_current(&mut self) {
        let containers = self.containers.values_mut();
        let next = containers.filter(|container| container.is_of_next_run);
        let next = next
            .map(|container| {
                container.is_of_next_run = false;
                (container.number, container.name.clone())
            })
            .collect();
        self.note_all(next);
    }

    /// Records containers as created in the current run, in the order of their creation.
    fn note_all(&mut self, mut containers: Vec<(u64, String)>) {
        containers.sort_unstable();
        for (number, name) in containers {
            self.came(&name, number);
        }
    }

    /// True if, by the container's setting `caller-restarts`, the caller creates the container
    /// again after an exit with this code. Ignores the restart policy.
    pub(super) fn caller_restarts(&self, name: &str, code: u32) -> bool {
        let plan = self.plan.as_ref();
        plan.is_some_and(|plan| plan.container(name).caller_restarts.contains(code))
    }
}

impl Container {
    /// Classifies the container's exit before the exit is recorded. The shim needs the classes to
    /// detect a restart of the whole pod, for which kubelet gives each container 2 s at most. The
    /// first class that fits counts, even for the sandbox:
    ///
    /// - `StoppedShortly`: the caller's stop signal left 2 s at most and followed no preStop
    ///   handler. Or the container got no request, but the shim stopped it, and `termination` was
    ///   inferred from requests that were SIGKILL or left 2 s at most.
    /// - `Stopped`: the container got any other request, for example SIGKILL alone. Or it was
    ///   stopped without a request, but not for a failed probe or postStart handler. Or it is the
    ///   sandbox.
    /// - `Itself`: any other exit, also after a stop for a failed probe or postStart handler.
    pub(super) fn exit_reason(&self, termination: Option<&Termination>) -> ExitReason {
        let stop = self.state.stop();
        // The termination was inferred from stop requests that left 2 s at most, so this container
        // got 2 s at most, too.
        let is_of_short_end = termination.is_some_and(Termination::is_inferred_and_forced);
        match self.request {
            None if is_of_short_end && stop.since().is_some() => ExitReason::StoppedShortly,
            None if is_of_short_end && self.state.is_ending() => ExitReason::StoppedShortly,
            Some(request) if request.is_short_stop() => ExitReason::StoppedShortly,
            Some(_) => ExitReason::Stopped,
            None if stop.since().is_some() && !stop.is_for_failure() => ExitReason::Stopped,
            None if self.state.is_ending() || self.kind == ContainerKind::Sandbox => {
                ExitReason::Stopped
            }
            None => ExitReason::Itself,
        }
    }
}
