//! The state of one container, from its creation until its exit is published.
//!
//! A container is in one of these states, and only the methods of [`ContainerState`] lead from one
//! to another. A method called in a wrong state changes nothing and returns an error. Each state
//! holds the data that exist only in this state: the pending Start, the init process and its
//! freezer, the progress of a stop. The state determines what the caller reads and which calls are
//! legal.
//!
//! ```text
//!   Creating ---------> Undoing                            the caller of the Create has gone
//!      | created  abandon
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
//!      | exit       exit |   | report            | report
//!      |                 |   | hidden exit       | hidden exit
//!      v                 v   v                   v
//!   Exiting <--------------------------------------'      its exit is to be published
//!      | publish
//!      v
//!   Exited                                                the caller knows
//! ```
//!
//! In `Blocked` the Start waits for its answer; in `Held` it was answered. In `BackingOff` and
//! `Withheld` the program has exited, but the shim hides this exit from the caller. The arrow `end`
//! leads to `Ending` from `Blocked` and `Held`, too. The arrow `not released` leads to `Created`,
//! or to `Held` if the Start was answered. If the init process exits by itself before it executes
//! the program, the container goes to `Exiting`. While a program is executed, by a release or a
//! restart, its exit can arrive before the report of the execution: the state keeps the exit until
//! then.

mod data;
#[cfg(test)]
mod page;
mod process;
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

use data::{EndedStart, Start};
use process::{ParkedInit, Process};

pub(super) use data::{
    BackingOff, Blocked, Ending, Exiting, FinalExit, Held, Releasing, Restarting, Running,
};
pub(super) use process::Freezer;
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
    Undoing,
    Created(ParkedInit),
    Blocked(ParkedInit, Blocked),
    Held(ParkedInit, Held),
    Ending(ParkedInit, Ending),
    Releasing(ParkedInit, Releasing),
    Running(Process, Running),
    BackingOff(BackingOff),
    Restarting(Option<Process>, Restarting),
    Withheld { since: Time },
    Exiting(Exiting),
    Exited,
}

/// A transition that the state does not allow. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("cannot {what} a container that is {state}")]
pub(super) struct InvalidTransition {
    what: &'static str,
    pub state: StateSummary,
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

    /// Records that the container was created. Its init process waits to execute the program.
    pub fn created(&mut self) -> Result<(), InvalidTransition> {
        self.park(ParkedInit::Process(Process::THAWED))
    }

    /// Records that the container was created from a checkpoint: its process is restored when its
    /// turn comes.
    pub fn created_to_restore(&mut self) -> Result<(), InvalidTransition> {
        self.park(ParkedInit::ToRestore)
    }

    fn park(&mut self, init: ParkedInit) -> Result<(), InvalidTransition> {
        match self.inner {
            Inner::Creating => {
                self.inner = Inner::Created(init);
                Ok(())
            }
            _ => self.refuse("create"),
        }
    }

    /// Records that the creation is undone because its caller has gone.
    pub fn abandon(&mut self) -> Result<(), InvalidTransition> {
        match self.inner {
            Inner::Creating => {
                self.inner = Inner::Undoing;
                Ok(())
            }
            _ => self.refuse("undo the creation of"),
        }
    }

    /// Records a Start of the caller. The container is Blocked: the Start waits for its answer.
    pub fn start(&mut self, blocked: Blocked) -> Result<(), InvalidTransition> {
        match self.inner {
            Inner::Created(init) => {
                self.inner = Inner::Blocked(init, blocked);
                Ok(())
            }
            _ => self.refuse("start"),
        }
    }

    /// Moves from Blocked back to Created, because the Start is refused or its caller has given up.
    /// Returns the Start.
    pub fn take_back_start(&mut self) -> Result<RequestId, InvalidTransition> {
        match self.inner {
            Inner::Blocked(init, Blocked { request, .. }) => {
                self.inner = Inner::Created(init);
                Ok(request)
            }
            _ => self.refuse("refuse the start of"),
        }
    }

