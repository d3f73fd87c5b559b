//! The time after a termination: the pod starts over in its sandbox, or the shim kills the sandbox
//! so that the caller creates the pod again.

use crate::lifecycle::Pod;
use crate::lifecycle::action::{Cause, SignalReason};
use crate::lifecycle::container::Container;
use crate::lifecycle::effects::ContainerContext;
use crate::lifecycle::report::Report;
use crate::lifecycle::rules::{Decision, Due, PodDecision, Subject};
use crate::lifecycle::termination::Termination;
use crate::plan::{ContainerKind, Signal};

impl Pod {
    /// Rule: when the termination is over, the next run begins if a container was created for it
    /// and has not exited. Containers that only the caller starts and stops do not count. `None` if
    /// the sandbox has exited or is to be killed.
    pub(in crate::lifecycle) fn pod_starts_over(&self) -> Option<Due<PodDecision>> {
        let termination = self.termination.as_ref()?;
        let mut sandboxes = self.containers.values();
        let is_killed =
            self.is_sandbox_to_be_killed() && sandboxes.any(Container::is_living_sandbox);
        if !termination.is_over() || is_killed || self.sandbox_is_gone {
            return None;
        }
        // A container that only the caller starts and stops waits for no run: its program is
        // executed as soon as its Start comes.
        let is_next = |container: &&Container| {
            let is_ours = container.is_ordered() && !container.role_policy().is_left_to_caller();
            container.is_of_next_run && is_ours && !container.state.is_exited()
        };
        let mut next = self.containers.values().filter(is_next);
        let with = next.next()?.name.clone();
        Some(Due::Now(PodDecision::StartOver { with }))
    }

    pub(in crate::lifecycle) fn start_over(&mut self, with: String) {
        let ended = self.termination.take();
        let ended = ended.as_ref();
        let by_hand = ended.is_some_and(|ended| ended.by_hand);
        let is_complete = ended.is_some_and(|ended| ended.cause == Cause::Completed);
        let restarts_all = ended.is_some_and(Termination::is_followed_from_the_start);
        // All containers run again if a person stopped the last run, or if the caller restarts the
        // whole pod. They also run again after an incomplete run, if the restart policy restarts
        // failed containers. Otherwise, finished containers stay finished.
        let is_anew = by_hand || restarts_all || !is_complete && self.caller_restarts_failed();
        match is_anew {
            true => {
                self.forget_last_run();
                // In the next run every container name counts as new. So the last Create was also
                // the last Create with a new name.
                self.last_new_name = self.last_creation;
            }
            false => self.go_on(is_complete),
        }
        self.was_restarted |= restarts_all;
        self.move_next_run_to_current();
        self.out.report(Report::StartsOver {
            with,
            from_the_start: is_anew,
        });
    }

    /// Keeps the results of the last run for the next one: no container waits again for an init
    /// container that has finished. After a completed run, containers that the caller does not
    /// create again count as finished, too.
    fn go_on(&mut self, is_complete: bool) {
        self.history.start_over(false);
        if !is_complete {
            return;
        }
        let reported = self.history.reported();
        let gone = reported.filter(|(name, exit)| !self.comes_again(name, *exit));
        let gone: Vec<_> = gone.map(|(name, _)| name.to_owned()).collect();
        self.history.excuse(&gone);
    }

    /// True if the shim kills the sandbox after this termination, so that the caller starts the pod
    /// again in another sandbox. This is so if an essential container has failed, the restart
    /// policy restarts failed containers, and no person has run `usher stop`. Stays true after the
    /// kill.
    fn is_sandbox_to_be_killed(&self) -> bool {
        let starts_anew = self.termination.as_ref().is_some_and(|termination| {
            matches!(termination.cause, Cause::EssentialFailed { .. }) && !termination.by_hand
        });
        starts_anew && self.caller_restarts_failed()
    }
}

impl Container {
    fn is_living_sandbox(&self) -> bool {
        self.kind == ContainerKind::Sandbox && self.state.is_alive()
    }
}

impl Subject<'_> {
    /// Rule: the shim kills the sandbox after a termination that a failed essential container has
    /// caused. It does so once, and only if the restart policy restarts failed containers. The
    /// caller starts the pod again only after this kill (KEP-753 draft: "kill the entire pod and
    /// start again").
    pub(in crate::lifecycle) fn sandbox_is_killed(&self) -> Option<Due<Decision>> {
        let termination = self.pod.termination.as_ref()?;
        let is_due = termination.is_over()
            && !termination.is_sandbox_killed
            && self.container.is_living_sandbox()
            && self.pod.is_sandbox_to_be_killed();
        is_due.then_some(Due::Now(Decision::KillSandbox))
    }
}

impl ContainerContext<'_> {
    pub(in crate::lifecycle) fn kill_sandbox(&mut self) {
        if let Some(termination) = &mut self.termination {
            termination.is_sandbox_killed = true;
        }
        self.out.report(Report::SandboxKilled);
        self.signal(Signal::KILL, false, SignalReason::StartsAnew);
    }
}
