//! The removal of a container: the cleanup of its runtime state after its exit, and its deletion by
//! the caller.
//!
//! After an exit, some time passes until the caller sends its Delete. The cleanup uses this time
//! for the slow part of the deletion. The OCI runtime cannot clean up and delete a container at the
//! same time. A restart in place waits for the cleanup.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::lifecycle::Pod;
use crate::lifecycle::action::{Action, ContainerId, Refusal};
use crate::lifecycle::container::Container;
use crate::lifecycle::effects::ContainerContext;
use crate::lifecycle::rules::{Decision, Due, Subject};
use crate::lifecycle::time::Time;

use super::Call;

/// Delay of cleanups and log lines while the shim has more urgent work. For example, they would
/// take CPU time from a program that is just being executed.
pub const RELEASES_WITHIN: Duration = Duration::from_millis(5);

/// The progress of the cleanup of a container's runtime state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(in crate::lifecycle) enum Cleanup {
    /// No cleanup is planned: the container has not exited, or its deletion does all the work.
    None,
    /// The cleanup begins at this time.
    Due(Time),
    UnderWay,
    Done,
}

/// The progress of the deletion of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(in crate::lifecycle) enum Removal {
    None,
    /// The caller has sent a Delete, which waits for the creation, a cleanup or the exit.
    Wanted,
    /// The init process is being killed. It has never executed the container's program.
    KillsParked,
    UnderWay,
}

/// The outcome of a cleanup of runtime state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CleanupOutcome {
    Done,
    Failed,
    /// The cleanup took too long: a Delete that waits for it fails.
    TimedOut,
}

/// The way in which a container is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Deletion {
    /// The container has exited, or never had a process: everything is still to be removed.
    Usual,
    /// The runtime state is cleaned up: only the root file system is left.
    RootfsOnly,
    /// The creation is undone: the container is deleted even if a process runs in it.
    Forced,
}

impl Container {
    /// True from the caller's Delete until the deletion has succeeded or failed, and while an
    /// abandoned creation is being undone.
    pub fn is_removal_wanted(&self) -> bool {
        self.removal != Removal::None
    }

    /// True if the runtime state is being cleaned up, or a checkpoint that ends the container is
    /// being made.
    pub fn is_cleanup_under_way(&self) -> bool {
        self.cleanup == Cleanup::UnderWay
    }

    /// True while the OCI runtime cannot execute the container's program. There are three reasons:
    /// the runtime state is being cleaned up, a checkpoint that ends the container is being made,
    /// or the container is being deleted before its restore from a checkpoint. Meanwhile an open
    /// Start waits. It is refused if the container is removed.
    pub fn is_busy(&self) -> bool {
        self.is_cleanup_under_way() || self.is_removal_wanted() && self.state.has_no_process_yet()
    }

    /// Resets the progress of the cleanup, because the container's next process begins. Returns
    /// true if the cleanup after the last process was done.
    pub fn begin_next_process(&mut self) -> bool {
        std::mem::replace(&mut self.cleanup, Cleanup::None) == Cleanup::Done
    }
}

impl Pod {
    /// Records a Delete of the caller. The driver answers this and all other open Deletes of the
    /// container when [`Action::Delete`] is done or has failed. This action may come later. Before
    /// it, a creation or cleanup under way has to end, and an init process that never executed its
    /// program is killed.
    ///
    /// # Errors
    ///
    /// [`Refusal::NotFound`], and [`Refusal::IllegalCall`] in a state that allows no Delete, for
    /// example if the container runs.
    pub fn handle_delete(&mut self, now: Time, id: &ContainerId) -> Result<(), Refusal> {
        self.now = now;
        let look = |_: &Pod, container: &Container| match container.is_known() {
            true => container.allows(id, Call::Delete),
            false => Ok(()),
        };
        self.on_call(id, look, |context, ()| {
            let removal = &mut context.container.removal;
            if *removal == Removal::None {
                *removal = Removal::Wanted;
            }
        })?;
        self.settle(now);
        Ok(())
    }

    /// Undoes a creation that has succeeded but whose caller is gone: the driver deletes the
    /// container, because no caller would.
    pub fn handle_create_abandoned(&mut self, now: Time, id: &ContainerId) {
        self.now = now;
        self.with_container(id, |context| {
            let outcome = context.container.state.abandon();
            if context.ok_or_log(outcome).is_some() {
                context.delete(Deletion::Forced);
            }
        });
        self.settle(now);
    }

    /// Records that a deletion has failed ([`Action::Delete`]): the container stays until the next
    /// Delete. A successful deletion is reported with [`handle_removed`](Pod::handle_removed).
    pub fn handle_not_deleted(&mut self, now: Time, id: &ContainerId) {
        self.now = now;
        self.with_container(id, |context| context.container.removal = Removal::None);
        self.settle(now);
    }

