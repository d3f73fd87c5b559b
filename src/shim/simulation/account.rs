//! Converts the record of a simulated node to the form on which the core's promises (rules that
//! hold in every run) are checked. A fault of the node can break a promise. So this module adds
//! excuses: for the time of a fault, broken promises about the affected containers are tolerated.

use std::time::Duration;

use usher_core::lifecycle::{READ_WITHIN, Report, Time};
use usher_core::process::ExitStatus;
use usher_core::simulator::Seen;
use usher_core::simulator::trace::{self, Excuse};

use usher_engine::sim::{EngineCall, Happening, Left};

use super::containerd::Called;
use super::faults::{Faults, SIMULATED, TOOK_TOO_LONG, limit};
use super::invariants::Account;
use super::node::{OTHERS, kubelets};

/// Time for which a fault still has effects after its end: for example, an answer is late, or a
/// call is retried.
const AFTERWARDS: Duration = Duration::from_millis(200);

/// Longest time of a creation without faults.
const CREATED_WITHIN: Duration = Duration::from_millis(30);

/// Longest time of an engine call that breaks no promise, in milliseconds. If calls take longer,
/// the four calls of a restart take more time than the promises allow.
const SLOW: u64 = 25;

/// Time in which kubelet stops a container whose postStart handler has failed.
const STOPPED_WITHIN: Duration = Duration::from_secs(11);

/// End of an excuse that lasts for the rest of the run. Every run is over before this time.
const FOR_GOOD: Duration = Duration::from_secs(86_400);

