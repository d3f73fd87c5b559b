//! The init process of a container, in the states that have one.

use serde::{Deserialize, Serialize};

use super::{ContainerState, Inner};

/// The init process of a container whose program was not executed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) enum ParkedInit {
    /// There is no process yet. When the container's turn comes, the shim restores the process from
    /// a checkpoint.
    ToRestore,
    Restoring,
    /// The restore has failed, and is not tried again.
    Unrestorable,
    Process(Process),
}

/// An init process that the OCI runtime has created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) enum Process {
    Alive(Freezer),
    /// The process was reaped. The exit of the container follows when the processes that it left
    /// behind are gone.
    Reaped,
}

/// The freezer state of a container's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(in crate::lifecycle) enum Freezer {
    Thawed,
    Freezing,
    Frozen,
}

impl Process {
    pub const THAWED: Process = Process::Alive(Freezer::Thawed);
}

impl ParkedInit {
    /// The process. `None` if it is to be restored from a checkpoint, is being restored, or could
    /// not be restored.
    pub fn process(self) -> Option<Process> {
        match self {
            ParkedInit::Process(process) => Some(process),
            ParkedInit::ToRestore | ParkedInit::Restoring | ParkedInit::Unrestorable => None,
        }
    }
}

impl ContainerState {
    fn parked_init(&self) -> Option<ParkedInit> {
        match self.inner {
            Inner::Created(init)
            | Inner::Blocked(init, _)
            | Inner::Held(init, _)
            | Inner::Ending(init, _)
            | Inner::Releasing(init, _) => Some(init),
            _ => None,
        }
    }

    fn process(&self) -> Option<Process> {
        match self.inner {
            Inner::Running(process, _) => Some(process),
            Inner::Restarting(process, _) => process,
            _ => self.parked_init().and_then(ParkedInit::process),
        }
    }

    fn process_mut(&mut self) -> Option<&mut Process> {
        match &mut self.inner {
            Inner::Created(ParkedInit::Process(process))
            | Inner::Blocked(ParkedInit::Process(process), _)
            | Inner::Held(ParkedInit::Process(process), _)
            | Inner::Ending(ParkedInit::Process(process), _)
            | Inner::Releasing(ParkedInit::Process(process), _)
            | Inner::Running(process, _)
            | Inner::Restarting(Some(process), _) => Some(process),
            _ => None,
        }
    }

    /// Records that a restart in place has created the next init process, which does not execute
    /// the program yet. Changes nothing in a state other than Restarting.
    pub fn park_next_init(&mut self) {
        if let Inner::Restarting(process, _) = &mut self.inner {
            *process = Some(Process::THAWED);
        }
    }

    /// Records that the restore from a checkpoint begins. Returns false, and changes nothing, if a
    /// restore was tried before, if there is nothing to restore, or if the container is not being
    /// released.
    pub fn begin_restore(&mut self) -> bool {
        match &mut self.inner {
            Inner::Releasing(init @ ParkedInit::ToRestore, _) => {
                *init = ParkedInit::Restoring;
                true
            }
            _ => false,
        }
    }

    /// Records the outcome of a restore: the process exists or, after a failure, never will.
    pub fn finish_restore(&mut self, is_restored: bool) {
        if let Inner::Releasing(init @ ParkedInit::Restoring, _) = &mut self.inner {
            *init = match is_restored {
                true => ParkedInit::Process(Process::THAWED),
                false => ParkedInit::Unrestorable,
            };
        }
    }

    /// Records the freezer state of the init process. Changes nothing without a process that is
    /// alive.
    pub fn set_freezer(&mut self, to: Freezer) {
        if let Some(Process::Alive(freezer)) = self.process_mut() {
            *freezer = to;
        }
    }

    /// Records that the init process was reaped. The container's state changes only when the exit
    /// of the whole container is recorded.
    pub fn mark_reaped(&mut self) {
        if let Some(process) = self.process_mut() {
            *process = Process::Reaped;
        }
    }

    /// The freezer state of the init process. `None` without a process that is alive: the container
    /// has none yet, or the process was reaped.
    pub fn freezer(&self) -> Option<Freezer> {
        match self.process()? {
            Process::Alive(freezer) => Some(freezer),
            Process::Reaped => None,
        }
    }

    /// True if the container was created from a checkpoint and has no process: its restore has not
    /// begun, is under way, or has failed. False for a container that is still being created.
    pub fn has_no_process_yet(&self) -> bool {
        self.parked_init()
            .is_some_and(|init| init.process().is_none())
    }

    /// True if the process is being restored from a checkpoint.
    pub fn is_being_restored(&self) -> bool {
        self.parked_init() == Some(ParkedInit::Restoring)
    }

    /// True if the init process has exited. The caller may still see the container as running:
    /// before a restart in place, and while the shim hides an exit with 0. False again when a
    /// restart in place has created the next init process.
    pub fn has_exited(&self) -> bool {
        !self.is_creating() && !self.has_no_process_yet() && self.freezer().is_none()
    }
}
