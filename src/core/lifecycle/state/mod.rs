//! The state of one container, from its creation until its exit is published.
//!
//! A container is in one of these states, and only the methods of [`ContainerState`] lead from one
//! to another. A method called in a wrong state changes nothing and returns an error.
//!
//! ```text
//!   Creating
//!      | created
//!      v        start             hold
//!   Created ---------> Blocked ---------> Held          parked: the program was not executed
//!      |  ^--------------' |                |
//!      |   not started     | release        | release
//!      | end               v                v
//!      |               Releasing <----------'           being executed
//!      |  not released <-' | released
//!      v                   v
//!   Ending              Running --- back off --> BackingOff <-- not restarted --.
//!      |                 |   |                   |      | restart              |
//!      |         withhold|   |                   |      v                      |
//!      |                 v   |                   |   Restarting ---------------'
//!      |           Withheld  |                   |      | restarted
//!      |                 |   |                   |      '--> Running
//!      | exit    dismiss |   | exit      dismiss |
//!      v                 v   v                   v
//!   Exiting <--------------------------------------'      its exit is to be published
//!      | publish
//!      v
//!   Exited                                                the caller knows
//! ```
//!
//! A parked container that exits by itself, or that cannot be created, goes to `Exiting` as well.
//! While a program is executed, by a release or a restart, its exit can arrive before the report of
//! the execution: the state keeps the exit until then.

#[cfg(test)]
mod page;
mod questions;
mod stop;
mod summary;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::process::ExitStatus;

use super::action::RequestId;
use super::exec::PostStart;
use super::probe::Watch;
use super::time::Time;

pub(super) use stop::Stop;
pub use summary::StateSummary;

/// The state of a container.
#[derive(Clone, Debug, Hash, Serialize, Deserialize)]
pub(super) struct ContainerState {
    inner: Inner,
}

#[derive(Clone, Debug, Hash, Serialize, Deserialize)]
enum Inner {
    Creating,
    Created,
    Blocked(Blocked),
    Held(Held),
    Ending(Ending),
    Releasing(Releasing),
    Running(Running),
    BackingOff(BackingOff),
    Restarting(Restarting),
    Withheld { since: Time },
    Exiting(Exiting),
    Exited,
}

/// A Start that waits for the container's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Blocked {
    pub request: RequestId,
    pub since: Time,
    /// The time when the caller gives up.
    pub deadline: Option<Time>,
    /// The wait was written to its stderr.
    pub told: bool,
}

/// The Start was answered before the container's turn.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Held {
    /// Time of the answer to its Start.
    pub since: Time,
    /// The wait was written to its stderr.
    pub told: bool,
    post_start: PostStart,
}

/// The parked process is being killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Ending {
    /// The code reported to the caller.
    pub code: u32,
    /// The Start to be answered.
    pub start: Option<RequestId>,
}

/// The program is being executed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Releasing {
    start: Start,
    /// An exit that arrived before the engine reported that the program is executed.
    pub exit: Option<ExitStatus>,
    pub stop: Stop,
}

/// The Start of a container whose program is being executed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Start {
    /// Not answered yet.
    Open(RequestId),
    /// Answered, and the container was held: its postStart handler may have come.
    Answered(PostStart),
}

/// The program runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Running {
    /// Time of the execution.
    pub since: Time,
    /// Number of the execution, unique in this pod.
    pub execution: u64,
    /// The probe in use.
    pub watch: Watch,
    pub stop: Stop,
    pub post_start: PostStart,
}

/// The program has exited and is restarted in place at `until`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct BackingOff {
    /// The exit status of the last process.
    pub status: ExitStatus,
    pub until: Time,
    post_start: PostStart,
}

/// The program is being restarted in place.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Restarting {
    /// The exit status of the last process.
    pub status: ExitStatus,
    /// An exit that arrived before the report of the restart.
    pub exit: Option<ExitStatus>,
    pub stop: Stop,
    post_start: PostStart,
}

/// The process is gone for good, and its exit is not published yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Exiting {
    /// The exit code reported to the caller.
    pub code: u32,
    /// The caller has read the output of the process.
    pub is_output_read: bool,
    /// Latest publication of the exit, even with output left to read.
    pub until: Time,
}

/// A transition that the state does not allow. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("cannot {what} a container that is {state}")]
pub(super) struct InvalidTransition {
    what: &'static str,
    pub state: StateSummary,
}

impl Releasing {
    /// The Start to be answered.
    pub fn open_start(&self) -> Option<RequestId> {
        match self.start {
            Start::Open(request) => Some(request),
            Start::Answered(_) => None,
        }
    }
}

impl ContainerState {
    /// The initial state: the OCI runtime is creating the container.
    pub fn creating() -> ContainerState {
        ContainerState {
            inner: Inner::Creating,
        }
    }

