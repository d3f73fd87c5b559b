//! The progress of stopping a container's program.

use crate::lifecycle::SignalReason;
use crate::lifecycle::time::Time;
use serde::{Deserialize, Serialize};

/// The progress of stopping a program.
///
/// ```text
///   Undelivered --> Preparing --> Delivered --> LastChance --> Killed --> GivenUp
///      '--> KillScheduled ------------------------------'
/// ```
///
/// Each step may be left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(in crate::lifecycle) enum Stop {
    #[default]
    Undelivered,
    /// The shim has started the preStop handler, before the stop signal. `is_over`: the handler has
    /// ended.
    Preparing { since: Time, is_over: bool },
    /// SIGKILL is scheduled for the time `at`. No stop signal was delivered, because the shim did
    /// not know yet that the program was executed.
    KillScheduled { since: Time, at: Time },
    /// The stop signal was delivered; SIGKILL follows at `kill_at`, if that is known.
    Delivered {
        since: Time,
        why: SignalReason,
        kill_at: Option<Time>,
    },
    /// The final stop signal was delivered; SIGKILL follows shortly after, at `kill_at`. If the
    /// caller sends SIGKILL to a sidecar meanwhile, the sidecar still has its time until `kill_at`,
    /// except under the grace policy `Strict`.
    LastChance { since: Time, kill_at: Time },
    /// SIGKILL was delivered at `at`, or the restart under way was canceled then.
    Killed {
        since: Time,
        at: Time,
        why: SignalReason,
    },
    /// The pod no longer waits for the program to end: its exit is known already, or the shim has
    /// given up because SIGKILL did not end it.
    GivenUp { since: Time, why: SignalReason },
}

impl Stop {
    /// True if a stop signal or SIGKILL was delivered, whatever the reason: a stop request, or a
    /// failed probe or postStart handler. Also true if the pod no longer waits for the program.
    pub fn is_delivered(self) -> bool {
        !matches!(self, Stop::Undelivered | Stop::Preparing { .. })
            && !matches!(self, Stop::KillScheduled { .. })
    }

    /// True if the stop signal was delivered, SIGKILL is scheduled, or the pod no longer waits for
    /// the program. A stop because of a failed probe or postStart handler does not count.
    pub fn is_under_way(self) -> bool {
        (self.is_delivered() || self.kill_at().is_some()) && !self.is_for_failure()
    }

    /// True if SIGKILL was delivered, or the pod no longer waits for the program.
    pub fn is_killed(self) -> bool {
        matches!(self, Stop::Killed { .. } | Stop::GivenUp { .. })
    }

    /// The time when SIGKILL was delivered. `None` before that, and once the pod no longer waits
    /// for the program.
    pub fn killed_at(self) -> Option<Time> {
        match self {
            Stop::Killed { at, .. } => Some(at),
            _ => None,
        }
    }

    /// The time when the shim began this stop: it started the preStop handler, scheduled SIGKILL,
    /// or delivered a signal. `None` before.
    pub fn since(self) -> Option<Time> {
        match self {
            Stop::Undelivered => None,
            Stop::Preparing { since, .. }
            | Stop::KillScheduled { since, .. }
            | Stop::Delivered { since, .. }
            | Stop::LastChance { since, .. }
            | Stop::Killed { since, .. }
            | Stop::GivenUp { since, .. } => Some(since),
        }
    }

    /// The time for which SIGKILL is scheduled. `None` if SIGKILL is not scheduled, or was
    /// delivered already.
    pub fn kill_at(self) -> Option<Time> {
        match self {
            Stop::KillScheduled { at, .. } => Some(at),
            Stop::Delivered { kill_at, .. } => kill_at,
            Stop::LastChance { kill_at, .. } => Some(kill_at),
            Stop::Undelivered
            | Stop::Preparing { .. }
            | Stop::Killed { .. }
            | Stop::GivenUp { .. } => None,
        }
    }

