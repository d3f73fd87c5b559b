//! Sidecars that are restarted in place: same task, same streams, another process.
//!
//! Under a pod's `restartPolicy` of `OnFailure` or `Never` the caller does not restart a helper that
//! has crashed, or would have to restart the pod for it. The back-off is kubelet's: the first
//! restart comes at once, then it doubles from 10 s to 5 min, and is forgotten after 10 min of
//! health.

use std::time::Duration;

use crate::plan::{RestartPolicy, Role};
use crate::process::ExitStatus;

use super::action::{Action, ContainerId, Report};
use super::container::{Container, Running, Startup, State};
use super::time::Time;
use super::{Pod, Timer};

const FIRST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(300);
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);

/// How long a restart is put off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BackOff {
    next: Duration,
}

impl BackOff {
    /// How long the restart of a program is put off that has run for `ran`.
    fn after(&mut self, ran: Duration) -> Duration {
        if ran >= FORGOTTEN_AFTER {
            self.next = Duration::ZERO;
        }
        let wait = self.next;
        self.next = wait.saturating_mul(2).clamp(FIRST, LONGEST);
        wait
    }
}

impl Pod {
    /// Whether a container whose program has ended with `status` is restarted in place.
    pub(super) fn restarts_in_place(&self, container: &Container, status: ExitStatus) -> bool {
        // One that failed its startup probe is killed where it does not heed its stop signal.
        let failed_by_itself = container.startup_failed && container.request.is_none();
        let was_killed = container.stopping.killed && !failed_by_itself;
        if container.role != Role::Sidecar || was_killed {
            return false;
        }
        // A termination's requests wait for their turn, and so long it is needed (KEP-753: sidecars
        // are restarted until they are notified by their stop signal).
        let asked_alone = container.is_asked() && self.termination.is_none();
        let has_to_go = container.was_told() || asked_alone || self.turn_has_come(container);
        let wanted = match self.restart_policy(&container.name) {
            RestartPolicy::Always => true,
            RestartPolicy::OnFailure => status != ExitStatus::Code(0),
            RestartPolicy::Never => false,
        };
        wanted && !has_to_go && !self.sandbox_is_gone && !self.ends_the_pod(container, status)
    }

    /// Whether a container may ever be restarted in place.
    pub fn may_restart_in_place(&self, id: &ContainerId) -> bool {
        self.containers.get(id).is_some_and(|container| {
            matches!(container.role, Role::Sidecar | Role::Defer(_))
                && self.restart_policy(&container.name) != RestartPolicy::Never
        })
    }

    /// When the shim restarts a sidecar: as its author says, else where the caller does not.
    pub(super) fn restart_policy(&self, name: &str) -> RestartPolicy {
        let Some(plan) = &self.plan else {
            return RestartPolicy::Never;
        };
        let by_default = match (plan.role(name), plan.settings().restart_policy) {
            (Role::Defer(_), _) | (_, RestartPolicy::Always) => RestartPolicy::Never,
            (_, RestartPolicy::OnFailure | RestartPolicy::Never) => RestartPolicy::Always,
        };
        plan.container(name).restart.unwrap_or(by_default)
    }

    pub(super) fn back_off(
        &mut self,
        id: &ContainerId,
        ran: Duration,
        status: ExitStatus,
        now: Time,
    ) {
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let wait = container.back_off.after(ran);
        container.state = State::BackingOff {
            status,
            until: now.after(wait),
        };
        container.stopping = super::container::Stopping::default();
        container.startup_failed = false;
        let report = Report::Restarts {
            name: container.name.clone(),
            code: status.code(),
            wait,
        };
        self.report(report);
    }

    pub(super) fn settle_restarts(&mut self, now: Time) {
        for id in self.ids() {
            let Some(container) = self.containers.get_mut(&id) else {
                continue;
            };
            if self.sandbox_is_gone {
                self.leave_out(&id, now);
            } else if let State::BackingOff { status, until } = container.state
                && until <= now
            {
                container.state = State::Restarting { status, exit: None };
                self.actions.push_back(Action::Restart { id });
            }
        }
    }

    /// There is no pod any more that a container could have another life in.
    fn leave_out(&mut self, id: &ContainerId, now: Time) {
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        match container.state {
            State::BackingOff { .. } => self.dismiss(id, now),
            State::Restarting { .. } => {
                container.stopping.kill_at.get_or_insert(now);
            }
            _ => {}
        }
    }

    /// What became of [`Action::Restart`]: the program is being executed anew, or the reason why
    /// not. It is tried again then, after the back-off.
    pub fn handle_restarted(&mut self, now: Time, id: &ContainerId, outcome: Result<(), String>) {
        let probe = self.startup_probe(id);
        if let Some(container) = self.containers.get_mut(id)
            && let State::Restarting { status, exit } = container.state
        {
            match outcome {
                Ok(()) => {
                    // What was to end its restart came too late.
                    container.stopping.killed = false;
                    self.executions = self.executions.saturating_add(1);
                    container.state = State::Running(Running {
                        since: now,
                        life: self.executions,
                        startup: Startup::begin(probe, now),
                    });
                    self.report_if_started(now, id);
                    if let Some(exit) = exit {
                        self.exited(now, id, exit);
                    }
                }
                Err(reason) => {
                    let report = Report::NotRestarted {
                        name: container.name.clone(),
                        reason,
                    };
                    let was_told = container.was_told();
                    self.report(report);
                    self.back_off(id, Duration::ZERO, status, now);
                    if was_told {
                        self.dismiss(id, now);
                    }
                }
            }
        }
        self.settle(now);
    }

    pub(super) fn restart_timers(&self, timers: &mut Vec<(Time, Timer)>) {
        for container in self.containers.values() {
            if let State::BackingOff { until, .. } = container.state {
                timers.push((until, Timer::Restart));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_back_off_doubles_from_ten_seconds_to_five_minutes_and_is_forgotten() {
        let mut back_off = BackOff::default();
        let waits: Vec<u64> = (0..8)
            .map(|_| back_off.after(Duration::from_secs(599)).as_secs())
            .collect();
        assert_eq!(waits, [0, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(back_off.after(Duration::from_secs(600)), Duration::ZERO);
    }
}