    fn refuse<T>(&self, what: &'static str) -> Result<T, InvalidTransition> {
        let state = self.summary();
        Err(InvalidTransition { what, state })
    }

    /// Records that the container was created and its init process is parked.
    pub fn created(&mut self) -> Result<(), InvalidTransition> {
        match self.inner {
            Inner::Creating => {
                self.inner = Inner::Created;
                Ok(())
            }
            _ => self.refuse("create"),
        }
    }

    /// Records a Start of the caller.
    pub fn start(&mut self, blocked: Blocked) -> Result<(), InvalidTransition> {
        match self.inner {
            Inner::Created => {
                self.inner = Inner::Blocked(blocked);
                Ok(())
            }
            _ => self.refuse("start"),
        }
    }

    /// Returns to Created after a Start that failed. Returns the Start.
    pub fn not_started(&mut self) -> Result<RequestId, InvalidTransition> {
        match self.inner {
            Inner::Blocked(Blocked { request, .. }) => {
                self.inner = Inner::Created;
                Ok(request)
            }
            _ => self.refuse("refuse the start of"),
        }
    }

    /// Holds the container because its Start is answered before its turn; `post_start` is the state
    /// of the postStart handler after the answer. Returns the Start.
    pub fn hold(
        &mut self,
        now: Time,
        post_start: PostStart,
    ) -> Result<RequestId, InvalidTransition> {
        match self.inner {
            Inner::Blocked(Blocked { request, told, .. }) => {
                self.inner = Inner::Held(Held {
                    since: now,
                    told,
                    post_start,
                });
                Ok(request)
            }
            _ => self.refuse("hold"),
        }
    }

    /// Records that the wait was written to its stderr.
    pub fn wait_told(&mut self) -> Result<(), InvalidTransition> {
        match &mut self.inner {
            Inner::Blocked(Blocked { told, .. }) | Inner::Held(Held { told, .. }) => {
                *told = true;
                Ok(())
            }
            _ => self.refuse("tell of the wait of"),
        }
    }

    /// Ends the container without executing its program: its parked process is killed, and it
    /// reports `code`.
    pub fn end(&mut self, code: u32) -> Result<(), InvalidTransition> {
        let start = match self.inner {
            Inner::Created | Inner::Held(_) => None,
            Inner::Blocked(Blocked { request, .. }) => Some(request),
            _ => return self.refuse("end"),
        };
        self.inner = Inner::Ending(Ending { code, start });
        Ok(())
    }

    /// Releases the container because its turn has come. Returns the time since which it has
    /// waited.
    pub fn release(&mut self) -> Result<Time, InvalidTransition> {
        let (start, since) = match &self.inner {
            Inner::Blocked(blocked) => (Start::Open(blocked.request), blocked.since),
            Inner::Held(held) => (Start::Answered(held.post_start.clone()), held.since),
            _ => return self.refuse("release"),
        };
        self.inner = Inner::Releasing(Releasing {
            start,
            exit: None,
            stop: Stop::Untold,
        });
        Ok(since)
    }

    /// Records that the program was executed; `post_start` is the state of the postStart handler if
    /// the Start is answered now. Returns the state before.
    pub fn released(
        &mut self,
        now: Time,
        execution: u64,
        watch: Watch,
        post_start: PostStart,
    ) -> Result<Releasing, InvalidTransition> {
        let Inner::Releasing(releasing) = &self.inner else {
            return self.refuse("release");
        };
        let releasing = releasing.clone();
        self.inner = Inner::Running(Running {
            since: now,
            execution,
            watch,
            stop: releasing.stop,
            post_start: match &releasing.start {
                Start::Open(_) => post_start,
                Start::Answered(post_start) => post_start.clone(),
            },
        });
        Ok(releasing)
    }

    /// Returns to Created because the program could not be executed. Returns the state before.
    pub fn not_released(&mut self) -> Result<Releasing, InvalidTransition> {
        let Inner::Releasing(releasing) = &self.inner else {
            return self.refuse("release");
        };
        let releasing = releasing.clone();
        self.inner = Inner::Created;
        Ok(releasing)
    }

    /// Schedules a restart in place at `until`, after an exit or a failed restart.
    pub fn back_off(&mut self, status: ExitStatus, until: Time) -> Result<(), InvalidTransition> {
        let (Inner::Running(Running { post_start, .. })
        | Inner::Restarting(Restarting { post_start, .. })) = &self.inner
        else {
            return self.refuse("back off from");
        };
        self.inner = Inner::BackingOff(BackingOff {
            status,
            until,
            post_start: post_start.clone(),
        });
        Ok(())
    }

