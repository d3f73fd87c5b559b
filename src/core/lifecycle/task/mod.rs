//! The task of a container: what its caller does with it, from Create to Delete.
//!
//! The [state](super::state) of a container determines what the caller reads and which call is
//! legal ([`calls`]). [`publication`] decides when the exit is reported, [`signals`] if a signal is
//! sent, waits or is refused, and [`updates`] when a change of resources begins. [`removal`]
//! decides when the runtime state is cleaned up and the container is deleted. [`execs`] are the
//! container's further processes.

mod calls;
mod execs;
mod publication;
mod removal;
mod signals;
#[cfg(test)]
mod tests;
mod updates;

use serde::{Deserialize, Serialize};

use super::Pod;
use super::action::{ContainerId, Refusal};
use super::container::Container;
use super::state::Freezer;
use super::time::Time;

pub(super) use execs::Execs;
pub(super) use removal::{Cleanup, Removal};
pub(super) use updates::Updates;

pub use calls::{Call, IllegalCall};
pub use execs::{ExecCall, IllegalExecCall};
pub use publication::{LAST_WORDS_WITHIN, READ_WITHIN};
pub use removal::{CleanupOutcome, Deletion, RELEASES_WITHIN};
pub use signals::SignalOrder;
pub use updates::UPDATES_AT_MOST;

/// Facts of a container's bundle that its removal depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BundleFacts {
    /// The kernel kills all processes of the container when its init process exits.
    pub has_own_pid_namespace: bool,
    /// The container has OCI poststop hooks: programs that run when the container is deleted.
    pub has_poststop_hooks: bool,
}

/// The state of a task as the caller reads it (`containerd.task.v1`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskStatus {
    Created,
    Running,
    Pausing,
    Paused,
    Stopped,
}

impl Pod {
    /// Records that a restart in place has created the container's next init process. This process
    /// then executes the program. The driver reports the outcome with
    /// [`handle_restarted`](Pod::handle_restarted).
    pub fn handle_created_again(&mut self, id: &ContainerId) {
        self.with_container(id, |context| context.container.state.park_next_init());
    }

    /// Records that the driver begins to restore a container from its checkpoint. Returns false if
    /// the driver must not: a restore was tried before, or the container is not being released.
    pub fn handle_restore_begun(&mut self, id: &ContainerId) -> bool {
        let begun = self.with_container(id, |context| context.container.state.begin_restore());
        begun.unwrap_or_default()
    }

    /// Records that the driver begins to pause a container, as the caller has asked. The driver
    /// reports the outcome with [`handle_paused`](Pod::handle_paused).
    ///
    /// # Errors
    ///
    /// [`Refusal::NotFound`], and [`Refusal::IllegalCall`] unless the container runs or is held.
    pub fn handle_pause(&mut self, id: &ContainerId) -> Result<(), Refusal> {
        self.allows(id, Call::Pause)?;
        self.set_freezer(id, Freezer::Freezing);
        Ok(())
    }

    /// Records the outcome of a pause. After a failure the container is thawed.
    pub fn handle_paused(&mut self, now: Time, id: &ContainerId, is_done: bool) {
        self.now = now;
        let freezer = match is_done {
            true => Freezer::Frozen,
            false => Freezer::Thawed,
        };
        self.set_freezer(id, freezer);
        self.settle(now);
    }

    /// Records the outcome of a resume. A failure changes nothing.
    pub fn handle_resumed(&mut self, now: Time, id: &ContainerId, is_done: bool) {
        self.now = now;
        if is_done {
            self.set_freezer(id, Freezer::Thawed);
        }
        self.settle(now);
    }

    fn set_freezer(&mut self, id: &ContainerId, freezer: Freezer) {
        self.with_container(id, |context| {
            context.container.state.set_freezer(freezer);
            context.discard_probe_of_paused();
        });
    }
}

impl Pod {
    /// True from the answer to the container's Create until the container's deletion.
    pub fn is_known(&self, id: &ContainerId) -> bool {
        self.satisfies(id, Container::is_known)
    }

    /// True if the container was created from a checkpoint and has no process: its restore has not
    /// begun, is under way, or has failed.
    pub fn is_to_be_restored(&self, id: &ContainerId) -> bool {
        self.satisfies(id, |container| container.state.has_no_process_yet())
    }

    /// True if the container's init process has exited, even if the shim will restart the container
    /// in place, or hides the container's success from the caller. False for an unknown container.
    pub fn has_exited(&self, id: &ContainerId) -> bool {
        self.satisfies(id, |container| container.state.has_exited())
    }

    /// True if the init process has exited, but the container has not. There are three reasons: the
    /// container's other processes are being killed, the shim restarts the container in place, or
    /// the shim hides the container's success from the caller.
    pub fn is_between_processes(&self, id: &ContainerId) -> bool {
        self.satisfies(id, Container::is_between_processes)
    }

    /// True if the container has exited for good and its exit is not published yet.
    pub fn is_exit_pending(&self, id: &ContainerId) -> bool {
        self.satisfies(id, |container| container.state.as_exiting().is_some())
    }

    /// The state of a task as the caller reads it, or `None` if there is no such task.
    pub fn task_status(&self, id: &ContainerId) -> Option<TaskStatus> {
        let state = &self.known(id).ok()?.state;
        Some(match state.freezer() {
            _ if state.is_published() => TaskStatus::Stopped,
            Some(Freezer::Freezing) => TaskStatus::Pausing,
            Some(Freezer::Frozen) => TaskStatus::Paused,
            _ if state.was_started() => TaskStatus::Running,
            _ => TaskStatus::Created,
        })
    }

    /// True if the container exists and meets the condition.
    fn satisfies(&self, id: &ContainerId, condition: impl FnOnce(&Container) -> bool) -> bool {
        self.known(id).is_ok_and(condition)
    }
}

impl Container {
    /// True if the init process has exited, but the container has not (see
    /// [`Pod::is_between_processes`]).
    fn is_between_processes(&self) -> bool {
        self.state.has_exited() && !self.state.is_exited()
    }

    /// True once the container's Create was answered. Before, the container does not exist for the
    /// caller.
    fn is_known(&self) -> bool {
        !self.state.is_creating()
    }
}
