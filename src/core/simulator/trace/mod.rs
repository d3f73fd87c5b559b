//! The trace of a pod: the records of its containers and the terminations of its sandboxes, as the
//! containers and kubelet know them.
//!
//! | module | what it knows |
//! |---|---|
//! | [`container`] | the record of a container from its creation to its end |
//! | [`requests`] | how long a stop request is open, and whether it is one of several |
//! | [`ending`] | the termination of a sandbox: its requests and its times |

mod container;
mod ending;
mod requests;

use std::time::Duration;

use crate::lifecycle::{Cause, Report, Time};
use crate::simulator::case::{Case, Fault};
use crate::simulator::kubelet::{End, Log};
use crate::simulator::{Seen, name_of, secs};

pub use container::ContainerTrace;
pub use ending::Ending;

/// Shortest time that every container gets to exit.
pub const MIN_GRACE: Duration = secs(2);

/// The default of `termination-window`.
pub const WINDOW: Duration = secs(1);

/// A termination that the core has decided or inferred.
#[derive(Clone, Debug)]
pub struct Taken {
    pub at: Time,
    /// Number of observations that were recorded before the core reported the termination.
    pub after: usize,
    pub sandbox: usize,
    pub because: Cause,
    /// The time when the core took the termination back, because the inference from stop requests
    /// was wrong.
    pub disproved: Option<Time>,
    /// The time when a new run of the pod began in the same sandbox after the termination.
    pub followed: Option<Time>,
    /// True if the new run started from scratch, as in a new sandbox. If false, init containers
    /// that had finished in the previous run did not have to run again.
    pub is_followed_from_the_start: bool,
}

/// A node's report about a pod, made after the end of the pod.
#[derive(Clone, Debug, Default)]
pub struct Account<'a> {
    /// The observed events of the containers, the shim and the caller, with their times.
    pub seen: &'a [(Time, Seen)],
    /// For each answered Start, the time until the answer, and the timeout of the call.
    pub start_waits: Vec<(Duration, Option<Duration>)>,
    /// The calls that got no answer, or more than one.
    pub unanswered: Vec<String>,
    /// Timers and containers with a process that are left when the pod has ended. Nothing should be
    /// left.
    pub left: Vec<String>,
    /// Number of timers that woke the core without anything to do.
    pub idle_wakes: usize,
    /// Longest delay from the time when the shim learns of an exit to the report of that exit.
    pub untold: Duration,
    /// Faults of the node itself. A promise that such a fault breaks does not count as broken.
    pub excuses: Vec<Excuse>,
}

/// A fault of the node itself. Promises that are broken between `from` and `until` do not count.
#[derive(Clone, Debug)]
pub struct Excuse {
    /// The affected container; `None` if the fault affects the whole node.
    pub id: Option<String>,
    pub from: Time,
    pub until: Time,
}

/// The trace of one simulated case, with which the promises are checked.
pub struct Run<'a> {
    pub case: &'a Case,
    pub log: &'a Log,
    pub account: Account<'a>,
    pub traces: Vec<ContainerTrace<'a>>,
    /// The terminations that the core has decided or inferred, in order.
    pub taken: Vec<Taken>,
    /// The time of each sandbox's death.
    pub deaths: Vec<Option<Time>>,
}

