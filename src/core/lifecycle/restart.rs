//! Restarts in place of sidecars and of failed defer containers (`defers.rs`): same task, same
//! streams, another process.
//!
//! The shim restarts a sidecar if the caller does not: under a pod's `restartPolicy` of `OnFailure`
//! or `Never`, after a failed liveness probe, and in a termination until the sidecar has to stop.
//! The back-off is kubelet's: the first restart comes at once, then the wait doubles from 10 s to
//! 5 min, and resets after a program has run for 10 min. In a termination the wait is 0, 1, 2, then
//! 4 s.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::plan::RestartPolicy;
use crate::process::ExitStatus;

use super::Pod;
use super::action::{Action, ActionError, ContainerId, ProbeKind, SignalReason, Step};
use super::container::Container;
use super::effects::ContainerContext;
use super::exec::PostStart;
use super::probe::Watch;
use super::report::Report;
use super::rules::{Decision, Due, Subject};
use super::state::Stop;
use super::termination::Termination;
use super::time::Time;

const FIRST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(300);
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);

/// The longest wait before a restart in place during a termination.
const LONGEST_IN_AN_END: Duration = Duration::from_secs(4);

/// The waits between one container's restarts. A termination has waits of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct BackOff {
    next: Duration,
    /// The wait before the next restart in the termination under way. `None` before the first
    /// restart in this termination.
    in_an_end: Option<Duration>,
}

impl BackOff {
    /// Returns the wait before the next restart while the pod does not terminate. The program has
    /// run for `ran`. The wait is 0 at first, and again after a run of ten minutes. Doubles the
    /// wait for the next time, and forgets the waits of an earlier termination.
    fn next_wait(&mut self, ran: Duration) -> Duration {
        self.in_an_end = None;
        if ran >= FORGOTTEN_AFTER {
            self.next = Duration::ZERO;
        }
        let wait = self.next;
        self.next = wait.saturating_mul(2).clamp(FIRST, LONGEST);
        wait
    }

    /// Returns the wait before a restart in a termination, and moves on to the next wait: 0, 1, 2,
    /// then always 4 s.
    fn next_wait_in_termination(&mut self) -> Duration {
        let wait = self.peek_wait_in_termination();
        let next = wait.saturating_mul(2);
        self.in_an_end = Some(next.clamp(Duration::from_secs(1), LONGEST_IN_AN_END));
        wait
    }

    /// The wait before the next restart in a termination, 0 for the first one. Changes nothing.
    pub fn peek_wait_in_termination(self) -> Duration {
        self.in_an_end.unwrap_or_default()
    }

    /// True if the container's last restart was scheduled in a termination, even if the shim had
    /// inferred that termination by mistake. False before the first restart.
    pub fn was_scheduled_in_termination(self) -> bool {
        self.in_an_end.is_some()
    }
}

impl Pod {
    /// Records the outcome of [`Action::Restart`]. A failed restart is tried again after the
    /// back-off. But if the shim began to stop the container meanwhile, the exit of the last
    /// process is reported instead. Does nothing if the container is not being restarted.
    pub fn handle_restarted(
        &mut self,
        now: Time,
        id: &ContainerId,
        outcome: Result<(), ActionError>,
    ) {
        self.now = now;
        // After a failed restart, the shim does not try again if it has begun to stop the
        // container. An early exit of the new process is no such stop: `stop` would count it,
        // `stop_of_restart` does not.
        let hidden_exit = |pod: &Pod, it: &Container| {
            let is_stopped = it.state.stop_of_restart().is_under_way();
            is_stopped.then(|| pod.report_of_hidden_exit(it))
        };
        let exit = self.on_event(id, hidden_exit, |context, hidden_exit| match outcome {
            _ if !context.container.state.is_restarting() => None,
            Ok(()) => context.complete_restart(),
            Err(reason) => {
                context.fail_restart(reason, hidden_exit);
                None
            }
        });
        self.handle_exit(id, exit.flatten());
        self.settle(now);
    }
}

