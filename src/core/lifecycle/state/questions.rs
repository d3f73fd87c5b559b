//! Queries of a container's state.

use crate::lifecycle::RequestId;
use crate::lifecycle::exec::PostStart;
use crate::lifecycle::time::Time;
use crate::process::ExitStatus;

use super::{
    BackingOff, Blocked, ContainerState, Ending, Exiting, Held, Inner, Releasing, Restarting,
    Running, Start, StateSummary, Stop,
};

impl ContainerState {
    /// The progress of its stop. A program whose exit is known but not handled yet gets no more
    /// signals.
    pub fn stop(&self) -> Stop {
        let (stop, exit) = match &self.inner {
            Inner::Running(Running { stop, .. }) => (*stop, None),
            Inner::Releasing(Releasing { stop, exit, .. })
            | Inner::Restarting(Restarting { stop, exit, .. }) => (*stop, *exit),
            _ => (Stop::Untold, None),
        };
        match exit {
            None => stop,
            Some(_) => stop.over(),
        }
    }

    pub fn is_creating(&self) -> bool {
        matches!(self.inner, Inner::Creating)
    }

    /// True if its init process is parked and no Start has come.
    pub fn is_created(&self) -> bool {
        matches!(self.inner, Inner::Created)
    }

    /// True until its Start was answered to the caller.
    pub fn is_yet_to_be_started(&self) -> bool {
        matches!(
            self.inner,
            Inner::Creating | Inner::Created | Inner::Blocked(_)
        )
    }

    /// True if its exit arrived before the report of the execution.
    pub fn has_early_exit(&self) -> bool {
        matches!(
            &self.inner,
            Inner::Releasing(Releasing { exit: Some(_), .. })
                | Inner::Restarting(Restarting { exit: Some(_), .. })
        )
    }

    /// True if its process is gone for good.
    pub fn is_exited(&self) -> bool {
        matches!(self.inner, Inner::Exiting(_) | Inner::Exited)
    }

    pub fn is_ending(&self) -> bool {
        matches!(self.inner, Inner::Ending(_))
    }

    pub fn is_held(&self) -> bool {
        matches!(self.inner, Inner::Held(_))
    }

    pub fn is_releasing(&self) -> bool {
        matches!(self.inner, Inner::Releasing(_))
    }

    pub fn is_restarting(&self) -> bool {
        matches!(self.inner, Inner::Restarting(_))
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
            Inner::Created | Inner::Blocked(_) | Inner::Held(_)
        )
    }

    /// True if its process is parked, and waits or is being killed.
    pub fn is_unexecuted(&self) -> bool {
        self.is_parked() || self.is_ending()
    }

    /// True if the program runs, or is being executed for the first time.
    pub fn is_executed(&self) -> bool {
        matches!(self.inner, Inner::Releasing(_) | Inner::Running(_))
    }

    pub fn is_running(&self) -> bool {
        matches!(self.inner, Inner::Running(_))
    }

    /// True if its process is gone and the caller does not know: there is nothing to signal.
    pub fn is_between_executions(&self) -> bool {
        matches!(self.inner, Inner::BackingOff(_) | Inner::Withheld { .. })
    }

    /// True if its program has exited and is to be restarted in place, or is being restarted.
    pub fn will_run_again(&self) -> bool {
        matches!(self.inner, Inner::BackingOff(_) | Inner::Restarting(_))
    }

    /// True if the program is being executed, for the first time or again: it cannot be signaled.
    pub fn is_being_executed(&self) -> bool {
        matches!(self.inner, Inner::Releasing(_) | Inner::Restarting(_))
    }

    /// True if there is a process that can be signaled.
    pub fn has_process(&self) -> bool {
        self.is_alive() && !self.is_between_executions() && !self.is_restarting()
    }

    /// The Start that is not answered yet.
    pub fn open_start(&self) -> Option<RequestId> {
        match &self.inner {
            Inner::Blocked(blocked) => Some(blocked.request),
            Inner::Ending(ending) => ending.start,
            Inner::Releasing(releasing) => releasing.open_start(),
            _ => None,
        }
    }

    /// True if the caller sees it as running, or will soon: its turn has come or its Start was
    /// answered, and its exit was not reported.
    pub fn reads_running(&self) -> bool {
        !matches!(
            self.inner,
            Inner::Creating
                | Inner::Created
                | Inner::Blocked(_)
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
            Inner::Blocked(blocked) => Some(blocked),
            _ => None,
        }
    }

    pub fn as_held(&self) -> Option<&Held> {
        match &self.inner {
            Inner::Held(held) => Some(held),
            _ => None,
        }
    }

    /// The code of a container that is being killed unexecuted.
    pub fn ending_code(&self) -> Option<u32> {
        match self.inner {
            Inner::Ending(Ending { code, .. }) => Some(code),
            _ => None,
        }
    }

    pub fn as_running(&self) -> Option<&Running> {
        match &self.inner {
            Inner::Running(running) => Some(running),
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

    /// The exit status of the last process of a container that is being restarted.
    pub fn last_status(&self) -> Option<ExitStatus> {
        match &self.inner {
            Inner::BackingOff(BackingOff { status, .. })
            | Inner::Restarting(Restarting { status, .. }) => Some(*status),
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
            Inner::Creating => StateSummary::Creating,
            Inner::Created => StateSummary::Created,
            Inner::Blocked(_) => StateSummary::Starting,
            Inner::Held(_) => StateSummary::Held,
            Inner::Ending(_) => StateSummary::Stopping,
            Inner::Running(running) if running.stop.is_told() => StateSummary::Stopping,
            Inner::Releasing(_) | Inner::Running(_) => StateSummary::Running,
            Inner::BackingOff(_) => StateSummary::BackingOff,
            Inner::Restarting(_) => StateSummary::Restarting,
            Inner::Withheld { .. } => StateSummary::Completed,
            Inner::Exiting(_) | Inner::Exited => StateSummary::Stopped,
        }
    }
}
