//! What has been done to stop a program.

use crate::lifecycle::Why;
use crate::lifecycle::time::Time;
use serde::{Deserialize, Serialize};

/// What has been done to stop a program.
///
/// ```text
///   Untold --> Preparing --> Told --> LastChance --> Killed --> GivenUp
///      '--> Condemned ------------------------------'
/// ```
///
/// Any of them may be left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(in crate::lifecycle) enum Stop {
    /// Nothing.
    #[default]
    Untold,
    /// Its preStop handler runs, which nobody else runs: its own stop has begun.
    Preparing { since: Time, is_over: bool },
    /// It is to be killed at that time, and was not told to stop: its program is just being executed.
    Condemned { since: Time, at: Time },
    /// It has its stop signal; SIGKILL follows at `kill_at`, if anybody knows when.
    Told {
        since: Time,
        why: Why,
        kill_at: Option<Time>,
    },
    /// It has been told that SIGKILL follows soon, and a SIGKILL of the caller shortens that no more.
    LastChance { since: Time, kill_at: Time },
    /// It has SIGKILL, since `at`.
    Killed { since: Time, at: Time, why: Why },
    /// Not even SIGKILL has ended it, and nobody waits for it any more.
    GivenUp { since: Time, why: Why },
}

// === impl Stop ===

impl Stop {
    /// Whether a stop signal or SIGKILL was delivered.
    pub fn is_told(self) -> bool {
        !matches!(self, Stop::Untold | Stop::Preparing { .. })
            && !matches!(self, Stop::Condemned { .. })
    }

    /// Whether SIGKILL was delivered.
    pub fn is_killed(self) -> bool {
        matches!(self, Stop::Killed { .. } | Stop::GivenUp { .. })
    }

    /// When it got SIGKILL, if it is still waited for.
    pub fn killed_at(self) -> Option<Time> {
        match self {
            Stop::Killed { at, .. } => Some(at),
            _ => None,
        }
    }

    /// When its own stop began, if it has.
    pub fn since(self) -> Option<Time> {
        match self {
            Stop::Untold => None,
            Stop::Preparing { since, .. }
            | Stop::Condemned { since, .. }
            | Stop::Told { since, .. }
            | Stop::LastChance { since, .. }
            | Stop::Killed { since, .. }
            | Stop::GivenUp { since, .. } => Some(since),
        }
    }

    /// When SIGKILL follows, if it is still to.
    pub fn kill_at(self) -> Option<Time> {
        match self {
            Stop::Condemned { at, .. } => Some(at),
            Stop::Told { kill_at, .. } => kill_at,
            Stop::LastChance { kill_at, .. } => Some(kill_at),
            Stop::Untold | Stop::Preparing { .. } | Stop::Killed { .. } | Stop::GivenUp { .. } => {
                None
            }
        }
    }

    /// Why it was told, if it was.
    pub fn why(self) -> Option<Why> {
        match self {
            Stop::Told { why, .. } | Stop::Killed { why, .. } | Stop::GivenUp { why, .. } => {
                Some(why)
            }
            Stop::LastChance { .. } | Stop::Condemned { .. } => Some(Why::TimeShort),
            Stop::Untold | Stop::Preparing { .. } => None,
        }
    }

    /// Whether it was told because it had failed: then it has not been told to go, and may come back.
    pub fn is_for_failure(self) -> bool {
        self.why().is_some_and(Why::is_failure)
    }

    /// What follows when its preStop handler is run.
    pub fn preparing(self, now: Time) -> Stop {
        match self {
            Stop::Untold => Stop::Preparing {
                since: now,
                is_over: false,
            },
            _ => self,
        }
    }

    /// What follows when that is over; none if it was not run.
    pub fn prepared(self) -> Option<Stop> {
        match self {
            Stop::Preparing {
                since,
                is_over: false,
            } => Some(Stop::Preparing {
                since,
                is_over: true,
            }),
            _ => None,
        }
    }

    /// What follows when it gets its stop signal.
    pub fn told(self, now: Time, why: Why, kill_at: Option<Time>) -> Stop {
        match self {
            Stop::Untold | Stop::Preparing { .. } | Stop::Condemned { .. } => Stop::Told {
                since: self.since().unwrap_or(now),
                why,
                kill_at: earliest(self.kill_at(), kill_at),
            },
            _ => self,
        }
    }

    /// What follows when it is told that it is to be killed soon.
    pub fn last_chance(self, now: Time, kill_at: Time) -> Stop {
        match self {
            Stop::LastChance { .. } | Stop::Killed { .. } | Stop::GivenUp { .. } => self,
            _ => Stop::LastChance {
                since: self.since().unwrap_or(now),
                kill_at: self.kill_at().map_or(kill_at, |at| at.min(kill_at)),
            },
        }
    }

    /// What follows when it is to be killed at `at`, and cannot be told so.
    pub fn condemned(self, now: Time, at: Time) -> Stop {
        match self {
            Stop::Untold | Stop::Preparing { .. } | Stop::Condemned { .. } => Stop::Condemned {
                since: self.since().unwrap_or(now),
                at: self.kill_at().map_or(at, |before| before.min(at)),
            },
            told => told,
        }
    }

    /// What follows when nobody waits for its end any more.
    pub fn over(self) -> Stop {
        Stop::GivenUp {
            since: self.since().unwrap_or_default(),
            why: self.why().unwrap_or(Why::GraceOver),
        }
    }

    /// What follows when it gets SIGKILL. What was told to go has been told; what failed, and has to be
    /// killed for it, has still failed.
    pub fn killed(self, now: Time, why: Why) -> Stop {
        Stop::Killed {
            since: self.since().unwrap_or(now),
            at: now,
            why: match self.why() {
                Some(told) if !told.is_failure() || why == Why::GraceOver => told,
                _ => why,
            },
        }
    }
}

fn earliest(one: Option<Time>, other: Option<Time>) -> Option<Time> {
    one.into_iter().chain(other).min()
}
