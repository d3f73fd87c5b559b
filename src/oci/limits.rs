//! Time limits that depend on the call: the limit of a creation depends on its caller's deadline,
//! and the limit of a deletion grows with each attempt that exceeds it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::error::Verb;

/// Upper bound of the time limit of a deletion.
const AT_MOST: Duration = Duration::from_secs(100);

/// Time limit of a creation whose caller sets none, and upper bound of any creation's limit. The
/// limit is long, because a hook may load a driver.
const CREATES_WITHIN_AT_MOST: Duration = Duration::from_secs(600);

/// Time reserved before the caller's deadline, to remove an incomplete container and return the
/// error.
const ANSWERS_BEFORE_DEADLINE: Duration = Duration::from_secs(20);

/// Time limit of a creation. `call_timeout` is the time until the caller's deadline.
pub fn of_create(call_timeout: Option<Duration>) -> Duration {
    call_timeout.map_or(CREATES_WITHIN_AT_MOST, |timeout| {
        let limit = timeout.saturating_sub(ANSWERS_BEFORE_DEADLINE);
        limit.clamp(Verb::Create.limit(), CREATES_WITHIN_AT_MOST)
    })
}

/// Number of times that a container's deletion has exceeded its limit.
///
/// Each timeout doubles the time limit of the next attempt. A first attempt that hangs is soon
/// over, and the next one may succeed. A slow deletion, as on a busy node with systemd, needs the
/// longer limit, because each attempt starts from the beginning. The caller may give up before a
/// long attempt is over. Its next call then finds the container deleted.
#[derive(Debug, Default)]
pub struct TimeLimits(AtomicU32);

impl TimeLimits {
    /// Time limit of the next attempt of a command.
    pub fn limit(&self, verb: Verb) -> Duration {
        let usual = verb.limit();
        if verb != Verb::Delete {
            return usual;
        }
        let times = 2_u32.saturating_pow(self.0.load(Ordering::Relaxed));
        usual.saturating_mul(times).min(AT_MOST)
    }

    /// Records that a command has exceeded its time limit.
    pub fn record_timeout(&self, verb: Verb) {
        if verb == Verb::Delete {
            let more = |times: u32| Some(times.saturating_add(1));
            // Cannot fail: `more` always returns a value.
            let _ = self
                .0
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_creation_may_last_until_shortly_before_its_callers_deadline() {
        let seconds = |timeout: u64| of_create(Some(Duration::from_secs(timeout))).as_secs();
        let limits = [10, 120, 121, 900].map(seconds);
        assert_eq!(limits, [100, 100, 101, 600]);
        assert_eq!(of_create(None).as_secs(), 600);
    }

    #[test]
    fn a_late_deletion_gets_more_time_up_to_a_limit() {
        let limits = TimeLimits::default();
        let usual = Verb::Delete.limit();
        for times in [1, 2, 4, 8] {
            assert_eq!(limits.limit(Verb::Delete), usual * times);
            limits.record_timeout(Verb::Delete);
        }
        for _ in 0..40 {
            limits.record_timeout(Verb::Delete);
        }
        assert_eq!(limits.limit(Verb::Delete), AT_MOST);
    }

    #[test]
    fn other_late_commands_get_no_more_time() {
        let limits = TimeLimits::default();
        for verb in [Verb::Kill, Verb::Create] {
            let usual = verb.limit();
            limits.record_timeout(verb);
            limits.record_timeout(Verb::Delete);
            assert_eq!(limits.limit(verb), usual);
        }
    }
}
