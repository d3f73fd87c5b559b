//! A limit on the CPU time that the probes of a pod take from the rest of the node.
//!
//! Each attempt of a probe costs CPU time of the shim and of the processes that the shim starts,
//! and the pod's author may set any period. So all attempts of a pod together may use only a
//! fraction of one core on average. For a short time they may use a little more. When this CPU time
//! is used up, the next attempt is delayed. The expected cost of an attempt is reserved when the
//! attempt begins. Otherwise all attempts could begin at the same time.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::time::Time;
use crate::share::Share;

/// Seconds in which the probe attempts of a pod may use one second of CPU time: at most a
/// fourteenth of a core. usher promises a tenth. The difference covers CPU time that the shim
/// cannot measure: that of the OCI runtime's process before it executes the probe's command (with
/// runc, a fifth of the cost).
const PACE: u32 = 14;

/// CPU time that probe attempts may use at once before the limit delays further attempts. So the
/// first attempts in a starting pod do not wait.
const AHEAD: Duration = Duration::from_millis(200);

/// Unmeasured CPU time of a probe attempt: the shim writes log lines, and other processes read
/// them.
const HANDLING: Duration = Duration::from_micros(400);

/// CPU time expected of an attempt before any attempt was measured. A probe that runs a command
/// costs this much.
const UNKNOWN: Duration = Duration::from_millis(20);

/// The CPU time that the probes of a pod have used.
#[derive(Clone, Debug, Hash, Serialize, Deserialize)]
pub(super) struct Allowance {
    share: Share,
    attempts: Vec<Attempt>,
    /// Expected cost of an attempt for a container that was never probed: the cost expected after
    /// the pod's last attempt. `None` before the pod's first attempt.
    usual: Option<Duration>,
    /// True if the log already says that probes are made less often than their periods say.
    pub is_reported: bool,
}

#[derive(Clone, Debug, Hash, Serialize, Deserialize)]
struct Attempt {
    execution: u64,
    began: Time,
    /// Reserved CPU time.
    expected: Duration,
}

impl Default for Allowance {
    fn default() -> Allowance {
        Allowance {
            share: Share::new(PACE, AHEAD),
            attempts: Vec::new(),
            usual: None,
            is_reported: false,
        }
    }
}

impl Allowance {
    /// The expected cost of the next attempt for a container. `known` is the cost expected from the
    /// container's earlier attempts. Without earlier attempts, the result is the cost expected from
    /// the pod's other attempts.
    pub fn expected(&self, known: Option<Duration>) -> Duration {
        known.or(self.usual).unwrap_or(UNKNOWN)
    }

    /// Returns the time from which an attempt with this expected cost may begin. A past time means
    /// at once.
    pub fn free_at(&self, expected: Duration) -> Time {
        self.share.free_at(expected)
    }

    /// Returns the shortest period in which the limit allows one probe attempt for each container.
    /// `expected` is the expected cost of all these attempts together.
    pub fn period(&self, expected: Duration) -> Duration {
        self.share.in_time(expected)
    }

    /// Reserves the expected cost of an attempt that begins.
    pub fn begin(&mut self, now: Time, execution: u64, expected: Duration) {
        self.share.spend(now, expected);
        self.attempts.push(Attempt {
            execution,
            began: now,
            expected,
        });
    }

