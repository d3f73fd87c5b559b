//! Rules that go round in circles, which is a bug.
//!
//! A rule whose deed changes nothing is due again at once, for ever. The shim must serve its pod all the same:
//! so a rule that is followed too often at one moment is set aside for a while, for that container alone, and
//! all other rules go on.

use std::collections::BTreeMap;
use std::time::Duration;

use super::action::ContainerId;
use super::time::Time;

/// Deeds at one moment before any rule is counted: more than a large pod has to do.
const UNCOUNTED: usize = 1_000;

/// Counted deeds by one rule for one container at one moment, after which the rule is set aside.
const OFTEN: usize = 50;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(60);

/// A rule by its name, and the container that it was followed for; none for the pod.
pub(super) type Followed = (&'static str, Option<ContainerId>);

/// The rules that are set aside.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Circles {
    aside: Vec<Aside>,
}

#[derive(Clone, Debug, Hash)]
struct Aside {
    rule: &'static str,
    id: Option<ContainerId>,
    until: Time,
    pause: Duration,
}

/// The deeds of one moment.
#[derive(Debug, Default)]
pub(super) struct Tally {
    deeds: usize,
    counts: BTreeMap<Followed, usize>,
}

impl Tally {
    /// Counts a deed. Returns true if the rule is followed too often.
    pub fn is_too_often(&mut self, followed: &Followed) -> bool {
        self.deeds = self.deeds.saturating_add(1);
        if self.deeds <= UNCOUNTED {
            return false;
        }
        let count = self.counts.entry(followed.clone()).or_default();
        *count = count.saturating_add(1);
        *count > OFTEN
    }
}

impl Circles {
    /// When a rule that is set aside is asked again. None if it is not set aside.
    pub fn until(&self, now: Time, rule: &str, id: Option<&ContainerId>) -> Option<Time> {
        let mut aside = self.aside.iter();
        let its = aside.find(|aside| aside.rule == rule && aside.id.as_ref() == id)?;
        (its.until > now).then_some(its.until)
    }

    /// Sets a rule aside, each time for longer. Returns for how long.
    pub fn set_aside(&mut self, now: Time, (rule, id): Followed) -> Duration {
        let its = |aside: &&mut Aside| aside.rule == rule && aside.id == id;
        if let Some(aside) = self.aside.iter_mut().find(its) {
            aside.pause = aside.pause.saturating_mul(2).min(LAST_PAUSE);
            aside.until = now.after(aside.pause);
            return aside.pause;
        }
        self.aside.push(Aside {
            rule,
            id,
            until: now.after(FIRST_PAUSE),
            pause: FIRST_PAUSE,
        });
        FIRST_PAUSE
    }

    /// Forgets a container that is gone.
    pub fn forget(&mut self, id: &ContainerId) {
        self.aside.retain(|aside| aside.id.as_ref() != Some(id));
    }
}