impl Account<'_> {
    /// The record that the core's promises are checked against.
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
            untold: self.slow * 2 + READ_WITHIN,
            excuses: self.excuses(faults),
        }
    }

    /// Returns two times for each answered Start of a container: how long the call waited, and the
    /// time limit of its caller. The engine's time for the release does not count as waiting.
    /// Leaves out a Start whose release failed.
    fn start_waits(&self, faults: &Faults) -> Vec<(Duration, Option<Duration>)> {
        let starts = self.called.iter().filter(|called| {
            let is_inits = called.call == "Start" && called.exec_id.is_empty();
            is_inits && !called.is_cut && !self.has_failed_release(called)
        });
        // The time of the release, and of the report that the release is done.
        let release = Duration::from_millis(faults.slow) * 2;
        let waits = starts.map(|called| (called.took.saturating_sub(release), called.limit));
        waits.collect()
    }

    /// True if a release of the container failed while the Start waited.
    fn has_failed_release(&self, start: &Called) -> bool {
        let mut failures = self.failures();
        failures.any(|failure| {
            let is_its = failure.call == EngineCall::Release && failure.id == start.id;
            is_its && (start.at..=start.at + start.took).contains(&failure.at)
        })
    }

    /// The failed engine calls, in the order in which they failed.
    fn failures(&self) -> impl Iterator<Item = Failure<'_>> {
        self.story.iter().filter_map(|(at, happening)| {
            let Happening::Failed { call, id, why } = happening else {
                return None;
            };
            let (at, call) = (*at, *call);
            Some(Failure { at, call, id, why })
        })
    }

    /// The times at which a container was executed.
    fn executions(&self, id: &str) -> impl Iterator<Item = Duration> {
        let is_it = move |happening: &Happening| matches!(happening, Happening::Executed { id: of } if of == id);
        let executed = self.story.iter().filter(move |(_, it)| is_it(it));
        executed.map(|(at, _)| *at)
    }

    fn excuses(&self, faults: &Faults) -> Vec<Excuse> {
        let all = [
            self.what_failed(faults),
            self.what_panicked(),
            without_containerd(faults),
            self.what_was_created_late(),
            self.what_came_again_late(faults),
            self.what_was_executed_late(faults),
            self.what_was_executed_early(),
            self.what_was_frozen(),
        ];
        all.concat()
    }

    /// Excuses broken promises about a container while one of its engine calls fails. The excuse
    /// lasts from the beginning of the call until the call has returned its error. After a failed
    /// creation or release, the excuse lasts until the container runs.
    fn what_failed(&self, faults: &Faults) -> Vec<Excuse> {
        let slow = Duration::from_millis(faults.slow) + AFTERWARDS;
        let excuses = self.failures().filter_map(|Failure { at, call, id, why }| {
            let own = match why.contains(TOOK_TOO_LONG) {
                true => limit(call) + AFTERWARDS,
                false => slow,
            };
            let until = match call {
                // These engine calls delay no container, so their failure excuses nothing.
                EngineCall::Delete
                | EngineCall::Scores
                | EngineCall::WritePod
                | EngineCall::LowerMemory
                | EngineCall::TellManager => return None,
                // The excuse lasts until the container runs again, if it ever does.
                EngineCall::Create | EngineCall::CreateAgain | EngineCall::Release => {
                    let again = self.executions(id).find(|then| *then > at);
                    again.unwrap_or(FOR_GOOD).max(at + own)
                }
                _ => at + own,
            };
            Some(excuse(Some(id), at, until))
        });
        excuses.collect()
    }

    /// Excuses broken promises about a container if an engine call for this container panicked. The
    /// excuse lasts for the whole run, because no record has the time of the panic.
    fn what_panicked(&self) -> Vec<Excuse> {
        let excuses = self.lost.iter().map(|lost| {
            // The text is, for example, "simulated: Release of web".
            let words = lost.split(SIMULATED).nth(1);
            let of = words.and_then(|words| words.split(" of ").nth(1));
            let id = of.and_then(|of| of.split_whitespace().next());
            excuse(id, Duration::ZERO, FOR_GOOD)
        });
        excuses.collect()
    }

    /// Excuses broken promises about a container that is created late, because a container can do
    /// nothing before its creation.
    fn what_was_created_late(&self) -> Vec<Excuse> {
        let creations = self.called.iter().filter(|called| called.call == "Create");
        let excuses = creations.filter_map(|creation| {
            let until = match creation.is_cut {
                // If the caller of a Create has gone, the creation is undone, and the container
                // never exists.
                true => FOR_GOOD,
                false if creation.took > CREATED_WITHIN => creation.at + creation.took + AFTERWARDS,
                false => return None,
            };
            Some(excuse(Some(&creation.id), creation.at, until))
        });
        excuses.collect()
    }

    /// Excuses broken promises about a container whose restart takes long, because the engine is
    /// slow.
    fn what_came_again_late(&self, faults: &Faults) -> Vec<Excuse> {
        if faults.slow <= SLOW {
            return Vec::new();
        }
        // The longest time that four engine calls take: the cleanup of the previous process, the
        // creation, the release, and the report of their outcomes.
        let again = Duration::from_millis(faults.slow) * 4 + AFTERWARDS;
        let deaths = self
            .story
            .iter()
            .filter_map(|(at, happening)| match happening {
                Happening::Died {
                    id, exec_id: None, ..
                } => Some((*at, id)),
                _ => None,
            });
        let excuses = deaths.flat_map(|(died, id)| {
            // An excuse begins at the death of the process, and at each termination that begins
            // before the container runs again.
            let back = self.executions(id).find(|at| *at > died);
            let is_down = move |at: &Duration| *at > died && back.is_none_or(|back| *at <= back);
            let begun = self.ends_begun().filter(is_down);
            let begun = begun.chain([died]);
            begun.map(move |at| excuse(Some(id), at, at + again))
        });
        excuses.collect()
    }

    /// Excuses broken promises about a container that cannot be signaled in time, because a slow
    /// engine executes the container's program.
    fn what_was_executed_late(&self, faults: &Faults) -> Vec<Excuse> {
        if faults.slow <= SLOW {
            return Vec::new();
        }
        let slow = Duration::from_millis(faults.slow);
        let executions = self
            .story
            .iter()
            .filter_map(|(at, happening)| match happening {
                Happening::Executed { id } => Some((*at, id)),
                _ => None,
            });
        executions
            .map(|(at, id)| excuse(Some(id), at.saturating_sub(slow), at + slow + AFTERWARDS))
            .collect()
    }

    /// The times at which a shim decided that the pod terminates.
    fn ends_begun(&self) -> impl Iterator<Item = Duration> {
        self.story.iter().filter_map(|(at, happening)| {
            let is_it = matches!(happening, Happening::Decided(Report::Terminating { .. }));
            is_it.then_some(*at)
        })
    }

    /// Excuses broken promises about a container in which another caller executes a process soon
    /// after the start. The shim may take this exec for the container's postStart handler.
    fn what_was_executed_early(&self) -> Vec<Excuse> {
        let excuses = self.story.iter().filter_map(|(at, happening)| {
            let Happening::ExecBegan { id, exec_id, .. } = happening else {
                return None;
            };
            let is_soon = |then: Duration| then <= *at && *at - then < Duration::from_secs(2);
            if !exec_id.starts_with(OTHERS) || !self.executions(id).any(is_soon) {
                return None;
            }
            let over = self.story.iter().find_map(|(then, other)| match other {
                Happening::Died {
                    exec_id: Some(of),
                    status,
                    ..
                } if of == exec_id => Some((*then, *status)),
                _ => None,
            });
            let until = match over {
                None => FOR_GOOD,
                Some((then, ExitStatus::Code(0))) => then + AFTERWARDS,
                // The shim takes the exec for a failed handler, and waits until kubelet stops the
                // container.
                Some((then, _)) => then + STOPPED_WITHIN,
            };
            Some(excuse(Some(id), *at, until))
        });
        // The shim may mistake any Exec for the postStart handler, even if its client never starts
        // the process. In that case, the mistake lasts for one second.
        let added = self.called.iter().filter_map(|called| {
            let is_soon =
                |then: Duration| then <= called.at && called.at - then < Duration::from_secs(2);
            let is_early = called.call == "Exec"
                && called.exec_id.starts_with(OTHERS)
                && self.executions(&called.id).any(is_soon);
            let until = called.at + Duration::from_secs(1) + AFTERWARDS;
            is_early.then(|| excuse(Some(&called.id), called.at, until))
        });
        excuses.chain(added).collect()
    }

    /// Excuses broken promises about a container that a caller has paused. Without a Resume, the
    /// excuse lasts for the whole run.
    fn what_was_frozen(&self) -> Vec<Excuse> {
        let pauses = self.called.iter().filter(|called| called.call == "Pause");
        let excuses = pauses.map(|paused| {
            let resumed = self.called.iter().find(|called| {
                called.call == "Resume"
                    && called.id == paused.id
                    && called.at >= paused.at
                    && called.outcome.is_ok()
            });
            let until = resumed.map_or(FOR_GOOD, |resumed| resumed.at + resumed.took + AFTERWARDS);
            excuse(Some(&paused.id), paused.at, until)
        });
        excuses.collect()
    }
}

/// An engine call that has failed.
struct Failure<'a> {
    at: Duration,
    call: EngineCall,
    id: &'a str,
    why: &'a str,
}

/// Excuses broken promises about all containers while containerd is away, because no call arrives
/// then.
fn without_containerd(faults: &Faults) -> Vec<Excuse> {
    let excuses = faults.deaths.iter().map(|(at, away)| {
        let (at, away) = (Duration::from_millis(*at), Duration::from_millis(*away));
        excuse(None, at, at + away + AFTERWARDS)
    });
    excuses.collect()
}

fn excuse(id: Option<&str>, from: Duration, until: Duration) -> Excuse {
    Excuse {
        id: id.map(|id| kubelets(id).to_owned()),
        from: Time::from_origin(from),
        until: Time::from_origin(until),
    }
}
