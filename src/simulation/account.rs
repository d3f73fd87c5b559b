//! What a node has to tell of a pod's life, for the promises of the core: they hold for all of a shim, but
//! for what went wrong on the node itself. That is said here, of whom and for how long.

use std::time::Duration;

use usher_core::lifecycle::Time;
use usher_core::simulator::Seen;
use usher_core::simulator::trace::{self, Excuse};

use crate::engine::sim::{Deed, Happening, Left};

use super::containerd::Called;
use super::faults::{Faults, SIMULATED, TOOK_TOO_LONG, limit};
use super::invariants::Account;
use super::node::OTHERS;

/// What is felt of something when it is over: an answer on its way, a retry.
const AFTERWARDS: Duration = Duration::from_millis(200);

/// How long a creation takes where nothing goes wrong.
const CREATED_WITHIN: Duration = Duration::from_millis(30);

/// From so many milliseconds on a call of the engine is seen in when a container is there again.
const SLOW: u64 = 100;

/// Longer than any pod lives.
const FOR_GOOD: Duration = Duration::from_secs(86_400);

impl Account<'_> {
    /// What is held against the promises.
    pub fn for_promises<'a>(
        &'a self,
        faults: &Faults,
        seen: &'a [(Time, Seen)],
    ) -> trace::Account<'a> {
        let left = (self.left != Left::default()).then(|| format!("{:?}", self.left));
        trace::Account {
            seen,
            start_waits: self.start_waits(faults),
            unanswered: self.open.clone(),
            left: left.into_iter().collect(),
            idle_wakes: 0,
            excuses: self.excuses(faults),
        }
    }

    /// How long each Start waited for its turn: what its release took then is the engine's, the whole time
    /// of one that failed.
    fn start_waits(&self, faults: &Faults) -> Vec<(Duration, Option<Duration>)> {
        let is_released = |called: &Called| {
            !self.story.iter().any(|(at, happening)| {
                let deed = Deed::Release;
                matches!(happening, Happening::Failed { deed: of, id, .. } if *of == deed && *id == called.id)
                    && (called.at..=called.at + called.took).contains(at)
            })
        };
        let starts = self.called.iter().filter(|called| {
            let is_inits = called.call == "Start" && called.exec_id.is_empty();
            is_inits && !called.is_cut && is_released(called)
        });
        // The release, and the news of it.
        let release = Duration::from_millis(faults.slow) * 2;
        let waits = starts.map(|called| (called.took.saturating_sub(release), called.limit));
        waits.collect()
    }

    /// Whether a container was executed shortly before.
    fn is_new(&self, id: &str, at: Duration) -> bool {
        self.story.iter().any(|(then, happening)| {
            matches!(happening, Happening::Executed { id: of } if of == id)
                && *then <= at
                && at - *then < Duration::from_secs(2)
        })
    }

    fn excuses(&self, faults: &Faults) -> Vec<Excuse> {
        let slow = Duration::from_millis(faults.slow) + AFTERWARDS;
        let mut all = Vec::new();
        let mut excuse = |id: Option<&str>, from: Duration, until: Duration| {
            all.push(Excuse {
                id: id.map(kubelets),
                from: Time::from_origin(from),
                until: Time::from_origin(until),
            });
        };
        for (at, happening) in &self.story {
            let Happening::Failed { deed, id, why } = happening else {
                continue;
            };
            let own = match why.contains(TOOK_TOO_LONG) {
                true => limit(*deed) + AFTERWARDS,
                false => slow,
            };
            let until = match deed {
                // Nobody waits for these.
                Deed::Forget | Deed::Delete | Deed::Scores | Deed::WritePod | Deed::TellManager => {
                    continue;
                }
                // Until it runs again, if it ever does.
                Deed::Create | Deed::CreateAgain | Deed::Release => {
                    let is_it = |(then, happening): &&(Duration, Happening)| {
                        then > at && matches!(happening, Happening::Executed { id: of } if of == id)
                    };
                    let again = self.story.iter().find(is_it);
                    again.map_or(FOR_GOOD, |(then, _)| *then).max(*at + own)
                }
                _ => *at + own,
            };
            excuse(Some(id), *at, until);
        }
        for lost in &self.lost {
            // "simulated: Release of web", and nothing tells when that was.
            let words = lost
                .split(SIMULATED)
                .nth(1)
                .and_then(|of| of.split(" of ").nth(1));
            let id = words.and_then(|words| words.split_whitespace().next());
            excuse(id, Duration::ZERO, FOR_GOOD);
        }
        for (at, away) in &faults.deaths {
            let at = Duration::from_millis(*at);
            excuse(None, at, at + Duration::from_millis(*away) + AFTERWARDS);
        }
        // Until it is there nothing can be asked of it.
        for creation in self.called.iter().filter(|called| called.call == "Create") {
            let over = creation.at + creation.took + AFTERWARDS;
            match creation.is_cut {
                // Whose caller has gone is undone, and never there.
                true => excuse(Some(&creation.id), creation.at, FOR_GOOD),
                false if creation.took > CREATED_WITHIN => {
                    excuse(Some(&creation.id), creation.at, over);
                }
                false => {}
            }
        }
        // As long as four calls of the engine may take: what is left of the last life, the creation, the
        // release and the news of each.
        let again = Duration::from_millis(faults.slow) * 4 + AFTERWARDS;
        for (at, happening) in &self.story {
            match happening {
                Happening::Died {
                    id, exec_id: None, ..
                } if faults.slow > SLOW => excuse(Some(id), *at, *at + again),
                // What comes so soon may be a postStart handler for all that anybody knows.
                Happening::ExecBegan { id, exec_id, .. } if exec_id.starts_with(OTHERS) => {
                    let over = self.story.iter().find(|(_, other)| {
                        matches!(other, Happening::Died { exec_id: Some(of), .. } if of == exec_id)
                    });
                    let until = over.map_or(FOR_GOOD, |(then, _)| *then);
                    if self.is_new(id, *at) {
                        excuse(Some(id), *at, until + AFTERWARDS);
                    }
                }
                _ => {}
            }
        }
        // What somebody has frozen, and perhaps left so.
        for paused in self.called.iter().filter(|called| called.call == "Pause") {
            let resumed = self.called.iter().find(|called| {
                called.call == "Resume"
                    && called.id == paused.id
                    && called.at >= paused.at
                    && called.outcome.is_ok()
            });
            let until = resumed.map_or(FOR_GOOD, |resumed| resumed.at + resumed.took + AFTERWARDS);
            excuse(Some(&paused.id), paused.at, until);
        }
        all
    }
}

/// What kubelet calls it.
fn kubelets(id: &str) -> String {
    match id.starts_with("pause-") {
        true => "pause".to_owned(),
        false => id.to_owned(),
    }
}
