//! A limit on the CPU time of work that clients can request as often as they like. The limit is a
//! share of one CPU core.

use serde::{Deserialize, Serialize};

use std::time::Duration;

use crate::lifecycle::Time;

/// A limit on the CPU time of some work: a share of one core. Spent CPU time is a debt, which is
/// paid off as time passes. Work may begin while the debt is small.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Share {
    /// Seconds that must pass to pay off a debt of one second of CPU time.
    pace: u32,
    /// Largest debt in CPU time. Work has to wait if its expected cost would make the debt larger.
    ahead: Duration,
    /// The time when no debt is left. There is no debt if this time has passed.
    paid_at: Time,
}

impl Share {
    /// Returns a limit of 1/`pace` of a core, with no debt at the beginning.
    pub const fn new(pace: u32, ahead: Duration) -> Share {
        Share {
            pace,
            ahead,
            paid_at: Time::from_origin(Duration::ZERO),
        }
    }

    /// Returns the time from which work with this expected cost may begin. Work that costs more
    /// than the largest debt has to wait until the whole debt is paid off.
    pub fn free_at(&self, expected: Duration) -> Time {
        self.paid_at
            .before(self.in_time(self.ahead.saturating_sub(expected)))
    }

    /// Returns the time that must pass to pay off the CPU time `cost`.
    pub fn in_time(&self, cost: Duration) -> Duration {
        cost.saturating_mul(self.pace)
    }

    /// Charges the CPU time `cost` at the time `now`. The charge adds to the debt.
    pub fn spend(&mut self, now: Time, cost: Duration) {
        self.paid_at = self.paid_at.max(now).after(self.in_time(cost));
    }

    /// Refunds CPU time that was charged at `then`, but that the work did not need. The time that
    /// has passed since `then` has paid off a part of this charge. Only the rest is refunded.
    pub fn give_back(&mut self, now: Time, then: Time, cost: Duration) {
        let paid = now.since(then);
        self.paid_at = self.paid_at.before(self.in_time(cost).saturating_sub(paid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn work_waits_once_the_time_ahead_is_spent_and_no_longer_than_it_takes_to_pay_off() {
        let mut share = Share::new(20, ms(10));
        let now = Time::from_origin(Duration::from_secs(100));
        share.spend(now, ms(10));
        assert_eq!(share.free_at(Duration::ZERO), now);
        share.spend(now, ms(5));
        assert_eq!(share.free_at(Duration::ZERO), now.after(ms(100)));
        assert_eq!(share.free_at(ms(10)), now.after(ms(300)));
        assert_eq!(share.free_at(Duration::MAX), now.after(ms(300)));
        share.give_back(now, now, ms(5));
        assert_eq!(share.free_at(Duration::ZERO), now);
    }

    #[test]
    fn no_cost_overflows() {
        let mut share = Share::new(u32::MAX, Duration::MAX);
        share.spend(Time::from_origin(Duration::MAX), Duration::MAX);
        assert_eq!(share.free_at(Duration::ZERO), Time::default());
    }
}