impl ContainerContext<'_> {
    /// Records that the program was restarted. If the caller has run a postStart handler before,
    /// tells the driver to repeat it. Returns the exit of the new process if this exit arrived
    /// before the outcome of the restart.
    fn complete_restart(&mut self) -> Option<ExitStatus> {
        let (execution, watch) = (self.count_execution(), self.first_probe());
        let outcome = self
            .container
            .state
            .complete_restart(self.now, execution, watch);
        let exit = self.ok_or_log(outcome)?;
        let post_start = self.container.state.post_start();
        if matches!(post_start, Some(PostStart::Repeating { .. })) {
            let id = self.id.clone();
            self.out.push(Action::PostStart { id, execution });
        }
        self.note_if_started();
        exit
    }

    fn fail_restart(&mut self, reason: ActionError, hidden_exit: Option<Decision>) {
        let status = self.container.state.last_status();
        let name = self.container.name.clone();
        self.out.report(Report::NotRestarted { name, reason });
        self.back_off(Duration::ZERO, status.unwrap_or(ExitStatus::Signal(9)));
        if let Some(decision) = hidden_exit {
            self.carry_out(decision);
        }
    }

    /// Schedules the restart of a program that exited with `status` after it ran for `ran`. After a
    /// failed restart, `ran` is zero. If the shim later drops the restart, the exit code for the
    /// caller comes from `status`.
    pub(super) fn back_off(&mut self, ran: Duration, status: ExitStatus) {
        let back_off = &mut self.container.back_off;
        let wait = match self.termination.is_some() {
            true => back_off.next_wait_in_termination(),
            false => back_off.next_wait(ran),
        };
        let is_asked = self.termination.is_none()
            && self.container.is_asked()
            && self.container.state.is_running();
        let now = self.now;
        if let Some(post_start) = self.container.state.post_start_mut() {
            *post_start = post_start.interrupted(now);
        }
        let outcome = self
            .container
            .state
            .back_off(status, now.after(wait), is_asked);
        if self.ok_or_log(outcome).is_some() {
            let (name, code) = (self.container.name.clone(), status.code());
            let wait = (!is_asked).then_some(wait);
            self.out.report(Report::Restarts { name, code, wait });
        }
    }

    /// Counts an execution of a program. Returns its number, which is unique in the pod.
    pub(super) fn count_execution(&mut self) -> u64 {
        *self.executions = self.executions.saturating_add(1);
        *self.executions
    }

    /// The first probe of a program that is executed now: its startup probe or, for a sidecar
    /// without one, its liveness probe. Otherwise [`Watch::Nothing`].
    pub(super) fn first_probe(&self) -> Watch {
        let plan = self.plan.map(|plan| plan.container(&self.container.name));
        let liveness = plan.and_then(|plan| plan.liveness_probe.as_ref());
        match plan.and_then(|plan| plan.startup_probe.as_ref()) {
            None if self.container.role_policy().is_helper => {
                Watch::liveness(liveness, self.now, self.now)
            }
            startup => Watch::startup(startup, self.now),
        }
    }
}

impl Subject<'_> {
    /// Rule: decides how a container goes on after an exit that the shim hides from the caller.
    ///
    /// - A container that waits for its restart in place is restarted after its back-off, or at
    ///   once if a termination still needs the container. If a restart is of no use any more, the
    ///   exit is reported.
    /// - A restart under way is canceled if the sandbox is gone.
    /// - The success of an init container that is alone in its pod is reported after
    ///   `startup-timeout`.
    ///
    /// `None` for other containers, and while a cleanup delays the restart. Also `None` until
    /// [`single_request_is_delivered`](Self::single_request_is_delivered) has decided if the
    /// container's stop request is part of a termination.
    pub(super) fn restart_advances(&self) -> Option<Due<Decision>> {
        let state = &self.container.state;
        if let Some(backing_off) = state.as_backing_off() {
            // Without the sandbox, a restart is of no use. For a defer container, a restart is also
            // of no use after a termination that the shim had inferred by mistake.
            let comes_too_late = self.pod.sandbox_is_gone || self.is_defer_outside_termination();
            return Some(match comes_too_late {
                true => Due::Now(self.pod.report_of_hidden_exit(self.container)),
                // The OCI runtime cannot restart a container that it is cleaning up.
                false if self.container.is_cleanup_under_way() => return None,
                false if backing_off.is_asked && self.pod.termination.is_none() => return None,
                false if self.is_needed_at_once() => Due::Now(Decision::Restart),
                false => self.pod.due(backing_off.until, || Decision::Restart),
            });
        }
        if state.is_restarting() && self.pod.sandbox_is_gone && state.stop() == Stop::Undelivered {
            return Some(Due::Now(Decision::Kill));
        }
        let until = self.pod.withheld_until(self.container)?;
        Some(
            self.pod
                .due(until, || self.pod.report_of_hidden_exit(self.container)),
        )
    }
}

impl Subject<'_> {
    /// True if the container was already waiting for its restart when the termination began, and
    /// the step of the sidecars has not begun yet. The containers of the earlier steps may need
    /// this container. False outside of a termination.
    fn is_needed_at_once(&self) -> bool {
        let step = self.pod.termination.as_ref().map(Termination::step);
        let is_needed = step.is_some_and(|step| step < Step::Sidecars);
        is_needed && !self.container.back_off.was_scheduled_in_termination()
    }

    /// True for a defer container while the pod does not terminate. Such a container may wait for
    /// its restart: it ran in a termination that the shim had inferred by mistake.
    fn is_defer_outside_termination(&self) -> bool {
        self.container.defer_turn().is_some() && self.pod.termination.is_none()
    }
}