    /// Records the outcome of [`Action::CleanUp`], which removes the runtime state of an exited
    /// container before the caller deletes it. After a successful cleanup, the deletion has only
    /// the root file system left to remove. Otherwise the deletion does all the work. If the
    /// cleanup times out, a Delete that waits for it fails.
    pub fn handle_cleaned_up(&mut self, now: Time, id: &ContainerId, outcome: CleanupOutcome) {
        self.now = now;
        self.with_container(id, |context| {
            let container = &mut context.container;
            container.cleanup = match outcome {
                CleanupOutcome::Done => Cleanup::Done,
                CleanupOutcome::Failed | CleanupOutcome::TimedOut => Cleanup::None,
            };
            if outcome == CleanupOutcome::TimedOut && container.removal != Removal::UnderWay {
                container.removal = Removal::None;
            }
        });
        self.settle(now);
    }

    /// Records that the driver begins a checkpoint. With `exits`, the container exits when the
    /// checkpoint is made, and the OCI runtime removes the container's runtime state.
    ///
    /// # Errors
    ///
    /// [`Refusal::NotFound`], and [`Refusal::IllegalCall`] unless the container runs, is held or is
    /// paused.
    pub fn handle_checkpoint(&mut self, id: &ContainerId, exits: bool) -> Result<(), Refusal> {
        self.allows(id, Call::Checkpoint)?;
        if exits {
            self.with_container(id, |context| {
                context.container.cleanup = Cleanup::UnderWay;
            });
        }
        Ok(())
    }

    /// Records the outcome of a checkpoint that was to end the container. The deletion still does
    /// all the work, because some runtimes leave state behind.
    pub fn handle_checkpointed(&mut self, now: Time, id: &ContainerId) {
        self.handle_cleaned_up(now, id, CleanupOutcome::Failed);
    }

    /// Schedules the cleanup of the runtime state of a container whose process has just exited. The
    /// cleanup begins a little later if the exit makes the shim start other containers, run hooks
    /// or send signals. It begins at once if the container itself will run again. Schedules nothing
    /// if the container shares a PID namespace or has poststop hooks.
    pub(in crate::lifecycle) fn plan_cleanup(&mut self, id: &ContainerId) {
        let is_busy = self.is_about_to_go_on() && !self.will_run_again(id);
        let at = match is_busy {
            true => self.now.after(RELEASES_WITHIN),
            false => self.now,
        };
        self.with_container(id, |context| {
            let container = &mut context.container;
            let bundle = container.bundle;
            let is_wanted = bundle.has_own_pid_namespace && !bundle.has_poststop_hooks;
            if is_wanted && container.is_known() && container.cleanup == Cleanup::None {
                container.cleanup = Cleanup::Due(at);
            }
        });
    }
}

impl Subject<'_> {
    /// Rule: a [planned](Pod::plan_cleanup) cleanup of runtime state begins at its time. It waits
    /// until the container has no running exec, because an exec may be in the container's cgroup.
    /// It also waits while the program is being executed. No cleanup begins during a deletion.
    pub(in crate::lifecycle) fn state_is_cleaned_up(&self) -> Option<Due<Decision>> {
        let container = self.container;
        let Cleanup::Due(at) = container.cleanup else {
            return None;
        };
        let is_busy = container.execs.has_live() || container.state.is_being_executed();
        if is_busy || container.removal == Removal::UnderWay {
            return None;
        }
        Some(self.pod.due(at, || Decision::CleanUp))
    }

    /// Rule: a container whose deletion is wanted is deleted when its exit is published, or at once
    /// if it never had a process. A cleanup that is under way ends first. If the program was never
    /// executed, the init process is killed first.
    pub(in crate::lifecycle) fn deletion_advances(&self) -> Option<Due<Decision>> {
        let (container, state) = (self.container, &self.container.state);
        let is_wanted = matches!(container.removal, Removal::Wanted | Removal::KillsParked);
        if !is_wanted || !container.is_known() {
            return None;
        }
        let how = match container.cleanup {
            Cleanup::Done => Deletion::RootfsOnly,
            _ => Deletion::Usual,
        };
        if state.has_no_process_yet() || state.is_published() {
            let is_free = !container.is_cleanup_under_way();
            return is_free.then_some(Due::Now(Decision::Delete(how)));
        }
        let is_to_be_killed = container.removal == Removal::Wanted && !state.is_exited();
        is_to_be_killed.then_some(Due::Now(Decision::KillParked))
    }
}

impl ContainerContext<'_> {
    pub(in crate::lifecycle) fn clean_up(&mut self) {
        self.container.cleanup = Cleanup::UnderWay;
        let id = self.id.clone();
        self.out.push(Action::CleanUp { id });
    }

    pub(in crate::lifecycle) fn delete(&mut self, how: Deletion) {
        self.container.removal = Removal::UnderWay;
        let id = self.id.clone();
        self.out.push(Action::Delete { id, how });
    }

    pub(in crate::lifecycle) fn kill_parked(&mut self) {
        self.container.removal = Removal::KillsParked;
        let id = self.id.clone();
        self.out.push(Action::KillParked { id });
    }
}

impl Pod {
    /// True if the container is to be deleted: the caller's Delete is open, or an abandoned
    /// creation is being undone.
    pub fn is_deletion_wanted(&self, id: &ContainerId) -> bool {
        self.satisfies(id, Container::is_removal_wanted)
    }
}
