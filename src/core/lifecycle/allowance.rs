//! What the probes of a pod may cost those who do not belong to it.
//!
//! An attempt takes CPU time of the shim, and of what the shim starts for it, however short the period
//! is that the pod's author wants. All attempts of a pod together have a share of one core, and a
//! little ahead: while that is used up the next one is put off. What an attempt will cost is put aside
//! when it begins, or all of them would begin at once.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::time::Time;
use crate::share::Share;

/// A second of CPU time is paid off in so many seconds: so all attempts take a fourteenth of a core.
/// What is left to the promised tenth is for what nobody can measure: of a command, the part of the OCI
/// runtime that becomes the command (a fifth of all, as was seen with runc).
const PACE: u32 = 14;

/// How much may be used ahead, in CPU time: the first attempts of a pod that starts wait for nothing.
const AHEAD: Duration = Duration::from_millis(200);

/// What an attempt costs beside what was measured of it, in CPU time: its lines in the log, and whoever
/// reads them.
const HANDLING: Duration = Duration::from_micros(400);

/// What an attempt is taken to cost before any was made, in CPU time: that of a command.
const UNKNOWN: Duration = Duration::from_millis(20);

/// What all probes of a pod have used of their share of a core.
#[derive(Clone, Debug, Hash, Serialize, Deserialize)]
pub(super) struct Allowance {
    share: Share,
    /// The attempts under way.
    attempts: Vec<Attempt>,
    /// What is expected of a container that no attempt was made of.
    usual: Option<Duration>,
    /// It was reported that periods are stretched.
    pub is_reported: bool,
}

#[derive(Clone, Debug, Hash, Serialize, Deserialize)]
struct Attempt {
    life: u64,
    began: Time,
    /// What was put aside for it.
    expected: Duration,
}

// === impl Allowance ===

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
    /// What an attempt is taken to cost that has been `known` to cost so much.
    pub fn expected(&self, known: Option<Duration>) -> Duration {
        known.or(self.usual).unwrap_or(UNKNOWN)
    }

    /// When an attempt may begin that is expected to cost so much.
    pub fn free_at(&self, expected: Duration) -> Time {
        self.share.free_at(expected)
    }

    /// How far apart attempts are in the long run that cost so much together.
    pub fn period(&self, expected: Duration) -> Duration {
        self.share.in_time(expected)
    }

    /// An attempt begins.
    pub fn begin(&mut self, now: Time, life: u64, expected: Duration) {
        self.share.spend(now, expected);
        self.attempts.push(Attempt {
            life,
            began: now,
            expected,
        });
    }

    /// The attempt of a container's `life` is over and took so much CPU time. Gives what is to be
    /// expected of the next one, if one was under way.
    pub fn over(
        &mut self,
        now: Time,
        life: u64,
        cost: Duration,
        known: Option<Duration>,
    ) -> Option<Duration> {
        let is_it = |attempt: &Attempt| attempt.life == life;
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
        // Of those that cost now this, now that, not the cheapest is expected.
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
    fn what_was_put_aside_and_not_used_is_there_again() {
        let mut allowance = Allowance::default();
        let now = Time::from_origin(Duration::from_secs(100));
        for life in 0..10 {
            assert!(allowance.free_at(UNKNOWN) <= now, "{life}");
            allowance.begin(now, life, UNKNOWN);
        }
        assert!(allowance.free_at(UNKNOWN) > now);
        for life in 0..10 {
            let next = allowance.over(now, life, ms(1), None);
            assert_eq!(next, Some(ms(1) + HANDLING));
        }
        assert!(allowance.free_at(UNKNOWN) <= now);
        // One that nobody knows of is none.
        assert_eq!(allowance.over(now, 11, ms(1), None), None);
    }

    #[test]
    fn what_costs_more_than_there_is_ahead_begins_when_all_is_paid_off() {
        let mut allowance = Allowance::default();
        let now = Time::from_origin(Duration::from_secs(100));
        allowance.begin(now, 1, Duration::from_secs(2));
        assert_eq!(
            allowance.free_at(Duration::from_secs(2)),
            now.after(Duration::from_secs(28))
        );
        assert!(allowance.free_at(Duration::MAX) < now.after(Duration::from_secs(29)));
        allowance.begin(now, 2, Duration::MAX);
        allowance.over(now, 2, Duration::MAX, Some(Duration::MAX));
        assert!(allowance.free_at(Duration::ZERO) > now);
    }

    /// Of one container: what an attempt takes of CPU, and how long it is under way.
    fn attempts() -> impl Strategy<Value = Vec<(u64, u64)>> {
        prop::collection::vec((0_u64..60, 0_u64..3_000), 1..20)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn whatever_attempts_cost_all_of_them_take_a_tenth_of_a_core(
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
                        known[n] = allowance.over(now, n as u64, cost, known[n]);
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
            // The budget is used, not only kept to.
            prop_assert!(made.iter().sum::<usize>() > 20, "{made:?}");
        }
    }
}
