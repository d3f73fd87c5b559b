//! Exits: what a container's end means, and the code that the caller is told.

use crate::plan::{ContainerKind, SidecarExitCode};
use crate::process::ExitStatus;

use super::Pod;
use super::action::{Cause, ContainerId, Refusal, Why};
use super::container::Container;
use super::history::End;
use super::life::{Running, Stop};
use super::report::Report;
use super::stop::STOPPED;
use super::termination::Termination;
use super::time::Time;

impl Pod {
    /// The container's init process is gone.
    pub fn handle_exit(&mut self, now: Time, id: &ContainerId, status: ExitStatus) {
        self.now = now;
        if let Some(container) = self.containers.get_mut(id)
            // TaskStart has to be published before TaskExit, so the news of the release come first.
            && !container.life.exits_early(status)
            // Or it is that of a process which a failed restart has left behind.
            && !container.life.is_between_lives()
            && !container.life.is_exited()
        {
            self.exited(id, status);
        }
        self.settle(now);
    }

    pub(super) fn exited(&mut self, id: &ContainerId, status: ExitStatus) {
        let Some(container) = self.containers.get(id) else {
            return;
        };
        let running = container.life.as_running().cloned();
        if container.kind == ContainerKind::Sandbox {
            self.sandbox_is_gone = true;
            // What was a hypothesis is none any more.
            let now = self.now;
            if let Some(termination) = &mut self.termination {
                termination.decide(Cause::SandboxDied, termination.deadline(), now);
            }
        }
        match running {
            Some(running) => self.program_ended(id, &running, status),
            None => self.parked_ended(id, status),
        }
    }

    /// A container has ended whose program was never executed.
    fn parked_ended(&mut self, id: &ContainerId, status: ExitStatus) {
        let Some(mut hand) = self.hand(id) else {
            return;
        };
        let name = hand.container.name.clone();
        let outcome = hand.container.life.exited();
        let Some(open) = hand.noted(outcome) else {
            return;
        };
        if let Some(request) = open.start {
            let refusal = match self.termination.as_ref().map(Termination::cause) {
                Some(because) if because.is_decided() => Refusal::Terminating {
                    name,
                    because: because.clone(),
                },
                _ => Refusal::EndedBeforeStart { name },
            };
            self.out.answer_start(id, request, Err(refusal));
        }
        if let Some(container) = self.containers.get(id) {
            let code = match (open.code, container.defer_turn()) {
                (Some(code), _) => code,
                (None, Some(_)) => self.code_of_defer(status),
                (None, None) => status.code(),
            };
            self.end_of_life(id, code, false, Stop::Untold);
            self.out.report_exit(id, code);
        }
    }

    /// A program has ended: is that the end of its container?
    fn program_ended(&mut self, id: &ContainerId, running: &Running, status: ExitStatus) {
        let ran = self.now.since(running.since);
        let Some(container) = self.containers.get(id) else {
            return;
        };
        if self.restarts_in_place(container, status, running.stop)
            || self.is_run_again(container, status, running.stop)
        {
            return self.back_off(id, ran, status);
        }
        let is_withheld = self.is_to_be_withheld(container, status);
        self.note_end(id, running.stop, status);
        // Before anything is told, for what is told may depend on it.
        self.end_of_life(id, status.code(), true, running.stop);
        if let Some(mut hand) = self.hand(id) {
            if is_withheld {
                let outcome = hand.container.life.withhold(hand.now);
                hand.noted(outcome);
                return;
            }
            let outcome = hand.container.life.exited();
            hand.noted(outcome);
        }
        if let Some(container) = self.containers.get(id) {
            let code = self.reported_code(container, status, running.stop);
            self.out.report_exit(id, code);
        }
    }

    /// Who used how much of a termination's time is told when its step is over.
    fn note_end(&mut self, id: &ContainerId, stop: Stop, status: ExitStatus) {
        let Some(container) = self.containers.get(id) else {
            return;
        };
        let name = container.name.clone();
        let began = container.turn_began().or(stop.since());
        if let Some(began) = container.turn_began() {
            self.out.report(Report::DeferOver {
                name: name.clone(),
                code: status.code(),
                took: self.now.since(began),
            });
        }
        self.note_used(&name, began);
    }

