//! The task of a container: the view of its caller and of the OCI runtime, from Create to Delete.
//!
//! The [state](super::state) of a container says what the core does with it. Its task says what
//! exists: the init process, frozen or not; further processes (execs); and the progress of its
//! removal. Both together determine what the caller reads and which call is legal ([`calls`]).
//! [`publication`] decides when the exit is reported. [`removal`] cleans up the runtime state and
//! deletes the container.

mod calls;
mod execs;
mod publication;
mod removal;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use super::Pod;
use super::action::{ContainerId, Refusal};
use super::container::Container;
use super::effects::ContainerContext;
use super::time::Time;

use execs::Execs;
use removal::{Cleanup, Removal};

pub use calls::{Call, IllegalCall};
pub use publication::{LAST_WORDS_WITHIN, READ_WITHIN};
pub use removal::{CleanupOutcome, Deletion, RELEASES_WITHIN};

/// Facts of a container's bundle that its removal depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BundleFacts {
    /// The kernel kills all processes of the container when its init process exits.
    pub has_own_pid_namespace: bool,
    /// The deletion runs programs of the author.
    pub has_poststop_hooks: bool,
}

#[derive(Clone, Debug, Hash, Serialize, Deserialize)]
pub(super) struct Task {
    process: Process,
    /// The Create was answered: the caller knows the task.
    is_known: bool,
    /// The Start was answered with success.
    was_started: bool,
    execs: Execs,
    /// Latest time until which the exit waits for the reason of the container's end to be written
    /// down. The caller reads the reason when it hears of the exit.
    last_words: Option<Time>,
    cleanup: Cleanup,
    removal: Removal,
    bundle: BundleFacts,
}

/// The init process of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Process {
    Creating,
    /// Not restored yet: the process is restored from a checkpoint when its turn comes.
    ToRestore,
    Restoring,
    /// The process could not be restored, and is not tried again.
    Unrestorable,
    Alive(Freezer),
    Exited,
}

/// The freezer state of a container's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Freezer {
    Thawed,
    Freezing,
    Frozen,
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

impl Task {
    /// The task of a container that is being created.
    pub fn new(bundle: BundleFacts) -> Task {
        Task {
            process: Process::Creating,
            is_known: false,
            was_started: false,
            execs: Execs::default(),
            last_words: None,
            cleanup: Cleanup::None,
            removal: Removal::None,
            bundle,
        }
    }

    /// Records that its Start was answered with success.
    pub fn mark_started(&mut self) {
        self.was_started = true;
    }

    /// Records that the reason of the container's end is being written down.
    pub fn begin_last_words(&mut self, now: Time) {
        self.last_words = Some(now.after(LAST_WORDS_WITHIN));
    }

    /// Adds an exec of the caller.
    pub fn add_exec(&mut self, exec_id: &str) {
        self.execs.add(exec_id);
    }

    /// Records that the process of an exec has exited, or never ran.
    pub fn exit_exec(&mut self, exec_id: &str, has_run: bool) {
        self.execs.exit(exec_id, has_run);
    }

    /// True if an exec runs or is being started.
    pub fn has_live_execs(&self) -> bool {
        self.execs.has_live()
    }

    fn freezer(&self) -> Option<Freezer> {
        match self.process {
            Process::Alive(freezer) => Some(freezer),
            _ => None,
        }
    }

    fn has_no_process_yet(&self) -> bool {
        matches!(
            self.process,
            Process::ToRestore | Process::Restoring | Process::Unrestorable
        )
    }
}

impl Pod {
    /// Records a container created from a checkpoint: its process is restored when its turn comes.
    /// Otherwise as [`handle_created`](Pod::handle_created).
    pub fn handle_created_to_restore(&mut self, now: Time, id: &ContainerId) {
        self.created(now, id, Process::ToRestore);
    }

    /// Records that the OCI runtime has created a container, with its init process parked.
    pub fn handle_created(&mut self, now: Time, id: &ContainerId) {
        self.created(now, id, Process::Alive(Freezer::Thawed));
    }

    fn created(&mut self, now: Time, id: &ContainerId, process: Process) {
        self.now = now;
        self.on_event(id, Pod::comes, |context, comes| {
            context.container.task.process = process;
            context.container.task.is_known = true;
            context.created(comes);
        });
        self.settle(now);
    }

    /// Records that the next init process of a container that is restarted in place is parked.
    pub fn handle_created_again(&mut self, id: &ContainerId) {
        self.with_container(id, |context| {
            context.container.task.process = Process::Alive(Freezer::Thawed);
        });
    }

