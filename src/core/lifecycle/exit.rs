//! Exits of processes: their consequences, and the code reported to the caller.

use std::time::Duration;

use crate::plan::{ContainerKind, SidecarExitCode};
use crate::process::ExitStatus;

use super::Pod;
use super::action::{Action, Cause, ContainerId, Refusal, SignalReason};
use super::container::Container;
use super::effects::ContainerContext;
use super::history::End;
use super::report::Report;
use super::state::{FinalExit, Stop};
use super::stop::STOPPED;
use super::task::READ_WITHIN;
use super::termination::Termination;
use super::time::Time;

/// The consequence of an exit of a container's process.
pub(super) enum Exit {
    /// The process exited while its program was being executed. TaskStart has to be published
    /// before TaskExit, so the shim waits for the outcome of the execution.
    Early(ExitStatus),
    /// The exit needs no reaction: the creation of the container is being undone, or the container
    /// has no process at present. For example, the exit comes from a failed restart in place.
    OfNoProcess,
    /// The program is to be restarted in place; it ran for this duration.
    Restarts(Duration, ExitStatus),
    ForGood(Box<Last>),
}

/// Everything to record and to report after the final exit of a container.
pub(super) struct Last {
    /// The exit status and stop state of the container's program, if the program was executed.
    program: Option<(ExitStatus, Stop)>,
    /// The entry for the history. The second value is the reason for the pod's end if this exit
    /// ends the pod. There is no entry for the sandbox, or for a container of the next run.
    end: Option<(End, Option<Cause>)>,
    /// The exit is withheld from the caller for now.
    is_withheld: bool,
    /// The code reported to the caller.
    code: u32,
    /// The answer to a pending Start.
    refusal: Refusal,
}

impl Pod {
    /// Records that the container's init process has exited. If the container has its own PID
    /// namespace, goes on with [`handle_container_exited`](Pod::handle_container_exited). Otherwise
    /// the driver kills the processes that init has left behind ([`Action::KillRest`]) before the
    /// exit is reported. Later kills could hit a new container, because the caller may use the same
    /// id again after its Delete.
    pub fn handle_init_exited(&mut self, now: Time, id: &ContainerId, status: ExitStatus) {
        let leaves_rest =
            |it: &Container| it.state.freezer().is_some() && !it.bundle.has_own_pid_namespace;
        if !self.known(id).is_ok_and(leaves_rest) {
            return self.handle_container_exited(now, id, status);
        }
        self.now = now;
        self.with_container(id, |context| {
            context.container.state.mark_reaped();
            let id = context.id.clone();
            context.out.push(Action::KillRest { id, status });
        });
    }

    /// Records that the whole container has exited: its init process, with `status`, and all
    /// processes that init left behind. Then the shim reports the exit to the caller, withholds it,
    /// or restarts the program in place.
    pub fn handle_container_exited(&mut self, now: Time, id: &ContainerId, status: ExitStatus) {
        self.now = now;
        self.with_container(id, |context| context.container.state.mark_reaped());
        self.handle_exit(id, Some(status));
        // Before a restart in place, the runtime state of the last process has to be cleaned up. In
        // all other cases the cleanup comes last, after everything that waits for this exit.
        let is_in_the_way = self.will_run_again(id);
        if is_in_the_way {
            self.plan_cleanup(id);
        }
        self.settle(now);
        if !is_in_the_way {
            self.plan_cleanup(id);
            self.settle(now);
        }
    }

    /// Handles an exit of the container's process. Does nothing if `status` is `None`, which means
    /// that no exit has arrived yet.
    pub(super) fn handle_exit(&mut self, id: &ContainerId, status: Option<ExitStatus>) {
        if let Some(status) = status {
            self.on_event(
                id,
                |pod, it| pod.exit_of(it, status),
                |context, exit| context.handle_exit(exit),
            );
        }
    }
}

impl Pod {
    fn exit_of(&self, container: &Container, status: ExitStatus) -> Exit {
        let state = &container.state;
        if state.is_being_executed() {
            return Exit::Early(status);
        }
        if !state.has_process() {
            return Exit::OfNoProcess;
        }
        let running = state.as_running();
        let is_run_again = |stop| {
            self.restarts_in_place(container, status, stop)
                || self.is_run_again(container, status, stop)
        };
        if let Some(running) = running.filter(|running| is_run_again(running.stop)) {
            return Exit::Restarts(self.now.since(running.since), status);
        }
        let program = running.map(|running| (status, running.stop));
        let is_hidden = program.is_some() && self.is_to_be_withheld(container, status);
        // If the container is being stopped, its exit is not withheld, because the caller waits for
        // it.
        let is_withheld = is_hidden && !container.is_being_stopped();
        let code = match (program, container.defer_turn()) {
            (Some(_), _) if is_hidden => self.masked_code(container, status),
            (Some((_, stop)), _) => self.reported_code(container, status, stop),
            (None, Some(_)) => self.code_of_defer(status),
            (None, None) => status.code(),
        };
        let code = state.ending_code().unwrap_or(code);
        let name = container.name.clone();
        let decided = self.termination.as_ref().map(Termination::cause);
        Exit::ForGood(Box::new(Last {
            program,
            end: self.end_of_container(container, program, code),
            is_withheld,
            code,
            refusal: match decided.filter(|cause| cause.is_decided()).cloned() {
                Some(because) => Refusal::Terminating { name, because },
                None => Refusal::EndedBeforeStart { name },
            },
        }))
    }

