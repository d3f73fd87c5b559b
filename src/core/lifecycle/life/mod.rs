//! The life of one container, from its creation to the end that the caller knows of.
//!
//! A container is in one of these states, and nothing but the methods of [`Life`] leads from one to
//! another. A method that is called in another state than its own changes nothing and says so.
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
//! A parked container that exits by itself, or is created in vain, goes to `Exiting` as well. While a
//! program is executed, by a release or a restart, its exit can overtake the news of it: the state
//! keeps it until then.

#[cfg(test)]
mod page;
mod questions;
mod state;
mod stop;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::process::ExitStatus;

use super::action::RequestId;
use super::exec::PostStart;
use super::probe::Watch;
use super::time::Time;

pub use state::State;
pub(super) use stop::Stop;

/// Where a container is in its life.
#[derive(Clone, Debug, Hash, Serialize, Deserialize)]
pub(super) struct Life {
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

/// Its Start waits for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Blocked {
    pub request: RequestId,
    pub since: Time,
    /// When the caller gives up.
    pub deadline: Option<Time>,
    /// Whether its stderr has been told.
    pub told: bool,
}

/// Its Start was answered before its turn.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Held {
    /// When its Start was answered.
    pub since: Time,
    /// Whether its stderr has been told.
    pub told: bool,
    post_start: PostStart,
}

/// Its parked process is being killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Ending {
    /// What the caller is told that it ended with.
    pub code: u32,
    /// The Start that is still to be answered.
    pub start: Option<RequestId>,
}

/// Its program is being executed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Releasing {
    start: Start,
    /// An exit that overtook the news of the release.
    pub exit: Option<ExitStatus>,
    pub stop: Stop,
}

/// The Start of a container whose program is being executed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Start {
    /// It is still to be answered.
    Open(RequestId),
    /// It was, and the container was held: its postStart handler may have come.
    Answered(PostStart),
}

/// Its program runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Running {
    /// When its program was executed.
    pub since: Time,
    /// Counts executions in this pod, so that no life is taken for another.
    pub life: u64,
    /// What is watched of it.
    pub watch: Watch,
    pub stop: Stop,
    pub post_start: PostStart,
}

/// Its program has ended, and is executed anew at `until`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct BackingOff {
    /// How its last life ended.
    pub status: ExitStatus,
    pub until: Time,
    post_start: PostStart,
}

/// Its program is being executed anew.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Restarting {
    /// How its last life ended.
    pub status: ExitStatus,
    /// An exit that overtook the news of the restart.
    pub exit: Option<ExitStatus>,
    pub stop: Stop,
    post_start: PostStart,
}

/// Its process is gone for good, and its exit is not published yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Exiting {
    /// The exit code that the caller is told.
    pub code: u32,
    /// The caller has read what the process wrote.
    pub is_output_read: bool,
    /// When the exit is published at the latest, whatever is left to be read.
    pub until: Time,
}

/// A transition that is not on the drawing. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("cannot {what} a container that is {state}")]
pub(super) struct Misplaced {
    what: &'static str,
    pub state: State,
}

// === impl Releasing ===

impl Releasing {
    /// The Start that is still to be answered.
    pub fn open_start(&self) -> Option<RequestId> {
        match self.start {
            Start::Open(request) => Some(request),
            Start::Answered(_) => None,
        }
    }
}

// === impl Life ===

impl Life {
    /// The OCI runtime is creating the container.
    pub fn creating() -> Life {
        Life {
            inner: Inner::Creating,
        }
    }

    fn refuse<T>(&self, what: &'static str) -> Result<T, Misplaced> {
        let state = self.state();
        Err(Misplaced { what, state })
    }

    /// It has been created: its init process is parked.
    pub fn created(&mut self) -> Result<(), Misplaced> {
        match self.inner {
            Inner::Creating => {
                self.inner = Inner::Created;
                Ok(())
            }
            _ => self.refuse("create"),
        }
    }

    /// The caller asks for its start.
    pub fn start(&mut self, blocked: Blocked) -> Result<(), Misplaced> {
        match self.inner {
            Inner::Created => {
                self.inner = Inner::Blocked(blocked);
                Ok(())
            }
            _ => self.refuse("start"),
        }
    }

    /// Its Start comes to nothing, and it is as it was before. Gives the Start.
    pub fn not_started(&mut self) -> Result<RequestId, Misplaced> {
        match self.inner {
            Inner::Blocked(Blocked { request, .. }) => {
                self.inner = Inner::Created;
                Ok(request)
            }
            _ => self.refuse("refuse the start of"),
        }
    }

