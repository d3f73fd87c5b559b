//! Exits: what a container's end means, and the code that the caller is told.

use crate::plan::{Role, SidecarExitCode};

use super::Pod;
use super::action::{Action, ContainerId, Refusal};
use super::container::{Blocked, Container, ExitStatus, State};
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
            Some(State::Releasing { exit, .. }) => *exit = Some(status),
            Some(_) => self.exited(id, status),
            None => {}
        }
        self.settle(now);
    }

    pub(super) fn exited(&mut self, id: &ContainerId, status: ExitStatus) {
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let was = std::mem::replace(&mut container.state, State::Exited);
        let ran = matches!(was, State::Running(_));
        if ran && container.role == Role::Init && status == ExitStatus::Code(0) {
            self.succeeded.insert(container.name.clone());
        }
        if let State::Blocked(Blocked { request, .. }) = was {
            let refusal = Refusal::EndedBeforeStart {
                name: container.name.clone(),
            };
            self.answer_start(id, request, Err(refusal));
        }
        if let Some(code) = self
            .containers
            .get(id)
            .map(|container| self.reported_code(container, status))
        {
            self.actions.push_back(Action::ReportExit {
                id: id.clone(),
                code,
            });
        }
    }

    /// The code the caller is told (KEP-753 draft: a sidecar that was told to go has not failed).
    fn reported_code(&self, container: &Container, status: ExitStatus) -> u32 {
        if let Some(code) = container.ends_as {
            return code;
        }
        let told_to_go = container.role == Role::Sidecar
            && container.stopping.signalled
            && !container.startup_failed;
        let mask = match self
            .plan
            .as_ref()
            .map(|plan| plan.settings().sidecar_exit_code)
        {
            Some(SidecarExitCode::Mask) => told_to_go,
            Some(SidecarExitCode::Signal) => told_to_go && matches!(status, ExitStatus::Signal(_)),
            Some(SidecarExitCode::Propagate) | None => false,
        };
        if mask { 0 } else { status.code() }
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