impl Pod {
    /// True if the shim restarts the container in place after an exit with `status`. The container
    /// must be a sidecar, and [`restart_policy`](Pod::restart_policy) must restart it. After a
    /// failed liveness probe another condition replaces the policy: the shim restarts the sidecar
    /// unless its annotation `restart.usher/NAME` is `Never`. False if the container is being
    /// stopped, deleted or checkpointed, or if its turn to stop has come. Also false if the sandbox
    /// has died, or if this exit is the failure of an essential container. `stop` is the progress
    /// of the container's stop before the exit. A stop for a failed probe or postStart handler does
    /// not prevent the restart.
    pub(super) fn restarts_in_place(
        &self,
        container: &Container,
        status: ExitStatus,
        stop: Stop,
    ) -> bool {
        let has_failed = stop.is_for_failure();
        let is_killed = stop.is_killed() && !has_failed;
        if !container.role_policy().is_helper || is_killed || container.is_removal_wanted() {
            return false;
        }
        // A stop request alone does not prevent the restart: the container is needed until the shim
        // delivers the stop signal (KEP-753: sidecars are restarted until they are notified by
        // their stop signal).
        //
        // If a cleanup is under way when the program exits, a checkpoint ends the container. Then
        // the container is not restarted.
        let has_to_go = stop.is_under_way()
            || self.turn_has_come(container)
            || container.is_cleanup_under_way();
        let is_to_live = stop.why() == Some(SignalReason::ProbeFailed(ProbeKind::Liveness));
        let own = self.own_restart_policy(container);
        let wanted = match is_to_live {
            // By setting a liveness probe, the author has asked for this restart.
            true => own.is_none_or(RestartPolicy::restarts_failed),
            false => self.restart_policy(container).restarts(status.code()),
        };
        wanted
            && !has_to_go
            && !self.sandbox_is_gone
            && !self.is_essential_failure(container, status)
    }

    /// True if the shim may restart the container in place at some time. The driver asks when it
    /// creates the container. False for an unknown container.
    pub fn may_restart_in_place(&self, id: &ContainerId) -> bool {
        self.known(id).is_ok_and(|container| {
            let own = self.own_restart_policy(container);
            let restarts = own.map(RestartPolicy::restarts_failed);
            match container.role_policy().is_helper {
                // During a termination the shim restarts a sidecar, whatever the pod's restart
                // policy.
                true => self.has_orders() && restarts != Some(false),
                false => container.defer_turn().is_some() && restarts == Some(true),
            }
        })
    }

    /// The policy by which the shim, not the caller, restarts a container: the author's setting
    /// `restart`, or else the policy of its role, which changes when the pod terminates. A
    /// container that was asked to stop has the policy of a termination, because its request may be
    /// the first one of a termination. `Never` in a pod without a plan.
    pub(super) fn restart_policy(&self, container: &Container) -> RestartPolicy {
        let Some(plan) = &self.plan else {
            return RestartPolicy::Never;
        };
        let may_terminate = self.termination.is_some() || container.is_asked();
        let by_role = container
            .role_policy()
            .restart(plan.settings().restart_policy, may_terminate);
        self.own_restart_policy(container).unwrap_or(by_role)
    }

    fn own_restart_policy(&self, container: &Container) -> Option<RestartPolicy> {
        self.plan_of(container)?.restart
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_back_off_doubles_from_ten_seconds_to_five_minutes_and_is_forgotten() {
        let mut back_off = BackOff::default();
        let waits: Vec<u64> = (0..8)
            .map(|_| back_off.next_wait(Duration::from_secs(599)).as_secs())
            .collect();
        assert_eq!(waits, [0, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(back_off.next_wait(Duration::from_secs(600)), Duration::ZERO);
    }

    #[test]
    fn inside_an_end_the_back_off_is_0_1_2_then_4_seconds() {
        let mut back_off = BackOff::default();
        back_off.next_wait(Duration::ZERO);
        assert!(!back_off.was_scheduled_in_termination());
        let waits: Vec<u64> = (0..5)
            .map(|_| back_off.next_wait_in_termination().as_secs())
            .collect();
        assert_eq!(waits, [0, 1, 2, 4, 4]);
        assert!(back_off.was_scheduled_in_termination());
        // The earlier back-off continues after a termination that the shim had inferred by mistake.
        assert_eq!(back_off.next_wait(Duration::ZERO), FIRST);
        assert_eq!(back_off.peek_wait_in_termination(), Duration::ZERO);
    }
}