    /// Begins the restart of its program.
    pub fn restart(&mut self) -> Result<(), InvalidTransition> {
        let Inner::BackingOff(backing_off) = &self.inner else {
            return self.refuse("restart");
        };
        self.inner = Inner::Restarting(Restarting {
            status: backing_off.status,
            exit: None,
            stop: Stop::Untold,
            post_start: backing_off.post_start.clone(),
        });
        Ok(())
    }

    /// Records that the program was restarted. Returns an exit that arrived before this report.
    pub fn restarted(
        &mut self,
        now: Time,
        execution: u64,
        watch: Watch,
    ) -> Result<Option<ExitStatus>, InvalidTransition> {
        let Inner::Restarting(restarting) = &self.inner else {
            return self.refuse("restart");
        };
        let stop = match restarting.stop {
            // The restart was over before it could be killed: SIGKILL is scheduled at once for the
            // new process.
            Stop::Killed { since, .. } => Stop::KillScheduled { since, at: since },
            stop => stop,
        };
        let exit = restarting.exit;
        self.inner = Inner::Running(Running {
            since: now,
            execution,
            watch,
            stop,
            post_start: restarting.post_start.once_more(),
        });
        Ok(exit)
    }

    /// Withholds the success of its program from the caller.
    pub fn withhold(&mut self, now: Time) -> Result<(), InvalidTransition> {
        match self.inner {
            Inner::Running(_) => {
                self.inner = Inner::Withheld { since: now };
                Ok(())
            }
            _ => self.refuse("withhold the end of"),
        }
    }

    /// Gives up a container whose process has exited long before: its exit is reported as `exiting`
    /// says.
    pub fn dismiss(&mut self, exiting: Exiting) -> Result<(), InvalidTransition> {
        match self.inner {
            Inner::BackingOff(_) | Inner::Withheld { .. } => {
                self.inner = Inner::Exiting(exiting);
                Ok(())
            }
            _ => self.refuse("dismiss"),
        }
    }

    /// Records that its process is gone for good. Returns the Start to be answered. A container
    /// that is being executed [exits early](ContainerState::exits_early); one between two
    /// executions has no process.
    pub fn exited(&mut self, exiting: Exiting) -> Result<Option<RequestId>, InvalidTransition> {
        let start = match self.inner {
            Inner::Ending(Ending { start, .. }) => start,
            Inner::Blocked(Blocked { request, .. }) => Some(request),
            Inner::Creating | Inner::Created | Inner::Held(_) | Inner::Running(_) => None,
            _ => return self.refuse("take the exit of"),
        };
        self.inner = Inner::Exiting(exiting);
        Ok(start)
    }

    /// Records that the caller has read the output of the process.
    pub fn mark_output_read(&mut self) {
        if let Inner::Exiting(exiting) = &mut self.inner {
            exiting.is_output_read = true;
        }
    }

    /// Publishes the exit. Returns the exit code.
    pub fn publish(&mut self) -> Result<u32, InvalidTransition> {
        match self.inner {
            Inner::Exiting(Exiting { code, .. }) => {
                self.inner = Inner::Exited;
                Ok(code)
            }
            _ => self.refuse("publish the exit of"),
        }
    }

    /// Keeps an exit that arrived before the report of the execution.
    pub fn exits_early(&mut self, status: ExitStatus) -> Result<(), InvalidTransition> {
        match &mut self.inner {
            Inner::Releasing(Releasing { exit, .. })
            | Inner::Restarting(Restarting { exit, .. }) => {
                *exit = Some(status);
                Ok(())
            }
            _ => self.refuse("keep the exit of"),
        }
    }

    /// The progress of its stop; `None` if no program runs or is being executed, or its exit is
    /// known already.
    pub fn stop_mut(&mut self) -> Option<&mut Stop> {
        match &mut self.inner {
            Inner::Running(Running { stop, .. })
            | Inner::Releasing(Releasing {
                stop, exit: None, ..
            })
            | Inner::Restarting(Restarting {
                stop, exit: None, ..
            }) => Some(stop),
            _ => None,
        }
    }

    /// The state of its postStart handler once its Start was answered.
    pub fn post_start_mut(&mut self) -> Option<&mut PostStart> {
        match &mut self.inner {
            Inner::Held(Held { post_start, .. })
            | Inner::Releasing(Releasing {
                start: Start::Answered(post_start),
                ..
            })
            | Inner::Running(Running { post_start, .. })
            | Inner::BackingOff(BackingOff { post_start, .. })
            | Inner::Restarting(Restarting { post_start, .. }) => Some(post_start),
            _ => None,
        }
    }

    pub fn as_running_mut(&mut self) -> Option<&mut Running> {
        match &mut self.inner {
            Inner::Running(running) => Some(running),
            _ => None,
        }
    }
}
