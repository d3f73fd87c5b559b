//! Queries of a container's state.

use crate::lifecycle::RequestId;
use crate::lifecycle::exec::PostStart;
use crate::lifecycle::time::Time;
use crate::process::ExitStatus;

use super::{
    BackingOff, Blocked, ContainerState, EndedStart, Ending, Exiting, Held, Inner, Releasing,
    Restarting, Running, Start, StateSummary, Stop,
};

impl ContainerState {
    /// The progress of stopping the program; `Undelivered` also if there is no program to stop.
    /// `GivenUp` if the exit of the program is known but not handled yet: the program gets no more
    /// signals.
    pub fn stop(&self) -> Stop {
        let (stop, exit) = match &self.inner {
            Inner::Running(_, Running { stop, .. }) => (*stop, None),
            Inner::Releasing(_, Releasing { stop, exit, .. })
            | Inner::Restarting(_, Restarting { stop, exit, .. }) => (*stop, *exit),
            _ => (Stop::Undelivered, None),
        };
        match exit {
            None => stop,
            Some(_) => stop.over(),
        }
    }

    /// The progress of the container's stop during a restart in place; `Undelivered` at any other
    /// time. Unlike [`stop`](Self::stop), ignores an exit of the new process that is known already.
    pub fn stop_of_restart(&self) -> Stop {
        match &self.inner {
            Inner::Restarting(_, Restarting { stop, .. }) => *stop,
            _ => Stop::Undelivered,
        }
    }

    /// True until the container's Create is answered, and while an abandoned creation is being
    /// undone.
    pub fn is_creating(&self) -> bool {
        matches!(self.inner, Inner::Creating | Inner::Undoing)
    }

    /// True if the container is created and may be started: no Start has come, or the last one
    /// failed.
    pub fn is_created(&self) -> bool {
        matches!(self.inner, Inner::Created(_))
    }

    /// True before the container's Start, and while a Start waits unanswered for the container's
    /// turn. False once the container is released, held or ended, even if the Start is still open.
    pub fn is_yet_to_be_started(&self) -> bool {
        matches!(
            self.inner,
            Inner::Creating | Inner::Undoing | Inner::Created(_) | Inner::Blocked(..)
        )
    }

    /// True if the exit of the program has arrived before the report of its execution, at a start
    /// or a restart in place. The exit is handled after this report.
    pub fn has_early_exit(&self) -> bool {
        matches!(
            &self.inner,
            Inner::Releasing(_, Releasing { exit: Some(_), .. })
                | Inner::Restarting(_, Restarting { exit: Some(_), .. })
        )
    }

    /// True if the container has exited for good, even if its exit is not published yet. False
    /// while the container waits for a restart in place, or while the shim hides its success from
    /// the caller.
    pub fn is_exited(&self) -> bool {
        matches!(self.inner, Inner::Exiting(_) | Inner::Exited)
    }

    pub fn is_ending(&self) -> bool {
        matches!(self.inner, Inner::Ending(..))
    }

    pub fn is_held(&self) -> bool {
        matches!(self.inner, Inner::Held(..))
    }

    pub fn is_releasing(&self) -> bool {
        matches!(self.inner, Inner::Releasing(..))
    }

    pub fn is_restarting(&self) -> bool {
        matches!(self.inner, Inner::Restarting(..))
    }

    pub fn is_withheld(&self) -> bool {
        matches!(self.inner, Inner::Withheld { .. })
    }

    /// True from the answer to the container's Create until the container has exited for good. A
    /// container without a process is still alive if it waits for a restart in place, or if the
    /// shim hides its success from the caller.
    pub fn is_alive(&self) -> bool {
        !self.is_creating() && !self.is_exited()
    }

    /// True if the container waits for its Start or its turn, so that its program may still be
    /// executed. Its init process waits, or is still to be restored from a checkpoint.
    pub fn is_parked(&self) -> bool {
        matches!(
            self.inner,
            Inner::Created(_) | Inner::Blocked(..) | Inner::Held(..)
        )
    }

    /// True if the container waits for its Start or its turn, or is being ended without an
    /// execution of its program.
    pub fn is_unexecuted(&self) -> bool {
        self.is_parked() || self.is_ending()
    }

    /// True if the program runs, or is being executed for the first time.
    pub fn is_executed(&self) -> bool {
        matches!(self.inner, Inner::Releasing(..) | Inner::Running(..))
    }

    pub fn is_running(&self) -> bool {
        matches!(self.inner, Inner::Running(..))
    }

    /// True if the process has exited and the caller does not know: the container waits for its
    /// restart in place, or its success is withheld. There is no process to signal.
    pub fn is_between_executions(&self) -> bool {
        matches!(self.inner, Inner::BackingOff(_) | Inner::Withheld { .. })
    }

    /// True if the container's program has exited and is to be restarted in place, or is being
    /// restarted.
    pub fn will_run_again(&self) -> bool {
        matches!(self.inner, Inner::BackingOff(_) | Inner::Restarting(..))
    }

    /// True from the release until the program is known to run, also at a restart. Its stop signal
    /// has to wait until it runs.
    pub fn is_being_executed(&self) -> bool {
        matches!(self.inner, Inner::Releasing(..) | Inner::Restarting(..))
    }

