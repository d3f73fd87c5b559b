//! Exits: what a container's end means, and the code that the caller is told.

use std::time::Duration;

use crate::plan::{ContainerKind, RestartPolicy, Role, SidecarExitCode};
use crate::process::ExitStatus;

use super::Pod;
use super::action::{Action, ContainerId, Refusal, Report};
use super::container::{Blocked, Container, State};
use super::history::End;
use super::stop::STOPPED;
use super::termination::Termination;
use super::time::Time;

impl Pod {
    /// The container's init process is gone.
    pub fn handle_exit(&mut self, now: Time, id: &ContainerId, status: ExitStatus) {
        match self
            .containers
            .get_mut(id)
            .map(|container| &mut container.state)
        {
            // TaskStart has to be published before TaskExit, so the news of the release come first.
            Some(State::Releasing { exit, .. } | State::Restarting { exit, .. }) => {
                *exit = Some(status);
            }
            // Of a process that a failed restart has left behind.
            Some(State::BackingOff { .. } | State::Withheld { .. } | State::Exited) | None => {}
            Some(_) => self.exited(now, id, status),
        }
        self.settle(now);
    }

    pub(super) fn exited(&mut self, now: Time, id: &ContainerId, status: ExitStatus) {
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let name = container.name.clone();
        self.sandbox_is_gone |= container.kind == ContainerKind::Sandbox;
        match std::mem::replace(&mut container.state, State::Exited) {
            State::Running(running) => {
                return self.program_ended(now, id, now.since(running.since), status);
            }
            State::Blocked(Blocked { request, .. }) => {
                let refusal = match self.termination.as_ref().map(Termination::cause) {
                    Some(because) if because.is_decided() => Refusal::Terminating {
                        name,
                        because: because.clone(),
                    },
                    _ => Refusal::EndedBeforeStart { name },
                };
                self.answer_start(id, request, Err(refusal));
            }
            _ => {}
        }
        if let Some(container) = self.containers.get(id) {
            let code = self.reported_code(container, status, now);
            self.end_of_life(now, id, code, false);
            self.report_exit(id, code);
        }
    }

    /// Who used how much of a termination's time is told when its step is over.
    fn note_end(&mut self, now: Time, id: &ContainerId, status: ExitStatus) {
        let Some(container) = self.containers.get(id) else {
            return;
        };
        let name = container.name.clone();
        let began = container.turn_began.or(container.stopping.told_at);
        if let Some(began) = container.turn_began {
            self.report(Report::DeferOver {
                name: name.clone(),
                code: status.code(),
                took: now.since(began),
            });
        }
        self.note_used(&name, began, now);
    }

    /// A program has ended after it had run for `ran`: is that the end of its container?
    fn program_ended(&mut self, now: Time, id: &ContainerId, ran: Duration, status: ExitStatus) {
        let Some(container) = self.containers.get(id) else {
            return;
        };
        if self.restarts_in_place(container, status) || self.is_run_again(container, status, now) {
            return self.back_off(id, ran, status, now);
        }
        let is_withheld = self.is_to_be_withheld(container, status);
        self.note_end(now, id, status);
        // Before anything is told, for what is told may depend on it.
        self.end_of_life(now, id, status.code(), true);
        if is_withheld {
            if let Some(container) = self.containers.get_mut(id) {
                container.state = State::Withheld { since: now };
            }
            return;
        }
        if let Some(code) = self
            .containers
            .get(id)
            .map(|container| self.reported_code(container, status, now))
        {
            self.report_exit(id, code);
        }
    }

    /// Remembers the end of a container, and what it means to the pod.
    fn end_of_life(&mut self, now: Time, id: &ContainerId, code: u32, has_run: bool) {
        let Some(container) = self.containers.get(id) else {
            return;
        };
        if container.kind != ContainerKind::Workload {
            return;
        }
        let end = End {
            at: now,
            code,
            has_run,
            asked: container.was_asked_or_told(),
        };
        let fatal = self.fatal_end(container, code);
        let number = container.number;
        self.history.ended(&container.name, number, end, fatal);
    }

    pub(super) fn report_exit(&mut self, id: &ContainerId, code: u32) {
        self.actions.push_back(Action::ReportExit {
            id: id.clone(),
            code,
        });
    }

    /// The code the caller is told (KEP-753 draft: a sidecar that was told to go has not failed).
    fn reported_code(&self, container: &Container, status: ExitStatus, now: Time) -> u32 {
        if let Some(code) = container.ends_as {
            return code;
        }
        if container.defer_turn().is_some() {
            return self.code_of_defer(container, status, now);
        }
        let stopping = &container.stopping;
        let told_to_go = container.role == Role::Sidecar
            && (stopping.signalled || stopping.told_at.is_some())
            && !container.startup_failed;
        match told_to_go {
            true => self.code_of_one_told_to_go(container, status, now),
            false => status.code(),
        }
    }

    /// The code that is told of a container that ended with `status` because it was told to.
    pub(super) fn code_of_one_told_to_go(
        &self,
        container: &Container,
        status: ExitStatus,
        now: Time,
    ) -> u32 {
        if container.defer_turn().is_some() {
            return self.code_of_defer(container, status, now);
        }
        let policy = self
            .plan
            .as_ref()
            .map(|plan| plan.settings().sidecar_exit_code);
        let is_hidden = match (container.role, policy) {
            (Role::Init, _) => false,
            (_, Some(SidecarExitCode::Mask)) => true,
            (_, Some(SidecarExitCode::Signal)) => matches!(status, ExitStatus::Signal(_)),
            (_, Some(SidecarExitCode::Propagate) | None) => false,
        };
        match is_hidden || status == ExitStatus::Code(0) {
            true => self.code_of_no_failure(now),
            false => status.code(),
        }
    }

    /// Kubelet leaves out of the next sandbox of a pod under `OnFailure` what has ended with 0, though
    /// it is needed there, unless the pod has done what it is there for.
    pub(super) fn code_of_no_failure(&self, now: Time) -> u32 {
        let is_run_again = self
            .plan
            .as_ref()
            .is_some_and(|plan| plan.settings().restart_policy == RestartPolicy::OnFailure);
        match is_run_again && !self.is_complete(now) {
            true => STOPPED,
            false => 0,
        }
    }

    /// Ends a container whose program has not been executed: it reports `code`.
    pub(super) fn end(&mut self, id: &ContainerId, code: u32, last_words: Option<String>) {
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        if container.ends_as.is_some() || !container.is_parked() {
            return;
        }
        container.ends_as = Some(code);
        container.stopping.killed = true;
        if let Some(message) = last_words {
            self.actions.push_back(Action::Tell {
                id: id.clone(),
                message,
                last_words: true,
            });
        }
        self.actions.push_back(Action::Signal {
            id: id.clone(),
            signal: crate::plan::Signal::KILL,
            all: false,
            request: None,
        });
    }
}