    /// Remembers the end of a container, and what it means to the pod.
    fn end_of_life(&mut self, id: &ContainerId, code: u32, has_run: bool, stop: Stop) {
        let Some(container) = self.containers.get(id) else {
            return;
        };
        // What is to come after the end has not begun.
        if container.kind != ContainerKind::Workload || container.is_of_next_run {
            return;
        }
        let told = stop.is_told() && !stop.is_for_failure();
        let end = End {
            at: self.now,
            code,
            has_run,
            asked: container.request.is_some() || told,
            told,
        };
        let fatal = self.fatal_end(container, code);
        let number = container.number;
        self.history.ended(&container.name, number, end, fatal);
    }

    /// The code the caller is told (KEP-753 draft: a sidecar that was told to go has not failed).
    fn reported_code(&self, container: &Container, status: ExitStatus, stop: Stop) -> u32 {
        // One that has failed, and whose turn came before it could come back, is told to go with that.
        let has_failed = stop.is_for_failure() && !self.turn_has_come(container);
        let was_told = stop.since().is_some() && !has_failed;
        let was_told_by_us = was_told && stop.why() != Some(Why::PassedOn);
        match container.defer_turn() {
            Some(_) => self.code_of_defer(status),
            None if container.duty().is_masked && was_told_by_us => {
                self.code_of_one_told_to_go(container, status)
            }
            // What is needed in the next sandbox has not succeeded in this one.
            None if status == ExitStatus::Code(0) && self.is_needed_again(container, stop) => {
                self.code_of_no_failure()
            }
            None => status.code(),
        }
    }

    /// Whether its caller starts the pod again with this container: a helper in any case, whatever else
    /// there is where the pod has failed as a whole.
    fn is_needed_again(&self, container: &Container, stop: Stop) -> bool {
        let is_helper = container.duty().is_helper;
        match self.termination.as_ref().map(Termination::cause) {
            // What was stopped for a failure has not succeeded.
            _ if is_helper && stop.is_for_failure() && !self.turn_has_come(container) => true,
            Some(Cause::EssentialFailed { .. }) => is_helper || stop.since().is_some(),
            Some(cause) => cause.is_followed_by_another() && is_helper,
            None => false,
        }
    }

    /// The code that is told of a container that ended with `status` because it was told to.
    pub(super) fn code_of_one_told_to_go(&self, container: &Container, status: ExitStatus) -> u32 {
        if container.defer_turn().is_some() {
            return self.code_of_defer(status);
        }
        let policy = self
            .plan
            .as_ref()
            .map(|plan| plan.settings().sidecar_exit_code);
        let is_hidden = match policy {
            _ if !container.duty().is_masked => false,
            Some(SidecarExitCode::Mask) => true,
            Some(SidecarExitCode::Signal) => matches!(status, ExitStatus::Signal(_)),
            Some(SidecarExitCode::Propagate) | None => false,
        };
        match is_hidden || status == ExitStatus::Code(0) {
            true => self.code_of_no_failure(),
            false => status.code(),
        }
    }

    /// Kubelet leaves out of the next sandbox of a pod under `OnFailure` what has ended with 0, though
    /// it is needed there, unless the pod has done what it is there for.
    pub(super) fn code_of_no_failure(&self) -> u32 {
        let is_run_again = self
            .plan
            .as_ref()
            .is_some_and(|plan| plan.settings().restart_policy.leaves_out_succeeded());
        let cause = self.termination.as_ref().map(Termination::cause);
        // Whatever the apps have ended with, they are started again.
        let has_failed = matches!(cause, Some(Cause::EssentialFailed { .. }));
        match is_run_again && (has_failed || !self.is_complete()) {
            true => STOPPED,
            false => 0,
        }
    }
}
