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
    /// The progress of its stop. A program whose exit is known but not handled yet gets no more
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

    /// True until its Create was answered, and while its creation is being undone.
    pub fn is_creating(&self) -> bool {
        matches!(self.inner, Inner::Creating | Inner::Undoing)
    }

    /// True if its init process is parked and no Start has come.
    pub fn is_created(&self) -> bool {
        matches!(self.inner, Inner::Created(_))
    }

    /// True until its Start was answered to the caller.
    pub fn is_yet_to_be_started(&self) -> bool {
        matches!(
            self.inner,
            Inner::Creating | Inner::Undoing | Inner::Created(_) | Inner::Blocked(..)
        )
    }

    /// True if its exit arrived before the report of the execution.
    pub fn has_early_exit(&self) -> bool {
        matches!(
            &self.inner,
            Inner::Releasing(_, Releasing { exit: Some(_), .. })
                | Inner::Restarting(_, Restarting { exit: Some(_), .. })
        )
    }

    /// True if its process is gone for good.
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

    /// True if the container exists for the caller and has not exited.
    pub fn is_alive(&self) -> bool {
        !self.is_creating() && !self.is_exited()
    }

    /// True if its init process is parked and waits: the program may still be executed.
    pub fn is_parked(&self) -> bool {
        matches!(
            self.inner,
            Inner::Created(_) | Inner::Blocked(..) | Inner::Held(..)
        )
    }

    /// True if its process is parked, and waits or is being killed.
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

    /// True if its process is gone and the caller does not know: there is nothing to signal.
    pub fn is_between_executions(&self) -> bool {
        matches!(self.inner, Inner::BackingOff(_) | Inner::Withheld { .. })
    }

    /// True if its program has exited and is to be restarted in place, or is being restarted.
    pub fn will_run_again(&self) -> bool {
        matches!(self.inner, Inner::BackingOff(_) | Inner::Restarting(..))
    }

    /// True if the program is being executed, for the first time or again: it cannot be signaled.
    pub fn is_being_executed(&self) -> bool {
        matches!(self.inner, Inner::Releasing(..) | Inner::Restarting(..))
    }

    /// True if there is a process that can be signaled.
    pub fn has_process(&self) -> bool {
        self.is_alive() && !self.is_between_executions() && !self.is_restarting()
    }

    /// The Start that is not answered yet.
    pub fn open_start(&self) -> Option<RequestId> {
        match &self.inner {
            Inner::Blocked(_, blocked) => Some(blocked.request),
            Inner::Ending(_, ending) => ending.start.open(),
            Inner::Releasing(_, releasing) => releasing.open_start(),
            _ => None,
        }
    }

    /// True if its Start was answered with success. Not asked of a published exit.
    pub fn was_started(&self) -> bool {
        match &self.inner {
            Inner::Ending(_, ending) => ending.start == EndedStart::Answered,
            Inner::Releasing(_, releasing) => releasing.open_start().is_none(),
            Inner::Exiting(exiting) => exiting.was_started,
            _ => self.is_running_for_caller(),
        }
    }

    /// True if the caller sees it as running, or will soon: its turn has come or its Start was
    /// answered, and its exit was not reported.
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

    /// The exit that is not published yet.
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

    /// The code of a container that is being killed unexecuted.
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

    /// True if it is started in the sense of KEP-753: the program runs, and its startup probe and
    /// postStart handler have succeeded.
    pub fn is_started(&self) -> bool {
        self.as_running().is_some_and(|running| {
            !running.watch.is_startup() && !running.post_start.is_in_the_way()
        })
    }

    /// The state of its postStart handler once its Start was answered.
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

    /// The exit status of the last process of a container that is being restarted.
    pub fn last_status(&self) -> Option<ExitStatus> {
        match &self.inner {
            Inner::BackingOff(BackingOff { status, .. })
            | Inner::Restarting(_, Restarting { status, .. }) => Some(*status),
            _ => None,
        }
    }

    /// The time since which its success is withheld.
    pub fn withheld_since(&self) -> Option<Time> {
        match self.inner {
            Inner::Withheld { since } => Some(since),
            _ => None,
        }
    }

    /// The state in one word.
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
