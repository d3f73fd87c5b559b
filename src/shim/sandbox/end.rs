//! The exit of a sandbox without a pause container. The shim keeps it, because containerd asks for
//! it after the sandbox's task is deleted.

use std::time::SystemTime;

use usher_core::lifecycle::ContainerId;

use crate::calls::{CallError, Exit, Kind, Reply, SandboxState, Status, Waiting};

#[derive(Debug, Default)]
pub(crate) struct SandboxEnd {
    /// The sandbox that has exited.
    last: Option<EndedSandbox>,
    /// Open StopSandbox and ShutdownSandbox calls, which wait until the sandbox is deleted.
    waiting: Waiting<()>,
}

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
    pub fn set(&mut self, ended: EndedSandbox) {
        self.last = Some(ended);
    }

    /// The exited sandbox. `None` before its exit is published.
    pub fn last(&self) -> Option<&EndedSandbox> {
        self.last.as_ref()
    }

    /// Refuses the Create of sandbox `id` if this shim already has or had a sandbox, even one with
    /// the same id. `living` is the sandbox whose task is not deleted, if any.
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

    /// Adds a StopSandbox or ShutdownSandbox call, which [`answer`](SandboxEnd::answer) answers.
    pub fn add_waiting(&mut self, caller: Reply<()>) {
        self.waiting.add(caller);
    }

    /// Answers the waiting calls with the outcome of the deletion.
    pub fn answer(&mut self, outcome: &Result<(), CallError>) {
        self.waiting.answer(outcome);
    }
}
