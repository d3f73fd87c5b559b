//! Limits work that clients can request without limit to a share of one CPU core.

use serde::{Deserialize, Serialize};

use std::time::Duration;

use crate::lifecycle::Time;

/// A limit on the CPU time of some work: a share of one core. Work may spend some CPU time in
/// advance. Spent CPU time is paid off as time passes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Share {
    /// Seconds that it takes to pay off one second of CPU time.
    pace: u32,
    /// CPU time that may be spent in advance, before work has to wait.
    ahead: Duration,
    /// The time when everything spent so far is paid off.
    paid_at: Time,
}

impl Share {
    /// Returns a share of 1/`pace` of a core, with nothing spent.
    pub const fn new(pace: u32, ahead: Duration) -> Share {
        Share {
            pace,
            ahead,
            paid_at: Time::from_origin(Duration::ZERO),
        }
    }

    /// Returns when work with this expected cost may begin. Work that costs more than the advance
    /// begins when everything is paid off.
    pub fn free_at(&self, expected: Duration) -> Time {
        self.paid_at
            .before(self.in_time(self.ahead.saturating_sub(expected)))
    }

    /// The time needed to pay off this much CPU time.
    pub fn in_time(&self, cost: Duration) -> Duration {
        cost.saturating_mul(self.pace)
    }

    /// Charges CPU time that work takes at `now`.
    pub fn spend(&mut self, now: Time, cost: Duration) {
        self.paid_at = self.paid_at.max(now).after(self.in_time(cost));
    }

    /// Refunds CPU time that was charged at `then` and that the work did not need. The part that
    /// has been paid off since `then` is not refunded.
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
