//! What has happened to a pod: the lives of its containers, and the ends of its sandboxes, as the
//! containers and kubelet know them.

use std::time::Duration;

use crate::lifecycle::{Cause, Report, Time};
use crate::plan::{GracePolicy, Signal};
use crate::process::ExitStatus;

use crate::simulator::{Seen, World, ms, name_of, secs};

use super::case::{Case, Fault, Member, Part, PreStop};
use super::kubelet::{Ask, End, Log};

/// What everybody has at least.
pub const LEAST: Duration = secs(2);

/// The default of `termination-window`.
pub const WINDOW: Duration = secs(1);

/// A container from its creation to its end.
#[derive(Debug)]
pub struct Life<'a> {
    pub id: String,
    pub member: &'a Member,
    pub sandbox: usize,
    pub created: Time,
    pub answered: Option<(Time, bool)>,
    pub executed: Vec<Time>,
    pub signals: Vec<(Time, Signal)>,
    pub died: Vec<(Time, ExitStatus)>,
    pub reported: Option<(Time, u32)>,
    pub restarting: Vec<Time>,
    /// When its postStart handler was run once more.
    pub post_starts: Vec<Time>,
    pub released: Option<Time>,
}

/// The end of a sandbox.
#[derive(Clone, Debug)]
pub struct Ending {
    pub from: Time,
    /// When its caller's time is over.
    pub deadline: Time,
    /// The same, if what was asked before, and is asked once more now, is to be over by its first time.
    pub soonest: Time,
    /// How much that is as its requests have it, whatever its caller does then.
    pub grace: Duration,
    /// When the shim could know.
    pub known: Time,
    pub forced: bool,
    /// It is for its caller, but a handler of that little time looks like any other.
    pub is_vague: bool,
    /// A stop of one container was under way, and its clock is that of the end as well.
    pub is_entangled: bool,
}

/// A trace, and what is known of it.
pub struct Run<'a> {
    pub case: &'a Case,
    pub world: &'a World,
    pub log: &'a Log,
    pub lives: Vec<Life<'a>>,
    /// What the core took for the end, and when it took it back.
    pub taken: Vec<(Time, usize, Cause, Option<Time>)>,
    /// When each sandbox died.
    pub deaths: Vec<Option<Time>>,
}

// === a trace ===

