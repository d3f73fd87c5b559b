//! A guard against rules that repeat without effect, which is a bug.
//!
//! A rule whose effect changes nothing is due again at once, forever. The shim must serve its pod
//! all the same. If one rule has too many effects on one container in one evaluation of the rules,
//! the shim suspends the rule for this container for a while. All other rules go on.

use std::collections::BTreeMap;
use std::time::Duration;

use super::action::ContainerId;
use super::time::Time;

/// Number of effects that one evaluation of the rules may have before the shim begins to count the
/// effects of each rule. Even a large pod needs fewer.
const UNCOUNTED: usize = 1_000;

/// Maximum number of counted effects of one rule on one container, in one evaluation of the rules.
/// After one more, the rule is suspended.
const OFTEN: usize = 50;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(60);

/// The name of a rule, and the container that the rule was applied to; `None` for a rule about the
/// pod.
pub(super) type RuleUse = (&'static str, Option<ContainerId>);

/// The suspended rules, and rules whose suspension is over. The latter are kept because a rule is
/// suspended longer each time.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct SuspendedRules {
    suspensions: Vec<Suspension>,
}

#[derive(Clone, Debug, Hash)]
struct Suspension {
    rule: &'static str,
    id: Option<ContainerId>,
    until: Time,
    pause: Duration,
}

/// Counters of the effects in one evaluation of the rules. The first [`UNCOUNTED`] effects are
/// counted only in total, and later ones also by rule and container.
#[derive(Debug, Default)]
pub(super) struct Tally {
    decisions: usize,
    counts: BTreeMap<RuleUse, usize>,
}

impl Tally {
    /// Counts an effect. Returns true if the rule has had too many effects, so that it is to be
    /// suspended.
    pub fn count(&mut self, followed: &RuleUse) -> bool {
        self.decisions = self.decisions.saturating_add(1);
        if self.decisions <= UNCOUNTED {
            return false;
        }
        let count = self.counts.entry(followed.clone()).or_default();
        *count = count.saturating_add(1);
        *count > OFTEN
    }
}

impl SuspendedRules {
    /// Returns the end of a rule's suspension for a container, or for the pod if `id` is `None`.
    /// Returns `None` if the rule is not suspended at `now`.
    pub fn until(&self, now: Time, rule: &str, id: Option<&ContainerId>) -> Option<Time> {
        let mut suspensions = self.suspensions.iter();
        let its = suspensions
            .find(|suspension| suspension.rule == rule && suspension.id.as_ref() == id)?;
        (its.until > now).then_some(its.until)
    }

    /// Suspends a rule, and returns for how long. The time grows with each suspension.
    pub fn suspend(&mut self, now: Time, (rule, id): RuleUse) -> Duration {
        let its = |suspension: &&mut Suspension| suspension.rule == rule && suspension.id == id;
        if let Some(suspension) = self.suspensions.iter_mut().find(its) {
            suspension.pause = suspension.pause.saturating_mul(2).min(LAST_PAUSE);
            suspension.until = now.after(suspension.pause);
            return suspension.pause;
        }
        self.suspensions.push(Suspension {
            rule,
            id,
            until: now.after(FIRST_PAUSE),
            pause: FIRST_PAUSE,
        });
        FIRST_PAUSE
    }

    /// Forgets a removed container.
    pub fn forget(&mut self, id: &ContainerId) {
        self.suspensions
            .retain(|suspension| suspension.id.as_ref() != Some(id));
    }
}
