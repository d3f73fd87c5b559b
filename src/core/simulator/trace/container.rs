//! The record of one container.

use crate::lifecycle::Time;
use crate::plan::Signal;
use crate::process::ExitStatus;
use crate::simulator::case::{Member, Part};
use crate::simulator::ms;

/// A container from its creation to its end.
#[derive(Debug)]
pub struct ContainerTrace<'a> {
    pub id: String,
    pub member: &'a Member,
    pub sandbox: usize,
    pub created: Time,
    /// Number of records before its creation.
    pub created_after: usize,
    /// The time when its Create was refused.
    pub refused: Option<Time>,
    pub answered: Option<(Time, bool)>,
    /// The end of its postStart handler as its caller knows it, and true if it succeeded; `None` if
    /// the caller does not know.
    pub handled: Option<(Time, bool)>,
    pub executed: Vec<Time>,
    pub signals: Vec<(Time, Signal)>,
    pub died: Vec<(Time, ExitStatus)>,
    pub reported: Option<(Time, u32)>,
    /// Number of records before the report of its exit.
    pub reported_after: usize,
    pub restarting: Vec<Time>,
    /// The times when its postStart handler was run again.
    pub post_starts: Vec<Time>,
    pub released: Option<Time>,
    /// Lines written to its stderr.
    pub told: Vec<(Time, String)>,
}

impl ContainerTrace<'_> {
    /// True if its process exists, parked or not.
    pub fn is_alive(&self, at: Time) -> bool {
        let begun = self.executed.iter().filter(|t| **t <= at).count();
        let ended = self.died.iter().filter(|(t, _)| *t <= at).count();
        self.created.after(ms(30)) <= at && ended < begun.max(1)
    }

    /// True if its program runs.
    pub fn runs(&self, at: Time) -> bool {
        let begun = self.executed.iter().filter(|t| **t <= at).count();
        let ended = self.died.iter().filter(|(t, _)| *t <= at).count();
        begun > ended
    }

    /// True if it has got SIGKILL by then.
    pub fn is_killed_by(&self, at: Time) -> bool {
        let mut signals = self.signals.iter();
        signals.any(|(told, signal)| *signal == Signal::KILL && *told <= at)
    }

    /// True if its caller sees it as running.
    pub fn reads_running(&self, at: Time) -> bool {
        self.answered.is_some_and(|(t, is_ok)| is_ok && t <= at)
            && self.reported.is_none_or(|(t, _)| t > at)
    }

    /// True if its caller saw it as running at that time, after this many records.
    pub fn read_running(&self, at: Time, after: usize) -> bool {
        let was_answered = self.answered.is_some_and(|(t, is_ok)| is_ok && t <= at);
        was_answered && self.created_after < after && self.reported_after >= after
    }

    /// True if it had exited when another was asked at that time, after this many records. "The
    /// exit is published when the container is asked to stop": withheld exits are reported at once.
    pub(super) fn had_ended(&self, at: Time, after: usize) -> bool {
        let is_at_once = |ended: Time| ended == at && self.reported_after < after;
        self.ended()
            .is_some_and(|ended| ended < at || is_at_once(ended))
    }

    /// True if it exited before any signal.
    pub fn ended_by_itself(&self) -> bool {
        let died = self.died.last().map(|(at, _)| *at);
        died.is_some_and(|died| self.signals.iter().all(|(told, _)| *told > died))
    }

    pub fn part(&self) -> Part {
        self.member.part
    }

    /// True if the container existed by then, as far as its caller knows.
    pub fn had_come(&self, by: Time) -> bool {
        self.created < by && self.refused.is_none_or(|refused| refused > by)
    }

    /// The time when its exit was reported.
    pub fn ended(&self) -> Option<Time> {
        self.reported.map(|(at, _)| at)
    }
}