    /// Moves from Blocked to Held: the shim answers the Start before the container's turn comes.
    /// `post_start` becomes the state of the postStart handler, which kubelet may run after the
    /// answer. Returns the request to be answered.
    pub fn hold(
        &mut self,
        now: Time,
        post_start: PostStart,
    ) -> Result<RequestId, InvalidTransition> {
        match self.inner {
            Inner::Blocked(
                init,
                Blocked {
                    request,
                    is_wait_noted,
                    ..
                },
            ) => {
                let held = Held {
                    since: now,
                    is_wait_noted,
                    post_start,
                };
                self.inner = Inner::Held(init, held);
                Ok(request)
            }
            _ => self.refuse("hold"),
        }
    }

    /// Records that the wait of a blocked or held container was written to its stderr.
    pub fn mark_wait_noted(&mut self) -> Result<(), InvalidTransition> {
        match &mut self.inner {
            Inner::Blocked(_, Blocked { is_wait_noted, .. })
            | Inner::Held(_, Held { is_wait_noted, .. }) => {
                *is_wait_noted = true;
                Ok(())
            }
            _ => self.refuse("tell of the wait of"),
        }
    }

    /// Ends a container (Created, Blocked or Held) before its program is executed. The caller of
    /// this method kills the init process. The reported exit code is `code`. The exit waits until
    /// the shim has written the reason to stderr and the termination message, but not longer than
    /// until `reason_deadline`; `None` if no reason is written. An open Start stays open until the
    /// process is gone.
    pub fn end(
        &mut self,
        code: u32,
        reason_deadline: Option<Time>,
    ) -> Result<(), InvalidTransition> {
        let (init, start) = match self.inner {
            Inner::Created(init) => (init, EndedStart::None),
            Inner::Blocked(init, Blocked { request, .. }) => (init, EndedStart::Open(request)),
            Inner::Held(init, _) => (init, EndedStart::Answered),
            _ => return self.refuse("end"),
        };
        let ending = Ending {
            code,
            start,
            reason_deadline,
        };
        self.inner = Inner::Ending(init, ending);
        Ok(())
    }

    /// Moves from Blocked or Held to Releasing. The caller of this method orders the execution of
    /// the program. An open Start stays open until the outcome is reported. Returns the time since
    /// which the container has waited.
    pub fn release(&mut self) -> Result<Time, InvalidTransition> {
        let (init, start, since) = match &self.inner {
            Inner::Blocked(init, blocked) => (*init, Start::Open(blocked.request), blocked.since),
            Inner::Held(init, held) => {
                (*init, Start::Answered(held.post_start.clone()), held.since)
            }
            _ => return self.refuse("release"),
        };
        let releasing = Releasing {
            start,
            exit: None,
            stop: Stop::Undelivered,
        };
        self.inner = Inner::Releasing(init, releasing);
        Ok(since)
    }

    /// Moves to Running, because the program was executed. `execution` is the number of this
    /// execution in the pod, and `watch` the probe in use. If the Start is still open, `post_start`
    /// becomes the state of the postStart handler. Otherwise the state of the handler does not
    /// change. Returns the previous state. The caller of this method answers an open Start. After
    /// that, it handles an exit that arrived before the report of the execution.
    pub fn complete_release(
        &mut self,
        now: Time,
        execution: u64,
        watch: Watch,
        post_start: PostStart,
    ) -> Result<Releasing, InvalidTransition> {
        let Inner::Releasing(init, releasing) = &self.inner else {
            return self.refuse("release");
        };
        let (process, releasing) = (init.process().unwrap_or(Process::THAWED), releasing.clone());
        let running = Running {
            since: now,
            execution,
            watch,
            stop: releasing.stop,
            post_start: match &releasing.start {
                Start::Open(_) => post_start,
                Start::Answered(post_start) => post_start.clone(),
            },
        };
        self.inner = Inner::Running(process, running);
        Ok(releasing)
    }