    /// The entry for the history when a container has ended, and the reason for the pod's end if
    /// this exit ends the pod. `None` for the sandbox, and for a container of the next run.
    /// `reported` is the reported code of a container whose program was never executed.
    fn end_of_container(
        &self,
        container: &Container,
        program: Option<(ExitStatus, Stop)>,
        reported: u32,
    ) -> Option<(End, Option<Cause>)> {
        // If the container belongs to the next run, its exit does not matter for the current run.
        if container.kind != ContainerKind::Workload || container.is_of_next_run {
            return None;
        }
        let stop = program.map(|(_, stop)| stop).unwrap_or_default();
        let was_stopped = stop.is_delivered() && !stop.is_for_failure();
        let code = program.map_or(reported, |(status, _)| status.code());
        let fatal = self.fatal_end(container, code);
        // The failure of an essential container ends the pod at once, whatever the setting
        // `caller-restarts`.
        let is_essential = matches!(fatal, Some(Cause::EssentialFailed { .. }));
        let end = End {
            at: self.now,
            code,
            has_run: program.is_some(),
            asked: container.request.is_some() || was_stopped,
            was_signaled: was_stopped,
            caller_restarts: !is_essential && self.caller_restarts(&container.name, code),
        };
        Some((end, fatal))
    }

    /// The code reported to the caller for an executed program: its own code, with these
    /// exceptions. The settings `sidecar-exit-code` (KEP-753 draft) and `defer-exit-code` may hide
    /// the code of a stopped sidecar or of a defer container. If the pod's next sandbox needs the
    /// container, a 0 may become 143, because the caller does not create a container again after a
    /// 0 under `OnFailure` ([`Pod::code_in_place_of_success`]).
    pub(super) fn reported_code(
        &self,
        container: &Container,
        status: ExitStatus,
        stop: Stop,
    ) -> u32 {
        // A container that was stopped because a probe or postStart handler failed counts as
        // failed. But if its turn to stop in a termination has come, the container counts as
        // stopped.
        let has_failed = stop.is_for_failure() && !self.turn_has_come(container);
        let was_stopped = stop.since().is_some() && !has_failed;
        let was_stopped_by_us = was_stopped && stop.why() != Some(SignalReason::PassedOn);
        match container.defer_turn() {
            Some(_) => self.code_of_defer(status),
            None if container.role_policy().may_hide_failure && was_stopped_by_us => {
                self.masked_code(container, status)
            }
            // A container that is needed again in the next sandbox must not report success in this
            // sandbox.
            None if status == ExitStatus::Code(0)
                && self.is_needed_in_next_sandbox(container, stop) =>
            {
                self.code_in_place_of_success()
            }
            None => status.code(),
        }
    }

    /// True if the pod's next sandbox may need the container. The shim then replaces an exit code
    /// of 0 by the [code in place of success](Pod::code_in_place_of_success). For a sidecar, the
    /// answer depends on why the pod terminates, and on whether and why the sidecar was stopped. A
    /// container with another role is needed only if it was being stopped after the failure of an
    /// essential container. `stop` is the progress of the container's stop before its exit.
    fn is_needed_in_next_sandbox(&self, container: &Container, stop: Stop) -> bool {
        let is_helper = container.role_policy().is_helper;
        match self.termination.as_ref().map(Termination::cause) {
            // The shim stopped the sidecar because it had failed. So an exit code of 0 is no
            // success.
            _ if is_helper && stop.is_for_failure() && !self.turn_has_come(container) => true,
            Some(Cause::EssentialFailed { .. }) => is_helper || stop.since().is_some(),
            // The shim may have inferred this termination by mistake. So a sidecar that exited
            // without a stop may be needed again.
            Some(Cause::Inferred) => is_helper && stop.since().is_none(),
            Some(cause) => cause.is_followed_by_another() && is_helper,
            // The container was asked to stop, and exited by itself before its signal was
            // delivered.
            None => is_helper && container.is_asked(),
        }
    }

