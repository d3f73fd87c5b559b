//! The init process of a container, in the states that have one.

use serde::{Deserialize, Serialize};

use super::{ContainerState, Inner};

/// The init process of a container whose program was not executed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) enum ParkedInit {
    /// The process is restored from a checkpoint when the container's turn comes.
    ToRestore,
    Restoring,
    /// The process could not be restored, and is not tried again.
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
    /// The process, unless it is still to be restored.
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

    /// Records that the next init process of a restart in place is parked.
    pub fn created_again(&mut self) {
        if let Inner::Restarting(process, _) = &mut self.inner {
            *process = Some(Process::THAWED);
        }
    }

    /// Records that the restore from a checkpoint begins. Returns false if it was tried before.
    pub fn restore_begun(&mut self) -> bool {
        match &mut self.inner {
            Inner::Releasing(init @ ParkedInit::ToRestore, _) => {
                *init = ParkedInit::Restoring;
                true
            }
            _ => false,
        }
    }

    /// Records the end of a restore: the process exists, or never will.
    pub fn restored(&mut self, is_restored: bool) {
        if let Inner::Releasing(init @ ParkedInit::Restoring, _) = &mut self.inner {
            *init = match is_restored {
                true => ParkedInit::Process(Process::THAWED),
                false => ParkedInit::Unrestorable,
            };
        }
    }

    /// Records the freezer state of a process that is alive.
    pub fn set_freezer(&mut self, to: Freezer) {
        if let Some(Process::Alive(freezer)) = self.process_mut() {
            *freezer = to;
        }
    }

    /// Records that the init process was reaped.
    pub fn process_exited(&mut self) {
        if let Some(process) = self.process_mut() {
            *process = Process::Reaped;
        }
    }

    /// The freezer state of a process that is alive.
    pub fn freezer(&self) -> Option<Freezer> {
        match self.process()? {
            Process::Alive(freezer) => Some(freezer),
            Process::Reaped => None,
        }
    }

    /// True if the process is still to be restored from a checkpoint, or could not be restored.
    pub fn has_no_process_yet(&self) -> bool {
        self.parked_init()
            .is_some_and(|init| init.process().is_none())
    }

    /// True if the process is being restored from a checkpoint.
    pub fn is_being_restored(&self) -> bool {
        self.parked_init() == Some(ParkedInit::Restoring)
    }

    /// True if the init process has exited: for good, or until it is restarted in place.
    pub fn has_exited(&self) -> bool {
        !self.is_creating() && !self.has_no_process_yet() && self.freezer().is_none()
    }
}