    /// Undoes the release, because the program could not be executed. A container whose Start was
    /// answered becomes Held, since `now`. Any other container becomes Created again.
    ///
    /// Returns the previous state. With it, the caller of this method refuses the Start that is not
    /// answered yet, and then handles an exit that arrived before the report of the failure.
    pub fn take_back_release(&mut self, now: Time) -> Result<Releasing, InvalidTransition> {
        let Inner::Releasing(init, releasing) = &self.inner else {
            return self.refuse("release");
        };
        let (init, releasing) = (*init, releasing.clone());
        self.inner = match &releasing.start {
            Start::Open(_) => Inner::Created(init),
            Start::Answered(post_start) => {
                let held = Held {
                    since: now,
                    is_wait_noted: false,
                    post_start: post_start.clone(),
                };
                Inner::Held(init, held)
            }
        };
        Ok(releasing)
    }

    /// Schedules a restart in place at `until`, after an exit or a failed restart. `is_asked`: see
    /// [`BackingOff::is_asked`].
    pub fn back_off(
        &mut self,
        status: ExitStatus,
        until: Time,
        is_asked: bool,
    ) -> Result<(), InvalidTransition> {
        let (Inner::Running(_, Running { post_start, .. })
        | Inner::Restarting(_, Restarting { post_start, .. })) = &self.inner
        else {
            return self.refuse("back off from");
        };
        self.inner = Inner::BackingOff(BackingOff {
            status,
            until,
            is_asked,
            post_start: post_start.clone(),
        });
        Ok(())
    }

    /// Moves from BackingOff to Restarting. The caller of this method orders the restart.
    pub fn restart(&mut self) -> Result<(), InvalidTransition> {
        let Inner::BackingOff(backing_off) = &self.inner else {
            return self.refuse("restart");
        };
        let restarting = Restarting {
            status: backing_off.status,
            exit: None,
            stop: Stop::Undelivered,
            post_start: backing_off.post_start.clone(),
        };
        self.inner = Inner::Restarting(None, restarting);
        Ok(())
    }

    /// Moves to Running, because the program was restarted. Returns the exit of the new process if
    /// it arrived before this report.
    pub fn complete_restart(
        &mut self,
        now: Time,
        execution: u64,
        watch: Watch,
    ) -> Result<Option<ExitStatus>, InvalidTransition> {
        let Inner::Restarting(process, restarting) = &self.inner else {
            return self.refuse("restart");
        };
        let stop = match restarting.stop {
            // SIGKILL came during the restart, and could not cancel it. So SIGKILL is scheduled at
            // once for the new process.
            Stop::Killed { since, .. } => Stop::KillScheduled { since, at: since },
            stop => stop,
        };
        let (process, exit) = (process.unwrap_or(Process::THAWED), restarting.exit);
        let running = Running {
            since: now,
            execution,
            watch,
            stop,
            post_start: restarting.post_start.once_more(),
        };
        self.inner = Inner::Running(process, running);
        Ok(exit)
    }

    /// Moves from Running to Withheld, because the program has succeeded: the process is gone, but
    /// the caller still sees the container as running.
    pub fn withhold(&mut self, now: Time) -> Result<(), InvalidTransition> {
        match self.inner {
            Inner::Running(..) => {
                self.inner = Inner::Withheld { since: now };
                Ok(())
            }
            _ => self.refuse("withhold the end of"),
        }
    }

    /// Moves to Exiting after an exit that was hidden from the caller, because the container was to
    /// be restarted in place or its success was withheld. `exit` is then published as any exit.
    pub fn report_hidden_exit(&mut self, exit: FinalExit) -> Result<(), InvalidTransition> {
        match self.inner {
            Inner::BackingOff(_) | Inner::Withheld { .. } => {
                self.inner = Inner::Exiting(exit.of(true, None));
                Ok(())
            }
            _ => self.refuse("report hidden exit"),
        }
    }

