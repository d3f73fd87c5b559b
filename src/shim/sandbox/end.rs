//! The exit of a pod's sandbox, which containerd asks for after the sandbox's task is deleted.

use std::time::SystemTime;

use usher_core::lifecycle::ContainerId;

use crate::calls::{CallError, Exit, Kind, Reply, SandboxState, Status, Waiting};

/// The exit of the pod's sandbox.
#[derive(Debug, Default)]
pub(crate) struct SandboxEnd {
    /// The last sandbox that exited.
    last: Option<EndedSandbox>,
    /// Callers that wait until the sandbox is deleted.
    waiting: Waiting<()>,
}

/// A sandbox that has exited.
#[derive(Debug)]
pub(crate) struct EndedSandbox {
    pub id: ContainerId,
    pub created_at: SystemTime,
    pub exit: Exit,
}

impl EndedSandbox {
    /// Makes the answer to SandboxStatus.
    pub fn state(&self) -> SandboxState {
        SandboxState {
            status: Status::Stopped(self.exit),
            pid: 0,
            created_at: self.created_at,
        }
    }
}

impl SandboxEnd {
    /// Stores the exit of the sandbox.
    pub fn set(&mut self, ended: EndedSandbox) {
        self.last = Some(ended);
    }

    /// The last sandbox that exited.
    pub fn last(&self) -> Option<&EndedSandbox> {
        self.last.as_ref()
    }

    /// Refuses a second sandbox `id`. A shim has only one sandbox, even after that sandbox has
    /// exited. `living` is the sandbox that has not been deleted.
    ///
    /// # Errors
    ///
    /// [`Kind::AlreadyExists`], with the name of the first sandbox.
    pub fn refuse_second(&self, id: &str, living: Option<&ContainerId>) -> Result<(), CallError> {
        let ended = self.last.as_ref().map(|ended| &ended.id);
        match living.or(ended) {
            None => Ok(()),
            Some(first) => Err(CallError::new(
                Kind::AlreadyExists,
                format!("cannot create sandbox {id}: this shim has sandbox {first}, expected one"),
            )),
        }
    }

    /// Adds a caller that waits until the sandbox is deleted.
    pub fn add_waiting(&mut self, caller: Reply<()>) {
        self.waiting.add(caller);
    }

    /// Answers the callers that wait for the deletion.
    pub fn answer(&mut self, outcome: &Result<(), CallError>) {
        self.waiting.answer(outcome);
    }
}