    /// Records that the restore of a container from its checkpoint begins. Returns false if it was
    /// tried before.
    pub fn handle_restore_begun(&mut self, id: &ContainerId) -> bool {
        let begun = self.with_container(id, |context| {
            let process = &mut context.container.task.process;
            let is_first = *process == Process::ToRestore;
            if is_first {
                *process = Process::Restoring;
            }
            is_first
        });
        begun.unwrap_or_default()
    }

    /// Records the end of a restore: the process exists, or never will.
    pub fn handle_restored(&mut self, id: &ContainerId, is_restored: bool) {
        self.with_container(id, |context| {
            let process = &mut context.container.task.process;
            if *process == Process::Restoring {
                *process = match is_restored {
                    true => Process::Alive(Freezer::Thawed),
                    false => Process::Unrestorable,
                };
            }
        });
    }

    /// Begins to pause a container; [`handle_paused`](Pod::handle_paused) reports the outcome.
    ///
    /// # Errors
    ///
    /// [`Refusal::IllegalCall`] unless it runs.
    pub fn handle_pause(&mut self, id: &ContainerId) -> Result<(), Refusal> {
        self.allows(id, Call::Pause)?;
        self.with_container(id, |context| {
            context.container.task.set_freezer(Freezer::Freezing)
        });
        Ok(())
    }

    /// Records the end of a pause. A failed one leaves the container thawed.
    pub fn handle_paused(&mut self, id: &ContainerId, is_done: bool) {
        let freezer = match is_done {
            true => Freezer::Frozen,
            false => Freezer::Thawed,
        };
        self.with_container(id, |context| context.container.task.set_freezer(freezer));
    }

    /// Records the end of a resume. A failed one changes nothing.
    pub fn handle_resumed(&mut self, id: &ContainerId, is_done: bool) {
        if is_done {
            self.with_container(id, |context| {
                context.container.task.set_freezer(Freezer::Thawed)
            });
        }
    }
}

impl Task {
    fn set_freezer(&mut self, freezer: Freezer) {
        if let Process::Alive(now) = &mut self.process {
            *now = freezer;
        }
    }
}

impl ContainerContext<'_> {
    /// Records that the init process was reaped.
    pub(super) fn process_exited(&mut self) {
        self.container.task.process = Process::Exited;
    }
}

impl Pod {
    /// True from the answer of the container's Create until its deletion.
    pub fn is_known(&self, id: &ContainerId) -> bool {
        self.task_of(id).is_some_and(|task| task.is_known)
    }

    /// True if the container has no process yet because it is to be restored from a checkpoint.
    pub fn is_to_be_restored(&self, id: &ContainerId) -> bool {
        self.task_of(id).is_some_and(Task::has_no_process_yet)
    }

    /// True if the process of the container is being restored.
    pub fn is_being_restored(&self, id: &ContainerId) -> bool {
        let task = self.task_of(id);
        task.is_some_and(|task| task.process == Process::Restoring)
    }

    /// True if the init process of the container has exited, or its exit is reported.
    pub fn has_exited(&self, id: &ContainerId) -> bool {
        self.known(id).is_ok_and(Container::has_exited)
    }

    /// True if the init process of the container has exited but its exit is not reported: another
    /// process follows, or the exit is reported later.
    pub fn is_between_processes(&self, id: &ContainerId) -> bool {
        let container = self.known(id);
        container.is_ok_and(|it| it.task.process == Process::Exited && !it.state.is_exited())
    }

    /// True if the exit of the container is still to be published.
    pub fn is_exit_pending(&self, id: &ContainerId) -> bool {
        let container = self.known(id);
        container.is_ok_and(|container| container.state.as_exiting().is_some())
    }

    /// The state of a task as the caller reads it, or `None` if there is no such task.
    pub fn task_status(&self, id: &ContainerId) -> Option<TaskStatus> {
        let container = self.known(id).ok()?;
        let task = &container.task;
        Some(match task.freezer() {
            _ if container.state.is_published() => TaskStatus::Stopped,
            Some(Freezer::Freezing) => TaskStatus::Pausing,
            Some(Freezer::Frozen) => TaskStatus::Paused,
            _ if task.was_started => TaskStatus::Running,
            _ => TaskStatus::Created,
        })
    }

    fn task_of(&self, id: &ContainerId) -> Option<&Task> {
        Some(&self.known(id).ok()?.task)
    }
}

impl Container {
    fn has_exited(&self) -> bool {
        self.task.process == Process::Exited || self.state.is_exited()
    }
}
