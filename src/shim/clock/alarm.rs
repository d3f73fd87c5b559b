//! Wakes the core when a timer is due.

use std::time::Duration;

use usher_core::lifecycle::Time;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(60);

/// The timer of the core. If the timer is due again right after it was handled, the core has a bug.
/// The timer is then postponed, so that the actor still handles messages.
#[derive(Debug, Default)]
pub struct Alarm {
    /// Time at which the core was last woken.
    rang: Option<Time>,
    pause: Duration,
    /// Time to which the timer is postponed. `None` if the timer is not postponed.
    until: Option<Time>,
}

impl Alarm {
    /// Returns the time until which the actor sleeps before it wakes the core. Usually this is
    /// `at`, the time for which the core asks. If the core was already woken at `at` or later, the
    /// sleep ends 1 s after that wake-up. With each repetition this delay doubles, up to 60 s.
    pub fn schedule(&mut self, at: Time) -> Time {
        let Some(rang) = self.rang.filter(|rang| at <= *rang) else {
            self.pause = Duration::ZERO;
            self.until = None;
            return at;
        };
        if let Some(until) = self.until {
            return until;
        }
        self.pause = self.pause.saturating_mul(2).clamp(FIRST_PAUSE, LAST_PAUSE);
        tracing::error!(
            pause = ?self.pause,
            "internal error: a timer of the pod is due again right after it was handled; postponed"
        );
        *self.until.insert(rang.after(self.pause))
    }

    /// Notes that the actor wakes the core now, because its sleep is over.
    pub fn ring(&mut self, now: Time) {
        self.rang = Some(now);
        self.until = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::from_origin(Duration::from_secs(seconds))
    }

    #[test]
    fn a_timer_that_is_due_again_is_postponed_for_longer_each_time() {
        let mut alarm = Alarm::default();
        assert_eq!(alarm.schedule(at(0)), at(0));
        let mut now = at(0);
        for pause in [1, 2, 4, 8, 16, 32, 60, 60] {
            alarm.ring(now);
            let then = alarm.schedule(now);
            assert_eq!(then.since(now), Duration::from_secs(pause));
            assert_eq!(alarm.schedule(now), then, "no message moves it");
            now = then;
        }
        alarm.ring(now);
        assert_eq!(
            alarm.schedule(now.after(FIRST_PAUSE)),
            now.after(FIRST_PAUSE)
        );
        assert_eq!(alarm.schedule(now).since(now), FIRST_PAUSE);
    }
}