    /// Moves to Exiting, because the process is gone for good. Returns the Start if it was not
    /// answered yet. Fails in a state without a process, and while the program is being executed:
    /// then [`record_early_exit`](ContainerState::record_early_exit) keeps the exit.
    pub fn exit(&mut self, exit: FinalExit) -> Result<Option<RequestId>, InvalidTransition> {
        let (start, reason_deadline) = match self.inner {
            Inner::Created(_) => (EndedStart::None, None),
            Inner::Blocked(_, Blocked { request, .. }) => (EndedStart::Open(request), None),
            Inner::Ending(_, ending) => (ending.start, ending.reason_deadline),
            Inner::Held(..) | Inner::Running(..) => (EndedStart::Answered, None),
            _ => return self.refuse("take the exit of"),
        };
        let was_started = start == EndedStart::Answered;
        self.inner = Inner::Exiting(exit.of(was_started, reason_deadline));
        Ok(start.open())
    }

    /// Records that the caller has read the output of the process.
    pub fn mark_output_read(&mut self) {
        if let Inner::Exiting(exiting) = &mut self.inner {
            exiting.is_output_read = true;
        }
    }

    /// Records that the shim has written the reason why it ended the container to the container's
    /// stderr and termination message.
    pub fn mark_last_words_written(&mut self) {
        match &mut self.inner {
            Inner::Ending(
                _,
                Ending {
                    reason_deadline, ..
                },
            )
            | Inner::Exiting(Exiting {
                reason_deadline, ..
            }) => *reason_deadline = None,
            _ => {}
        }
    }

    /// Moves from Exiting to Exited. Returns the exit code, which the caller of this method
    /// publishes.
    pub fn publish(&mut self) -> Result<u32, InvalidTransition> {
        match self.inner {
            Inner::Exiting(Exiting { code, .. }) => {
                self.inner = Inner::Exited;
                Ok(code)
            }
            _ => self.refuse("publish the exit of"),
        }
    }

    /// Keeps an exit that arrived before the report of the execution, until
    /// [`complete_release`](ContainerState::complete_release),
    /// [`take_back_release`](ContainerState::take_back_release) or
    /// [`complete_restart`](ContainerState::complete_restart) returns it.
    pub fn record_early_exit(&mut self, status: ExitStatus) -> Result<(), InvalidTransition> {
        match &mut self.inner {
            Inner::Releasing(_, Releasing { exit, .. })
            | Inner::Restarting(_, Restarting { exit, .. }) => {
                *exit = Some(status);
                Ok(())
            }
            _ => self.refuse("keep the exit of"),
        }
    }

    /// Returns the progress of the container's stop, to be changed, in three cases:
    ///
    /// - while the program runs;
    /// - while the program is being executed for the first time, until the exit of the process is
    ///   known;
    /// - during a restart in place, even if the exit of the new process is known: the stop decides
    ///   if the program is restarted once more.
    ///
    /// `None` in any other state.
    pub fn stop_mut(&mut self) -> Option<&mut Stop> {
        match &mut self.inner {
            Inner::Running(_, Running { stop, .. })
            | Inner::Releasing(
                _,
                Releasing {
                    stop, exit: None, ..
                },
            )
            | Inner::Restarting(_, Restarting { stop, .. }) => Some(stop),
            _ => None,
        }
    }

    /// The state of the container's postStart handler. `None` before the Start is answered. Also
    /// `None` when no program of the container runs or will run.
    pub fn post_start_mut(&mut self) -> Option<&mut PostStart> {
        match &mut self.inner {
            Inner::Held(_, Held { post_start, .. })
            | Inner::Releasing(
                _,
                Releasing {
                    start: Start::Answered(post_start),
                    ..
                },
            )
            | Inner::Running(_, Running { post_start, .. })
            | Inner::BackingOff(BackingOff { post_start, .. })
            | Inner::Restarting(_, Restarting { post_start, .. }) => Some(post_start),
            _ => None,
        }
    }

    pub fn as_running_mut(&mut self) -> Option<&mut Running> {
        match &mut self.inner {
            Inner::Running(_, running) => Some(running),
            _ => None,
        }
    }
}
