//! The record of one container: its creation, executions, signals and exits.

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
    /// Number of observations that were recorded before the container's creation.
    pub created_after: usize,
    /// The time when the container's Create was refused.
    pub refused: Option<Time>,
    pub answered: Option<(Time, bool)>,
    /// The time when the caller saw the end of the postStart handler, and true if the handler
    /// succeeded. `None` if the caller does not know.
    pub handled: Option<(Time, bool)>,
    pub executed: Vec<Time>,
    pub signals: Vec<(Time, Signal)>,
    pub died: Vec<(Time, ExitStatus)>,
    pub reported: Option<(Time, u32)>,
    /// Number of observations that were recorded before the report of the container's exit.
    pub reported_after: usize,
    pub restarting: Vec<Time>,
    /// The times when the shim ran the postStart handler again.
    pub post_starts: Vec<Time>,
    pub released: Option<Time>,
    /// Lines that the shim wrote to the container's stderr.
    pub told: Vec<(Time, String)>,
}

impl ContainerTrace<'_> {
    /// True if the container has a process, even if the process does not run the program yet.
    pub fn is_alive(&self, at: Time) -> bool {
        let begun = self.executed.iter().filter(|t| **t <= at).count();
        let ended = self.died.iter().filter(|(t, _)| *t <= at).count();
        self.created.after(ms(30)) <= at && ended < begun.max(1)
    }

    /// True if the container's program runs.
    pub fn runs(&self, at: Time) -> bool {
        let begun = self.executed.iter().filter(|t| **t <= at).count();
        let ended = self.died.iter().filter(|(t, _)| *t <= at).count();
        begun > ended
    }

    /// True if the container got SIGKILL at `at` or before.
    pub fn is_killed_by(&self, at: Time) -> bool {
        let mut signals = self.signals.iter();
        signals.any(|(told, signal)| *signal == Signal::KILL && *told <= at)
    }

    /// True if a State call at `at` reports the container as RUNNING.
    pub fn reads_running(&self, at: Time) -> bool {
        self.answered.is_some_and(|(t, is_ok)| is_ok && t <= at)
            && self.reported.is_none_or(|(t, _)| t > at)
    }

    /// True if a State call at `at` reported the container as RUNNING. Several observations may
    /// have the time `at`, so `after` is the number of observations that came before the call.
    pub fn read_running(&self, at: Time, after: usize) -> bool {
        let was_answered = self.answered.is_some_and(|(t, is_ok)| is_ok && t <= at);
        was_answered && self.created_after < after && self.reported_after >= after
    }

    /// True if the container's exit was reported before another container was asked to stop at
    /// `at`. If both happened at `at`, the report must be among the first `after` observations. A
    /// later report may be a withheld exit that the shim published because of the request.
    pub(super) fn had_ended(&self, at: Time, after: usize) -> bool {
        let is_at_once = |ended: Time| ended == at && self.reported_after < after;
        self.ended()
            .is_some_and(|ended| ended < at || is_at_once(ended))
    }

    /// True if the container exited before it got any signal.
    pub fn ended_by_itself(&self) -> bool {
        let died = self.died.last().map(|(at, _)| *at);
        died.is_some_and(|died| self.signals.iter().all(|(told, _)| *told > died))
    }

    pub fn part(&self) -> Part {
        self.member.part
    }

    /// True if the caller created the container before `by`, and knew of no refusal by then.
    pub fn had_come(&self, by: Time) -> bool {
        self.created < by && self.refused.is_none_or(|refused| refused > by)
    }

    /// The time when the container's exit was reported.
    pub fn ended(&self) -> Option<Time> {
        self.reported.map(|(at, _)| at)
    }
}
