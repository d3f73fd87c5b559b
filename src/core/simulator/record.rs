//! Queries about what happened in a simulated world.

use crate::lifecycle::{ContainerId, Phase, Refusal, Time};
use crate::plan::Signal;

use super::trace::Account;
use super::world::Process;
use super::{Seen, World, ms};

impl World {
    /// The time of the first observation that equals `what`.
    pub fn at(&self, what: &Seen) -> Option<Time> {
        self.seen
            .iter()
            .find(|(_, seen)| seen == what)
            .map(|(at, _)| *at)
    }

    pub fn executed(&self, name: &str) -> Option<Time> {
        self.at(&Seen::Executed(name.to_owned()))
    }

    pub fn executions(&self, name: &str) -> Vec<Time> {
        let executed = Seen::Executed(name.to_owned());
        let times = self.seen.iter().filter(|(_, seen)| *seen == executed);
        times.map(|(at, _)| *at).collect()
    }

    pub fn signalled(&self, name: &str) -> Option<Time> {
        self.signals(name).first().map(|(at, _)| *at)
    }

    pub fn signals(&self, name: &str) -> Vec<(Time, Signal)> {
        let signals = self.seen.iter().filter_map(|(at, seen)| match seen {
            Seen::Signalled(who, signal) if who == name => Some((*at, *signal)),
            _ => None,
        });
        signals.collect()
    }

    pub fn died(&self, name: &str) -> Option<Time> {
        let died = |seen: &Seen| matches!(seen, Seen::Died(who, _) if who == name);
        self.seen
            .iter()
            .find(|(_, seen)| died(seen))
            .map(|(at, _)| *at)
    }

    pub fn reported(&self, name: &str) -> Option<u32> {
        self.seen.iter().find_map(|(_, seen)| match seen {
            Seen::ExitReported(who, code) if who == name => Some(*code),
            _ => None,
        })
    }

    pub fn start_answer(&self, name: &str) -> Option<(Time, Result<(), Refusal>)> {
        self.seen.iter().find_map(|(at, seen)| match seen {
            Seen::StartAnswered(who, answer) if who == name => Some((*at, answer.clone())),
            _ => None,
        })
    }

    pub fn told(&self, name: &str) -> Vec<String> {
        let told = self.seen.iter().filter_map(|(_, seen)| match seen {
            Seen::MessageWritten(who, message) if who == name => Some(message.clone()),
            _ => None,
        });
        told.collect()
    }

    /// True if the container's program runs, and its startup probe can succeed.
    pub fn is_ready(&self, name: &str) -> bool {
        self.processes
            .get(&ContainerId::from(name))
            .is_some_and(|process| {
                let ready = process.executed.zip(process.script.ready_after);
                process.alive && ready.is_some_and(|(at, after)| at.after(after) <= self.now)
            })
    }

    /// The summary of a world at its end.
    pub fn account(&self) -> Account<'_> {
        let answers = |request| self.answered.get(request).copied().unwrap_or_default();
        let asked = self.asked.iter().map(|request| (request, answers(request)));
        let unanswered = asked.filter(|(_, count)| *count != 1);
        let alive = self.processes.iter().filter(|(_, process)| process.alive);
        let timer = self.pod.next_timer();
        Account {
            seen: &self.seen,
            start_waits: self.start_waits.clone(),
            unanswered: unanswered
                .map(|(request, count)| format!("{request:?} is answered {count} times"))
                .collect(),
            left: alive
                .map(|(id, _)| id.to_string())
                .chain(timer.map(|timer| format!("{timer:?}")))
                .collect(),
            idle_wakes: self.idle_wakes,
            untold: ms(0),
            excuses: Vec::new(),
        }
    }

    /// Checks the promises that hold in every case: each request is answered once, and at the end
    /// no timer is left in the pod.
    pub fn check_end(&self) {
        for request in &self.asked {
            assert_eq!(
                self.answered.get(request),
                Some(&1),
                "{request:?} in {:#?}",
                self.seen
            );
        }
        let is_over = |process: &Process| !process.alive && !process.is_between_executions();
        if self.processes.values().all(is_over) {
            assert_eq!(self.pod.next_timer(), None, "all is over");
        }
        if self.pod.phase() == Phase::Terminated {
            assert_eq!(self.pod.next_timer(), None, "a terminated pod is silent");
        }
    }
}