    /// Records the end of a probe attempt of execution number `execution`. The measured `cost`
    /// replaces the CPU time reserved for the attempt. Returns a new estimate of the cost of the
    /// container's next attempt, computed from `cost` and from the previous estimate `known`.
    /// `None` if no attempt of this execution was under way.
    pub fn finish(
        &mut self,
        now: Time,
        execution: u64,
        cost: Duration,
        known: Option<Duration>,
    ) -> Option<Duration> {
        let is_it = |attempt: &Attempt| attempt.execution == execution;
        let position = self.attempts.iter().position(is_it)?;
        let Attempt {
            began, expected, ..
        } = self.attempts.swap_remove(position);
        let cost = cost.saturating_add(HANDLING);
        match cost.checked_sub(expected) {
            Some(more) => self.share.spend(now, more),
            None => self
                .share
                .give_back(now, began, expected.saturating_sub(cost)),
        }
        // If costs vary, one cheap attempt lowers the expected cost only by half of the difference.
        let known = known.unwrap_or(cost).saturating_add(cost);
        let expected = cost.max(known.checked_div(2).unwrap_or_default());
        self.usual = Some(expected);
        Some(expected)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn an_unused_reservation_is_available_again() {
        let mut allowance = Allowance::default();
        let now = Time::from_origin(Duration::from_secs(100));
        for execution in 0..10 {
            assert!(allowance.free_at(UNKNOWN) <= now, "{execution}");
            allowance.begin(now, execution, UNKNOWN);
        }
        assert!(allowance.free_at(UNKNOWN) > now);
        for execution in 0..10 {
            let next = allowance.finish(now, execution, ms(1), None);
            assert_eq!(next, Some(ms(1) + HANDLING));
        }
        assert!(allowance.free_at(UNKNOWN) <= now);
        // An attempt that never began is ignored.
        assert_eq!(allowance.finish(now, 11, ms(1), None), None);
    }

    #[test]
    fn an_attempt_that_costs_more_than_the_allowance_begins_once_it_is_saved() {
        let mut allowance = Allowance::default();
        let now = Time::from_origin(Duration::from_secs(100));
        allowance.begin(now, 1, Duration::from_secs(2));
        assert_eq!(
            allowance.free_at(Duration::from_secs(2)),
            now.after(Duration::from_secs(28))
        );
        assert!(allowance.free_at(Duration::MAX) < now.after(Duration::from_secs(29)));
        allowance.begin(now, 2, Duration::MAX);
        allowance.finish(now, 2, Duration::MAX, Some(Duration::MAX));
        assert!(allowance.free_at(Duration::ZERO) > now);
    }

    /// The attempts of one container: CPU time and duration of each, in milliseconds.
    fn attempts() -> impl Strategy<Value = Vec<(u64, u64)>> {
        prop::collection::vec((0_u64..60, 0_u64..3_000), 1..20)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn attempts_take_a_tenth_of_a_core_at_any_cost(
            containers in prop::collection::vec(attempts(), 1..6),
        ) {
            let mut allowance = Allowance::default();
            let mut known = vec![None; containers.len()];
            let mut made = vec![0; containers.len()];
            let mut ends: Vec<Option<(Time, Duration)>> = vec![None; containers.len()];
            let mut spent: Vec<(Time, Duration)> = Vec::new();
            let mut now = Time::from_origin(Duration::from_secs(1));
            let end = now.after(Duration::from_secs(90));
            while now < end {
                for (n, attempts) in containers.iter().enumerate() {
                    if let Some((at, cost)) = ends[n] && at <= now {
                        ends[n] = None;
                        spent.push((now, cost));
                        known[n] = allowance.finish(now, n as u64, cost, known[n]);
                    }
                    let expected = allowance.expected(known[n]);
                    if ends[n].is_none() && allowance.free_at(expected) <= now {
                        let (cost, takes) = attempts[made[n] % attempts.len()];
                        made[n] += 1;
                        ends[n] = Some((now.after(ms(takes)), ms(cost)));
                        allowance.begin(now, n as u64, expected);
                    }
                }
                now = now.after(ms(1));
            }
            for (from, _) in &spent {
                let window = spent.iter().filter(|(at, _)| at >= from && at.since(*from) <= Duration::from_secs(30));
                let sum: Duration = window.map(|(_, cost)| *cost).sum();
                prop_assert!(sum <= Duration::from_secs(3), "{sum:?} from {from} on");
            }
            // The limit must not be too strict either: the probes still make many attempts.
            prop_assert!(made.iter().sum::<usize>() > 20, "{made:?}");
        }
    }
}
