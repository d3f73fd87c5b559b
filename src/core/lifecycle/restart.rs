//! Sidecars that are restarted in place: same task, same streams, another process.
//!
//! Under a pod's `restartPolicy` of `OnFailure` or `Never` the caller does not restart a helper that
//! has crashed, or would have to restart the pod for it; and once the pod terminates, no caller
//! does. The back-off is kubelet's: the first restart comes at once, then it doubles from 10 s to
//! 5 min, and is forgotten after 10 min of health.

use std::time::Duration;

use crate::plan::RestartPolicy;
use crate::process::ExitStatus;

use super::Pod;
use super::action::{Action, ContainerId, ProbeKind, Why};
use super::container::Container;
use super::life::Stop;
use super::probe::{PostStart, Watch};
use super::report::Report;
use super::rules::{Deed, Due, Subject};
use super::time::Time;

const FIRST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(300);
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);

/// How long a restart is put off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
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

// === what happened ===

impl Pod {
    /// What became of [`Action::Restart`]: the program is being executed anew, or the reason why
    /// not. It is tried again then, after the back-off.
    pub fn handle_restarted(&mut self, now: Time, id: &ContainerId, outcome: Result<(), String>) {
        self.now = now;
        let is_restarting = |container: &&Container| container.life.is_restarting();
        if self.containers.get(id).filter(is_restarting).is_some() {
            match outcome {
                Ok(()) => self.restarted(id),
                Err(reason) => self.not_restarted(id, reason),
            }
        }
        self.settle(now);
    }

    fn restarted(&mut self, id: &ContainerId) {
        let (now, watch) = (self.now, self.watch_at_start(id));
        let life = self.count_execution();
        let Some(mut hand) = self.hand(id) else {
            return;
        };
        let outcome = hand.container.life.restarted(now, life, watch);
        let Some(exit) = hand.noted(outcome) else {
            return;
        };
        if hand.container.life.post_start() == Some(&PostStart::Repeating) {
            let id = id.clone();
            hand.out.push(Action::PostStart { id, life });
        }
        hand.note_if_started();
        if let Some(exit) = exit {
            self.exited(id, exit);
        }
    }

    fn not_restarted(&mut self, id: &ContainerId, reason: String) {
        let Some(hand) = self.hand(id) else {
            return;
        };
        let was_told = hand.container.was_told();
        let status = hand.container.life.last_status();
        let name = hand.container.name.clone();
        hand.out.report(Report::NotRestarted { name, reason });
        self.back_off(id, Duration::ZERO, status.unwrap_or(ExitStatus::Signal(9)));
        if was_told && let Some(container) = self.containers.get(id) {
            let dismissed = self.dismissed(container);
            self.do_to(id, dismissed);
        }
    }

    /// Its program has ended with `status` after it ran for so long, and is executed anew in a while.
    pub(super) fn back_off(&mut self, id: &ContainerId, ran: Duration, status: ExitStatus) {
        let Some(mut hand) = self.hand(id) else {
            return;
        };
        let wait = hand.container.back_off.after(ran);
        let outcome = hand.container.life.back_off(status, hand.now.after(wait));
        if hand.noted(outcome).is_some() {
            let (name, code) = (hand.container.name.clone(), status.code());
            hand.out.report(Report::Restarts { name, code, wait });
        }
    }
}

// === rules ===

impl Subject<'_> {
    /// Rule: what has ended, and reads running, is executed anew when its back-off is over, or its
    /// end is told.
    pub(super) fn life_goes_on(&self) -> Option<Due<Deed>> {
        let life = &self.container.life;
        if let Some(backing_off) = life.as_backing_off() {
            // There is no pod any more that it could have another life in.
            return Some(match self.pod.sandbox_is_gone {
                true => Due::Now(self.pod.dismissed(self.container)),
                false => self.pod.due(backing_off.until, || Deed::Restart),
            });
        }
        if life.is_restarting() && self.pod.sandbox_is_gone && life.stop() == Stop::Untold {
            return Some(Due::Now(Deed::Kill));
        }
        let until = self.pod.withheld_until(self.container)?;
        Some(self.pod.due(until, || self.pod.dismissed(self.container)))
    }
}

// === what rules ask ===

impl Pod {
    /// Whether a container whose program has ended with `status` is restarted in place; `stop` is what
    /// had been done to end it.
    pub(super) fn restarts_in_place(
        &self,
        container: &Container,
        status: ExitStatus,
        stop: Stop,
    ) -> bool {
        let has_failed = stop.is_for_failure();
        if !container.duty().is_helper || stop.is_killed() && !has_failed {
            return false;
        }
        // A termination's requests wait for their turn, and so long it is needed (KEP-753: sidecars
        // are restarted until they are notified by their stop signal).
        let asked_alone = container.is_asked() && self.termination.is_none();
        let was_told = (stop.is_told() || stop.kill_at().is_some()) && !has_failed;
        let has_to_go = was_told || asked_alone || self.turn_has_come(container);
        let is_to_live = stop.why() == Some(Why::ProbeFailed(ProbeKind::Liveness));
        let own = self.own_restart_policy(container);
        let wanted = match is_to_live {
            // Its author wants the shim to bring it back that finds it unwell.
            true => own.is_none_or(RestartPolicy::restarts_failed),
            false => self.restart_policy(container).restarts(status.code()),
        };
        wanted && !has_to_go && !self.sandbox_is_gone && !self.ends_the_pod(container, status)
    }

    /// Whether a container may ever be restarted in place.
    pub fn may_restart_in_place(&self, id: &ContainerId) -> bool {
        self.containers.get(id).is_some_and(|container| {
            let own = self.own_restart_policy(container);
            let restarts = own.map(RestartPolicy::restarts_failed);
            match container.duty().is_helper {
                // At the end of the pod at the latest.
                true => self.has_orders() && restarts != Some(false),
                false => container.defer_turn().is_some() && restarts == Some(true),
            }
        })
    }

    /// When the shim restarts a container: as its author says, else as its role wants it.
    pub(super) fn restart_policy(&self, container: &Container) -> RestartPolicy {
        let Some(plan) = &self.plan else {
            return RestartPolicy::Never;
        };
        let by_role = container
            .duty()
            .restart(plan.settings().restart_policy, self.termination.is_some());
        self.own_restart_policy(container).unwrap_or(by_role)
    }

    fn own_restart_policy(&self, container: &Container) -> Option<RestartPolicy> {
        self.plan_of(container)?.restart
    }

    /// What is watched of a program that is executed now.
    pub(super) fn watch_at_start(&self, id: &ContainerId) -> Watch {
        let plan = self
            .containers
            .get(id)
            .and_then(|container| Some((container.duty(), self.plan_of(container)?)));
        match plan {
            Some((_, plan)) if plan.startup_probe.is_some() => {
                Watch::startup(plan.startup_probe.as_ref(), self.now)
            }
            Some((duty, plan)) if duty.is_helper => {
                Watch::liveness(plan.liveness_probe.as_ref(), self.now, self.now)
            }
            _ => Watch::Nothing,
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