    /// The code reported for a sidecar that the shim has stopped, or has ended before its program
    /// was executed, and for any container whose exit was to be hidden. For a defer container, the
    /// same as [`code_of_defer`](Pod::code_of_defer). For other containers, the [code in place of
    /// success](Pod::code_in_place_of_success) replaces a 0. It also replaces the failure of a
    /// sidecar if the setting `sidecar-exit-code` hides this failure. Any other code is reported
    /// unchanged.
    pub(super) fn masked_code(&self, container: &Container, status: ExitStatus) -> u32 {
        if container.defer_turn().is_some() {
            return self.code_of_defer(status);
        }
        let policy = self
            .plan
            .as_ref()
            .map(|plan| plan.settings().sidecar_exit_code);
        let is_hidden = match policy {
            _ if !container.role_policy().may_hide_failure => false,
            Some(SidecarExitCode::Mask) => true,
            Some(SidecarExitCode::Signal) => matches!(status, ExitStatus::Signal(_)),
            Some(SidecarExitCode::Propagate) | None => false,
        };
        match is_hidden || status == ExitStatus::Code(0) {
            true => self.code_in_place_of_success(),
            false => status.code(),
        }
    }

    /// The code reported in place of a success: 143 if the restart policy is `OnFailure` and the
    /// pod's next sandbox needs the container, otherwise 0. The next sandbox needs the container if
    /// the run is not complete, or if an essential container has failed. After a 0 under
    /// `OnFailure`, the caller would not create the container there.
    pub(super) fn code_in_place_of_success(&self) -> u32 {
        let is_run_again = self
            .plan
            .as_ref()
            .is_some_and(|plan| plan.settings().restart_policy.leaves_out_succeeded());
        let cause = self.termination.as_ref().map(Termination::cause);
        // The caller starts the apps again after any exit code.
        let has_failed = matches!(cause, Some(Cause::EssentialFailed { .. }));
        match is_run_again && (has_failed || !self.is_complete()) {
            true => STOPPED,
            false => 0,
        }
    }
}

impl ContainerContext<'_> {
    fn handle_exit(&mut self, exit: Exit) {
        match exit {
            Exit::Early(status) => {
                let outcome = self.container.state.record_early_exit(status);
                self.ok_or_log(outcome);
            }
            Exit::OfNoProcess => {}
            Exit::Restarts(ran, status) => self.back_off(ran, status),
            Exit::ForGood(last) => self.end_for_good(*last),
        }
    }

    fn end_for_good(&mut self, last: Last) {
        if self.container.kind == ContainerKind::Sandbox {
            *self.sandbox_is_gone = true;
            // The death of the sandbox confirms an inferred termination.
            if let Some(termination) = &mut self.termination {
                termination.decide(Cause::SandboxDied, termination.deadline(), self.now);
            }
        }
        if let Some((status, stop)) = last.program {
            self.note_use(status, stop);
        }
        if let Some((end, fatal)) = last.end {
            let (name, number) = (&self.container.name, self.container.number);
            self.history.record_end(name, number, end, fatal);
        }
        if last.is_withheld {
            let outcome = self.container.state.withhold(self.now);
            self.ok_or_log(outcome);
            return;
        }
        let reason = self.container.exit_reason(self.termination.as_deref());
        let exit = self.final_exit(last.code);
        let outcome = self.container.state.exit(exit);
        let Some(start) = self.ok_or_log(outcome) else {
            return;
        };
        let (name, number) = (&self.container.name, self.container.number);
        self.history
            .record_exit((name, number), self.now, last.code, reason);
        if let Some(request) = start {
            self.out.answer_start(self.id, request, Err(last.refusal));
        }
        self.out.end_output(self.id, last.code);
    }

    /// Returns the final exit with this code. The exit is published when the output was read, or
    /// after a limited time, which begins now.
    pub(super) fn final_exit(&self, code: u32) -> FinalExit {
        FinalExit {
            code,
            until: self.now.after(READ_WITHIN),
        }
    }

    /// Logs the end of a defer container's turn. Notes the time that the container's stop or turn
    /// has taken, for the log of the termination step.
    fn note_use(&mut self, status: ExitStatus, stop: Stop) {
        let name = &self.container.name;
        let turn = self.container.turn_began();
        if let Some(began) = turn {
            self.out.report(Report::DeferOver {
                name: name.clone(),
                code: status.code(),
                took: self.now.since(began),
            });
        }
        if let (Some(termination), Some(began)) = (&mut self.termination, turn.or(stop.since())) {
            termination.note_used(name, began, self.now);
        }
    }
}