    /// The reason for the stop signal or SIGKILL that was delivered, or for the SIGKILL that is
    /// scheduled while the program is being executed. `None` before.
    pub fn why(self) -> Option<SignalReason> {
        match self {
            Stop::Delivered { why, .. } | Stop::Killed { why, .. } | Stop::GivenUp { why, .. } => {
                Some(why)
            }
            Stop::LastChance { .. } | Stop::KillScheduled { .. } => Some(SignalReason::TimeShort),
            Stop::Undelivered | Stop::Preparing { .. } => None,
        }
    }

    /// True if the program was signaled because a probe or the postStart handler had failed. This
    /// is no stop request: the container may be restarted.
    pub fn is_for_failure(self) -> bool {
        self.why().is_some_and(SignalReason::is_failure)
    }

    /// The state after the shim has started the preStop handler. Unchanged if the stop had begun
    /// before.
    pub fn preparing(self, now: Time) -> Stop {
        match self {
            Stop::Undelivered => Stop::Preparing {
                since: now,
                is_over: false,
            },
            _ => self,
        }
    }

    /// The state after the end of the preStop handler. `None` if the end of a handler changes
    /// nothing: the shim has started no handler, the handler was over, or a signal came before its
    /// end.
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

    /// The state after the delivery of the stop signal. If SIGKILL is scheduled already, the
    /// earlier of that time and `kill_at` counts. Returns the state unchanged if a signal was
    /// delivered before.
    pub fn delivered(self, now: Time, why: SignalReason, kill_at: Option<Time>) -> Stop {
        match self {
            Stop::Undelivered | Stop::Preparing { .. } | Stop::KillScheduled { .. } => {
                Stop::Delivered {
                    since: self.since().unwrap_or(now),
                    why,
                    kill_at: earliest(self.kill_at(), kill_at),
                }
            }
            _ => self,
        }
    }

    /// The state after the final stop signal, which comes shortly before SIGKILL. SIGKILL follows
    /// at `kill_at`, or earlier if it was already scheduled for an earlier time. Unchanged if the
    /// final stop signal or SIGKILL was delivered before, or if the pod no longer waits for the
    /// program.
    pub fn last_chance(self, now: Time, kill_at: Time) -> Stop {
        match self {
            Stop::LastChance { .. } | Stop::Killed { .. } | Stop::GivenUp { .. } => self,
            _ => Stop::LastChance {
                since: self.since().unwrap_or(now),
                kill_at: self.kill_at().map_or(kill_at, |at| at.min(kill_at)),
            },
        }
    }

    /// The state after the shim has scheduled SIGKILL for the time `at`, because it does not know
    /// yet that the program was executed. If SIGKILL was scheduled before, the earlier of both
    /// times counts. Unchanged if a signal was delivered before.
    pub fn kill_scheduled(self, now: Time, at: Time) -> Stop {
        match self {
            Stop::Undelivered | Stop::Preparing { .. } | Stop::KillScheduled { .. } => {
                Stop::KillScheduled {
                    since: self.since().unwrap_or(now),
                    at: self.kill_at().map_or(at, |before| before.min(at)),
                }
            }
            delivered => delivered,
        }
    }

    /// The state of a program that the pod no longer waits for, because its exit is known or
    /// because SIGKILL has not ended it. `since` is zero if no stop had begun. `why` is `GraceOver`
    /// if no signal was delivered or scheduled before.
    pub fn over(self) -> Stop {
        Stop::GivenUp {
            since: self.since().unwrap_or_default(),
            why: self.why().unwrap_or(SignalReason::GraceOver),
        }
    }

    /// The state after SIGKILL for the reason `why`. If the container got a signal before, the
    /// reason for that signal stays. One exception: if the container was stopped for a failure, and
    /// the caller sends this SIGKILL, `why` replaces the failure.
    pub fn killed(self, now: Time, why: SignalReason) -> Stop {
        Stop::Killed {
            since: self.since().unwrap_or(now),
            at: now,
            why: match self.why() {
                Some(before) if !before.is_failure() || why == SignalReason::GraceOver => before,
                _ => why,
            },
        }
    }
}

fn earliest(one: Option<Time>, other: Option<Time>) -> Option<Time> {
    one.into_iter().chain(other).min()
}