    /// True if the container is alive, except between two executions and during a restart in place.
    /// A container that is still to be restored from a checkpoint counts, although it has no
    /// process.
    pub fn has_process(&self) -> bool {
        self.is_alive() && !self.is_between_executions() && !self.is_restarting()
    }

    /// The Start that is not answered yet: it waits for the container's turn, for the execution of
    /// the program, or for the exit of a container that is being ended.
    pub fn open_start(&self) -> Option<RequestId> {
        match &self.inner {
            Inner::Blocked(_, blocked) => Some(blocked.request),
            Inner::Ending(_, ending) => ending.start.open(),
            Inner::Releasing(_, releasing) => releasing.open_start(),
            _ => None,
        }
    }

    /// True if the container's Start was answered with success. False again once the exit is
    /// published.
    pub fn was_started(&self) -> bool {
        match &self.inner {
            Inner::Ending(_, ending) => ending.start == EndedStart::Answered,
            Inner::Releasing(_, releasing) => releasing.open_start().is_none(),
            Inner::Exiting(exiting) => exiting.was_started,
            _ => self.is_running_for_caller(),
        }
    }

    /// True from the answer to the container's Start, or from its turn if that comes first, until
    /// the container has exited for good. During this time the caller sees the container as
    /// running, or will soon. Also true while the shim ends a container whose program was not
    /// executed.
    pub fn is_running_for_caller(&self) -> bool {
        !matches!(
            self.inner,
            Inner::Creating
                | Inner::Undoing
                | Inner::Created(_)
                | Inner::Blocked(..)
                | Inner::Exiting(_)
                | Inner::Exited
        )
    }

    /// The final exit of the container, while this exit waits to be published. `None` for an exit
    /// that the shim hides from the caller: an exit before a restart in place, or the success of an
    /// init container (`withhold.rs`).
    pub fn as_exiting(&self) -> Option<&Exiting> {
        match &self.inner {
            Inner::Exiting(exiting) => Some(exiting),
            _ => None,
        }
    }

    pub fn is_published(&self) -> bool {
        matches!(self.inner, Inner::Exited)
    }

    pub fn as_blocked(&self) -> Option<&Blocked> {
        match &self.inner {
            Inner::Blocked(_, blocked) => Some(blocked),
            _ => None,
        }
    }

    pub fn as_held(&self) -> Option<&Held> {
        match &self.inner {
            Inner::Held(_, held) => Some(held),
            _ => None,
        }
    }

    /// The exit code to be reported for a container that is being ended without an execution of its
    /// program. `None` in any other state.
    pub fn ending_code(&self) -> Option<u32> {
        match self.inner {
            Inner::Ending(_, Ending { code, .. }) => Some(code),
            _ => None,
        }
    }

    pub fn as_running(&self) -> Option<&Running> {
        match &self.inner {
            Inner::Running(_, running) => Some(running),
            _ => None,
        }
    }

    pub fn as_backing_off(&self) -> Option<&BackingOff> {
        match &self.inner {
            Inner::BackingOff(backing_off) => Some(backing_off),
            _ => None,
        }
    }

    /// True if the container is started in the sense of KEP-753: its program runs, its startup
    /// probe (if any) has succeeded, and no postStart handler runs or has failed.
    pub fn is_started(&self) -> bool {
        self.as_running().is_some_and(|running| {
            !running.watch.is_startup() && !running.post_start.is_in_the_way()
        })
    }

    /// The state of the container's postStart handler. `None` before the Start is answered. Also
    /// `None` when no program of the container runs or will run.
    pub fn post_start(&self) -> Option<&PostStart> {
        match &self.inner {
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

    /// The exit status of the last process, if the container waits for a restart in place or is
    /// being restarted. `None` in any other state. While the shim hides a success from the caller,
    /// the result is `None`, too: the exit code is then always 0.
    pub fn last_status(&self) -> Option<ExitStatus> {
        match &self.inner {
            Inner::BackingOff(BackingOff { status, .. })
            | Inner::Restarting(_, Restarting { status, .. }) => Some(*status),
            _ => None,
        }
    }

    /// The time since which the container's success is withheld from the caller, if it is.
    pub fn withheld_since(&self) -> Option<Time> {
        match self.inner {
            Inner::Withheld { since } => Some(since),
            _ => None,
        }
    }

    pub fn summary(&self) -> StateSummary {
        match &self.inner {
            Inner::Creating | Inner::Undoing => StateSummary::Creating,
            Inner::Created(_) => StateSummary::Created,
            Inner::Blocked(..) => StateSummary::Starting,
            Inner::Held(..) => StateSummary::Held,
            Inner::Ending(..) => StateSummary::Stopping,
            Inner::Running(_, running) if running.stop.is_delivered() => StateSummary::Stopping,
            Inner::Releasing(..) | Inner::Running(..) => StateSummary::Running,
            Inner::BackingOff(_) => StateSummary::BackingOff,
            Inner::Restarting(..) => StateSummary::Restarting,
            Inner::Withheld { .. } => StateSummary::Completed,
            Inner::Exiting(_) | Inner::Exited => StateSummary::Stopped,
        }
    }
}
