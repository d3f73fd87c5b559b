//! The life of a container.

use crate::lifecycle::Time;
use crate::plan::Signal;
use crate::process::ExitStatus;
use crate::simulator::case::{Member, Part};
use crate::simulator::ms;

/// A container from its creation to its end.
#[derive(Debug)]
pub struct Life<'a> {
    pub id: String,
    pub member: &'a Member,
    pub sandbox: usize,
    pub created: Time,
    /// How much had been seen before that.
    pub created_after: usize,
    /// When its Create was refused.
    pub refused: Option<Time>,
    pub answered: Option<(Time, bool)>,
    /// When its postStart handler was over as its caller knows it, and whether that succeeded; `None` if its
    /// caller does not know.
    pub handled: Option<(Time, bool)>,
    pub executed: Vec<Time>,
    pub signals: Vec<(Time, Signal)>,
    pub died: Vec<(Time, ExitStatus)>,
    pub reported: Option<(Time, u32)>,
    /// How much had been seen before that.
    pub reported_after: usize,
    pub restarting: Vec<Time>,
    /// When its postStart handler was run once more.
    pub post_starts: Vec<Time>,
    pub released: Option<Time>,
    /// What its stderr was told.
    pub told: Vec<(Time, String)>,
}

impl Life<'_> {
    /// Its process is there, parked or not.
    pub fn is_alive(&self, at: Time) -> bool {
        let begun = self.executed.iter().filter(|t| **t <= at).count();
        let ended = self.died.iter().filter(|(t, _)| *t <= at).count();
        self.created.after(ms(30)) <= at && ended < begun.max(1)
    }

    /// Its program runs.
    pub fn runs(&self, at: Time) -> bool {
        let begun = self.executed.iter().filter(|t| **t <= at).count();
        let ended = self.died.iter().filter(|(t, _)| *t <= at).count();
        begun > ended
    }

    /// It has SIGKILL then.
    pub fn is_killed_by(&self, at: Time) -> bool {
        let mut signals = self.signals.iter();
        signals.any(|(told, signal)| *signal == Signal::KILL && *told <= at)
    }

    /// Its caller takes it for running.
    pub fn reads_running(&self, at: Time) -> bool {
        self.answered.is_some_and(|(t, is_ok)| is_ok && t <= at)
            && self.reported.is_none_or(|(t, _)| t > at)
    }

    /// Its caller took it for running at that time, when so much had been seen.
    pub fn read_running(&self, at: Time, after: usize) -> bool {
        let was_answered = self.answered.is_some_and(|(t, is_ok)| is_ok && t <= at);
        was_answered && self.created_after < after && self.reported_after >= after
    }

    /// Whether it had ended when another was asked at that time, after so much had been seen. "The exit is
    /// published when the container is asked to stop": of what was withheld nothing is left at once.
    pub(super) fn had_ended(&self, at: Time, after: usize) -> bool {
        let is_at_once = |ended: Time| ended == at && self.reported_after < after;
        self.ended()
            .is_some_and(|ended| ended < at || is_at_once(ended))
    }

    /// It ended before anybody sent it a signal.
    pub fn ended_by_itself(&self) -> bool {
        let died = self.died.last().map(|(at, _)| *at);
        died.is_some_and(|died| self.signals.iter().all(|(told, _)| *told > died))
    }

    pub fn part(&self) -> Part {
        self.member.part
    }

    /// There was such a container by then, as far as its caller knows.
    pub fn had_come(&self, by: Time) -> bool {
        self.created < by && self.refused.is_none_or(|refused| refused > by)
    }

    /// When its program ended for good, or for the first time.
    pub fn ended(&self) -> Option<Time> {
        self.reported.map(|(at, _)| at)
    }
}