impl<'a> Run<'a> {
    pub fn new(case: &'a Case, log: &'a Log, account: Account<'a>) -> Run<'a> {
        let seen = account.seen;
        let mut run = Run {
            case,
            log,
            account,
            traces: Vec::new(),
            taken: Vec::new(),
            deaths: vec![None; log.sandboxes.len()],
        };
        for (n, (at, seen)) in seen.iter().enumerate() {
            run.note(n, *at, seen);
        }
        // A pod that is restarted as a whole keeps its sandbox, which may be dead already.
        for restarted in &log.restarted {
            let before = restarted
                .checked_sub(1)
                .and_then(|before| run.deaths[before]);
            run.deaths[*restarted] = run.deaths[*restarted].or(before);
        }
        run
    }

    fn note(&mut self, n: usize, at: Time, seen: &Seen) {
        let begun = self.log.sandboxes.iter().filter(|from| **from <= n).count();
        let sandbox = begun.saturating_sub(1);
        match seen {
            Seen::Did(what) => {
                if let Some(id) = what.strip_prefix("create ") {
                    self.traces.push(ContainerTrace {
                        id: id.to_owned(),
                        member: self.case.member(name_of(id)),
                        sandbox,
                        created: at,
                        created_after: n,
                        refused: None,
                        answered: None,
                        handled: None,
                        executed: Vec::new(),
                        signals: Vec::new(),
                        died: Vec::new(),
                        reported: None,
                        reported_after: usize::MAX,
                        restarting: Vec::new(),
                        post_starts: Vec::new(),
                        released: None,
                        told: Vec::new(),
                    });
                }
            }
            Seen::StartAnswered(id, answer) => {
                self.with(id, |trace| trace.answered = Some((at, answer.is_ok())));
            }
            Seen::StartFailed(id, _) => self.with(id, |trace| trace.answered = Some((at, false))),
            Seen::CreateRefused(id, _) => self.with(id, |trace| trace.refused = Some(at)),
            Seen::PostStartOver(id, Some(has_succeeded)) => {
                self.with(id, |trace| trace.handled = Some((at, *has_succeeded)));
            }
            Seen::Executed(id) => self.with(id, |trace| trace.executed.push(at)),
            Seen::Signalled(id, signal) => self.with(id, |trace| trace.signals.push((at, *signal))),
            Seen::Died(id, _) if id == "pause" => self.deaths[sandbox] = Some(at),
            Seen::Died(id, status) => self.with(id, |trace| trace.died.push((at, *status))),
            // `reported` is the time when the shim published the exit, not the time when the caller
            // heard of the exit.
            Seen::ExitSaid(id, code) | Seen::ExitReported(id, code) => {
                self.with(id, |trace| {
                    trace.reported.get_or_insert((at, *code));
                    trace.reported_after = trace.reported_after.min(n);
                });
            }
            Seen::PostStarted(id) => self.with(id, |trace| trace.post_starts.push(at)),
            Seen::Restarting(id) => self.with(id, |trace| trace.restarting.push(at)),
            Seen::MessageWritten(id, what) => {
                self.with(id, |trace| trace.told.push((at, what.clone())))
            }
            Seen::Released(id) => self.with(id, |trace| trace.released = Some(at)),
            Seen::Reported(Report::Terminating { because, .. }) => {
                self.taken.push(Taken {
                    at,
                    after: n,
                    sandbox,
                    because: because.clone(),
                    disproved: None,
                    followed: None,
                    is_followed_from_the_start: false,
                });
            }
            Seen::Reported(Report::NotTerminating { .. }) => {
                if let Some(taken) = self.taken.last_mut() {
                    taken.disproved = Some(at);
                }
            }
            Seen::Reported(Report::StartsOver { from_the_start, .. }) => {
                if let Some(taken) = self.taken.last_mut()
                    && taken.sandbox == sandbox
                {
                    taken.followed = Some(at);
                    taken.is_followed_from_the_start = *from_the_start;
                }
            }
            _ => {}
        }
    }

    fn with(&mut self, id: &str, change: impl FnOnce(&mut ContainerTrace<'a>)) {
        if let Some(trace) = self.traces.iter_mut().rev().find(|trace| trace.id == id) {
            change(trace);
        }
    }

    pub fn of(&self, sandbox: usize) -> impl Iterator<Item = &ContainerTrace<'a>> {
        self.traces
            .iter()
            .filter(move |trace| trace.sandbox == sandbox)
    }

    pub fn sandboxes(&self) -> std::ops::Range<usize> {
        0..self.log.sandboxes.len()
    }

    /// True if a fault of the node has hindered a container between `from` and `until`.
    pub fn is_hindered(&self, id: &str, from: Time, until: Time) -> bool {
        self.account.excuses.iter().any(|excuse| {
            let is_its = excuse.id.as_ref().is_none_or(|of| of == id);
            is_its && excuse.from <= until && excuse.until >= from
        })
    }

    /// True if a fault of the node has hindered any container of a sandbox between `from` and
    /// `until`.
    pub fn is_any_hindered(&self, sandbox: usize, from: Time, until: Time) -> bool {
        let mut traces = self.of(sandbox);
        traces.any(|trace| self.is_hindered(&trace.id, from, until))
    }

    /// The time when the core first decided or inferred a termination in a sandbox.
    pub fn first_taken(&self, sandbox: usize) -> Option<Time> {
        let mut taken = self.taken.iter();
        taken
            .find(|taken| taken.sandbox == sandbox)
            .map(|taken| taken.at)
    }

    /// The time when kubelet began to stop all containers of a sandbox, and the reason.
    pub fn stopped_all(&self, sandbox: usize) -> Option<(Time, End)> {
        let mut ends = self.log.ends.iter();
        ends.find(|(_, of, _)| *of == sandbox)
            .map(|(at, _, end)| (*at, *end))
    }

    /// True if the caller gave up on the container's Start and has killed the container.
    pub fn was_given_up(&self, trace: &ContainerTrace<'_>) -> bool {
        self.log.given_up.iter().any(|id| *id == trace.id)
    }

    /// True if a later deletion shortens the grace period.
    pub fn is_hurried(&self) -> bool {
        let hurries = |(_, fault): &(u64, Fault)| matches!(fault, Fault::Hurry(_));
        self.case.late.iter().any(hurries)
    }
}
