//! How long a deletion may take: longer each time, if it was not done.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::error::Verb;

/// How long a deletion may take at most.
const AT_MOST: Duration = Duration::from_secs(100);

/// How often a container's deletion was ended for taking too long. One that hangs comes to something when it
/// is tried again; one that is slow, as on a busy node with systemd, would begin from nothing for ever if it
/// did not get more time. Who waits for it has given up by then, and finds it done when it asks again.
#[derive(Debug, Default)]
pub struct Patience(AtomicU32);

impl Patience {
    /// How long a command may take now.
    pub fn limit(&self, verb: Verb) -> Duration {
        let usual = verb.limit();
        if verb != Verb::Delete {
            return usual;
        }
        let times = 2_u32.saturating_pow(self.0.load(Ordering::Relaxed));
        usual.saturating_mul(times).min(AT_MOST)
    }

    /// A command was ended for taking too long.
    pub fn was_late(&self, verb: Verb) {
        if verb == Verb::Delete {
            let more = |times: u32| Some(times.saturating_add(1));
            // It is never refused.
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
    fn a_deletion_gets_more_time_each_time_but_not_without_limit() {
        let patience = Patience::default();
        let usual = Verb::Delete.limit();
        for times in [1, 2, 4, 8] {
            assert_eq!(patience.limit(Verb::Delete), usual * times);
            patience.was_late(Verb::Delete);
        }
        for _ in 0..40 {
            patience.was_late(Verb::Delete);
        }
        assert_eq!(patience.limit(Verb::Delete), AT_MOST);
    }

    #[test]
    fn other_commands_do_not() {
        let patience = Patience::default();
        for verb in [Verb::Kill, Verb::Create] {
            let usual = verb.limit();
            patience.was_late(verb);
            patience.was_late(Verb::Delete);
            assert_eq!(patience.limit(verb), usual);
        }
    }
}