    /// Its Start is answered though its turn has not come: `post_start` is what may follow. Gives the
    /// Start.
    pub fn hold(&mut self, now: Time, post_start: PostStart) -> Result<RequestId, Misplaced> {
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

    /// Its stderr is told that it waits for its turn.
    pub fn wait_told(&mut self) -> Result<(), Misplaced> {
        match &mut self.inner {
            Inner::Blocked(Blocked { told, .. }) | Inner::Held(Held { told, .. }) => {
                *told = true;
                Ok(())
            }
            _ => self.refuse("tell of the wait of"),
        }
    }

    /// Its program is not to be executed: its parked process is killed, and it reports `code`.
    pub fn end(&mut self, code: u32) -> Result<(), Misplaced> {
        let start = match self.inner {
            Inner::Created | Inner::Held(_) => None,
            Inner::Blocked(Blocked { request, .. }) => Some(request),
            _ => return self.refuse("end"),
        };
        self.inner = Inner::Ending(Ending { code, start });
        Ok(())
    }

    /// Its turn has come. Gives since when it has waited.
    pub fn release(&mut self) -> Result<Time, Misplaced> {
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

    /// Its program has been executed; `post_start` is what may follow an answer that its Start gets now.
    /// Gives what was open until then.
    pub fn released(
        &mut self,
        now: Time,
        life: u64,
        watch: Watch,
        post_start: PostStart,
    ) -> Result<Releasing, Misplaced> {
        let Inner::Releasing(releasing) = &self.inner else {
            return self.refuse("release");
        };
        let releasing = releasing.clone();
        self.inner = Inner::Running(Running {
            since: now,
            life,
            watch,
            stop: releasing.stop,
            post_start: match &releasing.start {
                Start::Open(_) => post_start,
                Start::Answered(post_start) => post_start.clone(),
            },
        });
        Ok(releasing)
    }

    /// Its program could not be executed: it is as it was before its Start. Gives what was open.
    pub fn not_released(&mut self) -> Result<Releasing, Misplaced> {
        let Inner::Releasing(releasing) = &self.inner else {
            return self.refuse("release");
        };
        let releasing = releasing.clone();
        self.inner = Inner::Created;
        Ok(releasing)
    }

    /// Its program has ended, and is executed anew at `until`; or a restart has failed, which is
    /// tried again then.
    pub fn back_off(&mut self, status: ExitStatus, until: Time) -> Result<(), Misplaced> {
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

    /// Its program is to be executed anew.
    pub fn restart(&mut self) -> Result<(), Misplaced> {
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

    /// Its program has been executed anew. Gives an exit that overtook the news.
    pub fn restarted(
        &mut self,
        now: Time,
        life: u64,
        watch: Watch,
    ) -> Result<Option<ExitStatus>, Misplaced> {
        let Inner::Restarting(restarting) = &self.inner else {
            return self.refuse("restart");
        };
        let stop = match restarting.stop {
            // What was to end its restart came too late.
            Stop::Killed { since, .. } => Stop::Condemned { since, at: since },
            stop => stop,
        };
        let exit = restarting.exit;
        self.inner = Inner::Running(Running {
            since: now,
            life,
            watch,
            stop,
            post_start: restarting.post_start.once_more(),
        });
        Ok(exit)
    }

    /// Its program has succeeded, and the caller is not to know yet.
    pub fn withhold(&mut self, now: Time) -> Result<(), Misplaced> {
        match self.inner {
            Inner::Running(_) => {
                self.inner = Inner::Withheld { since: now };
                Ok(())
            }
            _ => self.refuse("withhold the end of"),
        }
    }

    /// Gives up a container whose process is long gone: its exit is told as `exiting` says.
    pub fn dismiss(&mut self, exiting: Exiting) -> Result<(), Misplaced> {
        match self.inner {
            Inner::BackingOff(_) | Inner::Withheld { .. } => {
                self.inner = Inner::Exiting(exiting);
                Ok(())
            }
            _ => self.refuse("dismiss"),
        }
    }

    /// Its process is gone for good. Gives the Start that is still to be answered. One whose program is
    /// being executed [exits early](Life::exits_early); one between lives has no process.
    pub fn exited(&mut self, exiting: Exiting) -> Result<Option<RequestId>, Misplaced> {
        let start = match self.inner {
            Inner::Ending(Ending { start, .. }) => start,
            Inner::Blocked(Blocked { request, .. }) => Some(request),
            Inner::Creating | Inner::Created | Inner::Held(_) | Inner::Running(_) => None,
            _ => return self.refuse("take the exit of"),
        };
        self.inner = Inner::Exiting(exiting);
        Ok(start)
    }

    /// Notes that the caller has read what the process wrote.
    pub fn mark_output_read(&mut self) {
        if let Inner::Exiting(exiting) = &mut self.inner {
            exiting.is_output_read = true;
        }
    }

    /// Publishes the exit. Returns the exit code.
    pub fn publish(&mut self) -> Result<u32, Misplaced> {
        match self.inner {
            Inner::Exiting(Exiting { code, .. }) => {
                self.inner = Inner::Exited;
                Ok(code)
            }
            _ => self.refuse("publish the exit of"),
        }
    }

    /// Its process is gone while its program was being executed: that is to be known first.
    pub fn exits_early(&mut self, status: ExitStatus) -> Result<(), Misplaced> {
        match &mut self.inner {
            Inner::Releasing(Releasing { exit, .. })
            | Inner::Restarting(Restarting { exit, .. }) => {
                *exit = Some(status);
                Ok(())
            }
            _ => self.refuse("keep the exit of"),
        }
    }

    /// What has been done to stop its program; none where no program runs or is being executed, or its
    /// end is known already.
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

    /// What is known of its postStart handler, once its Start was answered.
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