impl<'a> Run<'a> {
    pub fn new(case: &'a Case, world: &'a World, log: &'a Log) -> Run<'a> {
        let mut run = Run {
            case,
            world,
            log,
            lives: Vec::new(),
            taken: Vec::new(),
            deaths: vec![None; log.sandboxes.len()],
        };
        for (n, (at, seen)) in world.seen.iter().enumerate() {
            run.note(n, *at, seen);
        }
        run
    }

    fn note(&mut self, n: usize, at: Time, seen: &Seen) {
        let begun = self.log.sandboxes.iter().filter(|from| **from <= n).count();
        let sandbox = begun.saturating_sub(1);
        match seen {
            Seen::Did(what) => {
                if let Some(id) = what.strip_prefix("create ") {
                    self.lives.push(Life {
                        id: id.to_owned(),
                        member: self.case.member(name_of(id)),
                        sandbox,
                        created: at,
                        answered: None,
                        executed: Vec::new(),
                        signals: Vec::new(),
                        died: Vec::new(),
                        reported: None,
                        restarting: Vec::new(),
                        post_starts: Vec::new(),
                        released: None,
                    });
                }
            }
            Seen::StartAnswered(id, answer) => {
                self.with(id, |life| life.answered = Some((at, answer.is_ok())));
            }
            Seen::Executed(id) => self.with(id, |life| life.executed.push(at)),
            Seen::Signalled(id, signal) => self.with(id, |life| life.signals.push((at, *signal))),
            Seen::Died(id, _) if id == "pause" => self.deaths[sandbox] = Some(at),
            Seen::Died(id, status) => self.with(id, |life| life.died.push((at, *status))),
            Seen::ExitReported(id, code) => {
                self.with(id, |life| life.reported = Some((at, *code)));
            }
            Seen::PostStarted(id) => self.with(id, |life| life.post_starts.push(at)),
            Seen::Restarting(id) => self.with(id, |life| life.restarting.push(at)),
            Seen::Released(id) => self.with(id, |life| life.released = Some(at)),
            Seen::Reported(Report::Terminating { because, .. }) => {
                self.taken.push((at, sandbox, because.clone(), None));
            }
            Seen::Reported(Report::NotTerminating { .. }) => {
                if let Some(taken) = self.taken.last_mut() {
                    taken.3 = Some(at);
                }
            }
            _ => {}
        }
    }

    fn with(&mut self, id: &str, change: impl FnOnce(&mut Life<'a>)) {
        if let Some(life) = self.lives.iter_mut().rev().find(|life| life.id == id) {
            change(life);
        }
    }

    pub fn of(&self, sandbox: usize) -> impl Iterator<Item = &Life<'a>> {
        self.lives
            .iter()
            .filter(move |life| life.sandbox == sandbox)
    }

    pub fn ask_sandbox(&self, ask: &Ask) -> usize {
        let life = self.lives.iter().find(|life| life.id == ask.id);
        life.map_or(0, |life| life.sandbox)
    }

    /// When kubelet began to stop all of a sandbox.
    pub fn stopped_all(&self, sandbox: usize) -> Option<(Time, End)> {
        let mut ends = self.log.ends.iter();
        ends.find(|(_, of, _)| *of == sandbox)
            .map(|(at, _, end)| (*at, *end))
    }

    /// The end of a sandbox, if it had one.
    pub fn ending(&self, sandbox: usize) -> Option<Ending> {
        let asks: Vec<_> = self
            .log
            .asks
            .iter()
            .filter(|ask| ask.end && self.ask_sandbox(ask) == sandbox)
            .collect();
        let decided = self
            .taken
            .iter()
            .filter(|(_, of, because, undone)| {
                *of == sandbox && because.is_decided() && undone.is_none()
            })
            .map(|(at, ..)| *at)
            .min();
        let died = self.deaths[sandbox].filter(|died| {
            // Kubelet's own last act is no end.
            self.log.over.is_none_or(|over| *died < over) && asks.iter().all(|ask| ask.at > *died)
        });
        let died = died.filter(|died| self.of(sandbox).any(|life| life.is_alive(*died)));
        // What has ended when nobody could wait for the next any more was a request of its own.
        let mut asks = asks;
        asks.sort_by_key(|ask| ask.at);
        while let [first, second, ..] = asks[..]
            && second.at.since(first.at) > WINDOW
            && self.lives.iter().any(|life| {
                life.id == first.id && life.ended().is_some_and(|ended| ended < second.at)
            })
        {
            asks.remove(0);
        }
        let first = asks.first().map(|ask| ask.at);
        let by_shim = decided.into_iter().chain(died).min();
        let from = first.into_iter().chain(by_shim).min()?;
        let mut deadline = match by_shim {
            Some(at) => at.after(secs(self.case.grace)),
            None => Time::default().after(Duration::MAX),
        };
        // A deletion that gives more than the pod's own grace period looks like one that gives that.
        let own = secs(self.case.grace);
        for ask in asks.iter().filter(|ask| !ask.is_kill) {
            deadline = deadline.min(ask.at.after(ask.grace.min(own)));
        }
        // One that was asked before, and has not ended, is a part of it.
        let (mut was_given_time, mut soonest) = (false, deadline);
        let mut is_entangled = false;
        for ask in self
            .log
            .asks
            .iter()
            .filter(|ask| !ask.end && ask.at <= from)
        {
            let life = self.lives.iter().find(|life| life.id == ask.id);
            let is_ours = self.case.member(name_of(ask.id)).part.is_ours();
            let is_open = is_ours && ask.at.after(ask.grace) > from;
            if is_open
                && life.is_some_and(|life| life.sandbox == sandbox && life.reads_running(from))
            {
                is_entangled = true;
                was_given_time |= ask.grace > LEAST;
                soonest = soonest.min(ask.at.after(ask.grace));
                if !asks.iter().any(|other| other.id == ask.id) {
                    deadline = deadline.min(ask.at.after(ask.grace));
                }
            }
        }
        let grace = deadline.since(from);
        // SIGKILL tells nothing of what its caller gives, but that it is over.
        for ask in asks.iter().filter(|ask| ask.is_kill) {
            deadline = deadline.min(ask.at);
        }
        for ask in self.log.asks.iter().filter(|ask| !ask.end && ask.at > from) {
            if self.ask_sandbox(ask) == sandbox {
                soonest = soonest.min(ask.at.after(ask.grace));
            }
        }
        for (at, id) in &self.log.kills {
            let is_in = asks.iter().any(|ask| ask.id == *id);
            if is_in && *at >= from {
                deadline = deadline.min(*at);
            }
        }
        let mut others: Vec<_> = asks
            .iter()
            .filter(|ask| self.case.member(name_of(ask.id)).part != Part::Guest)
            .collect();
        others.sort_by_key(|ask| ask.at);
        let second = others
            .first()
            .and_then(|first| others.iter().find(|ask| ask.id != first.id));
        // With `ctr` one kill after another is the end if the first is still there.
        if self.case.by_hand && by_shim.is_none() {
            let (first, second) = (others.first()?, second?);
            let first = self.lives.iter().find(|life| life.id == first.id)?;
            if first.ended().is_some_and(|ended| ended < second.at) {
                return None;
            }
        }
        let known = by_shim.unwrap_or_else(|| match second {
            Some(ask) => ask.at,
            None => from.after(WINDOW),
        });
        let is_short = |ask: &&&Ask| ask.is_kill || ask.grace <= LEAST;
        let was_given_time = was_given_time || by_shim.is_some_and(|at| Some(at) <= first);
        let forced = !was_given_time
            && !asks.is_empty()
            && asks.iter().filter(is_short).count() == asks.len();
        Some(Ending {
            from,
            deadline,
            soonest: soonest.min(deadline),
            grace,
            known,
            is_entangled,
            is_vague: asks.iter().any(|ask| ask.is_handler && ask.grace < own),
            forced,
        })
    }

    pub fn sandboxes(&self) -> std::ops::Range<usize> {
        0..self.log.sandboxes.len()
    }

    /// Whether somebody shortens a time that was given before.
    pub fn is_hurried(&self) -> bool {
        let hurries = |(_, fault): &(u64, Fault)| matches!(fault, Fault::Hurry(_));
        self.case.late.iter().any(hurries)
    }

    /// Kubelet went away after its first request, and the next came when nobody could wait for it any
    /// more: until then it was a lone one.
    pub fn is_unknowable(&self, ending: &Ending) -> bool {
        let goes = |(_, fault): &(u64, Fault)| matches!(fault, Fault::Restart(_));
        let asks = self
            .log
            .asks
            .iter()
            .filter(|ask| ask.end && ask.at >= ending.from);
        let last = asks.map(|ask| ask.at).max().unwrap_or(ending.known);
        let is_late = ending.known.max(last).since(ending.from) >= WINDOW;
        // A handler that nobody sees, and that leaves nothing of the grace period: the request that
        // follows it comes when the others' time is over.
        let left = secs(self.case.grace).saturating_sub(WINDOW + LEAST);
        let hides = self.case.of(Part::App).any(|app| {
            let hidden = app.pre_stop.filter(|(kind, _)| *kind != PreStop::Exec);
            hidden.is_some_and(|(_, takes)| ms(takes) >= left)
        });
        is_late && (hides || self.case.late.iter().any(goes))
    }

    /// What the policy gives beyond the grace period.
    pub fn beyond(&self, ending: &Ending) -> Duration {
        match self.case.grace_policy {
            GracePolicy::Strict => Duration::ZERO,
            // SIGKILL tells nothing of a grace period, and a sidecar's comes 2 s after its stop signal.
            _ if ending.forced => secs(2),
            GracePolicy::Reserve if ending.grace < secs(6) => Duration::ZERO,
            GracePolicy::Shared | GracePolicy::Reserve => secs(2),
            GracePolicy::Overrun => secs(8),
            GracePolicy::SkipHooks => secs(4),
        }
    }
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

    /// Its caller takes it for running.
    pub fn reads_running(&self, at: Time) -> bool {
        self.answered.is_some_and(|(t, is_ok)| is_ok && t <= at)
            && self.reported.is_none_or(|(t, _)| t > at)
    }

    pub fn part(&self) -> Part {
        self.member.part
    }

    /// When its program ended for good, or for the first time.
    pub fn ended(&self) -> Option<Time> {
        self.reported.map(|(at, _)| at)
    }
}
