//! Stop requests of the caller, one per container.
//!
//! A request is open until the caller's own deadline. Its [`Weight`] says what it proves: two
//! requests open at once mean the end of the pod; one that was delivered alone concerns its
//! container.
//!
//! ```text
//!   PreStop ----> Stop ----> Stop        what is asked for: the handler, then the signal, once more
//!                  ^
//!   Kill ----------'
//!
//!   Open --> Alone --> Disproved         what it proves
//!     '-------------------^
//! ```

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::plan::{ContainerKind, Signal};

use super::container::Container;
use super::grace::LEAST;
use super::time::Time;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct StopRequest {
    /// Time of the first request.
    at: Time,
    /// Time of the caller's own SIGKILL.
    deadline: Time,
    wish: Wish,
    weight: Weight,
}

/// The kind of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Wish {
    /// Only the preStop handler was seen, with which a stop begins.
    PreStop,
    /// A stop signal.
    Stop(Asked),
    /// SIGKILL without a stop signal before.
    Kill,
}

/// The parameters of a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Asked {
    /// Time of the first stop signal; a preStop handler may have come before.
    at: Time,
    signal: Signal,
    /// True if the signal is for all processes, not only the init process.
    all: bool,
    /// The caller has left no time from the first signal on: SIGKILL, or a grace period of zero.
    forced: bool,
    /// Longest delay of the answer, at which the caller's timer starts.
    withheld: Duration,
}

/// The evidence that a request gives about its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Weight {
    /// Together with another request, it proves that the pod ends.
    Open,
    /// The request was delivered before any termination was known: it is not part of a later one.
    Alone,
    /// The request proves nothing: it was part of a disproved termination.
    Disproved,
}

// === impl StopRequest ===

impl StopRequest {
    fn new(at: Time, grace: Duration, wish: Wish) -> StopRequest {
        StopRequest {
            at,
            deadline: at.after(grace),
            wish,
            weight: Weight::Open,
        }
    }

    /// The request implied by a preStop handler run at `at`, with `grace` for the handler and the
    /// stop.
    pub fn pre_stop(at: Time, grace: Duration) -> StopRequest {
        StopRequest::new(at, grace, Wish::PreStop)
    }

    /// A stop signal at `at`; SIGKILL follows when `grace` is over.
    pub fn stop(at: Time, grace: Duration, signal: Signal, all: bool) -> StopRequest {
        let stop = Asked {
            at,
            signal,
            all,
            // Kubelet gives two seconds even without a grace period (a forced deletion).
            forced: grace <= LEAST,
            withheld: Duration::ZERO,
        };
        StopRequest::new(at, grace, Wish::Stop(stop))
    }

    /// SIGKILL at `at`; the caller waits for the exit for `grace`.
    pub fn kill(at: Time, grace: Duration) -> StopRequest {
        StopRequest::new(at, grace, Wish::Kill)
    }

    /// Time of the first request.
    pub fn at(&self) -> Time {
        self.at
    }

    /// Time of the caller's own SIGKILL.
    pub fn deadline(&self) -> Time {
        self.deadline
    }

    /// The stop signal, and true if it is for all processes; `None` without a stop signal.
    pub fn signal(&self) -> Option<(Signal, bool)> {
        match self.wish {
            Wish::Stop(stop) => Some((stop.signal, stop.all)),
            Wish::PreStop | Wish::Kill => None,
        }
    }

    /// True if only the preStop handler was seen.
    pub fn is_pre_stop(&self) -> bool {
        self.wish == Wish::PreStop
    }

    /// True if the caller's time ends with `deadline`: kubelet counts whole seconds, and gives two
    /// if nothing is left.
    pub fn ends_with(&self, deadline: Time) -> bool {
        let (first, last) = (self.deadline.min(deadline), self.deadline.max(deadline));
        last.since(first) <= LEAST
    }

    /// True for SIGKILL without a stop signal before.
    pub fn is_kill(&self) -> bool {
        self.wish == Wish::Kill
    }

    /// True if the caller leaves no time: SIGKILL without a stop signal, or a grace period of zero.
    pub fn is_forced(&self) -> bool {
        match self.wish {
            Wish::PreStop => false,
            Wish::Stop(stop) => stop.forced,
            Wish::Kill => true,
        }
    }

    /// True if the caller sent a stop signal and left 2 s at most from the first on.
    pub fn is_short_stop(&self) -> bool {
        matches!(self.wish, Wish::Stop(stop) if stop.forced)
    }

    /// True if the request can be part of a termination that began at `since`: one that was
    /// delivered alone before has a deadline of its own.
    pub fn is_of_end_since(&self, since: Time) -> bool {
        match self.weight {
            Weight::Open => true,
            Weight::Alone => self.at >= since,
            Weight::Disproved => false,
        }
    }

    /// True if it was delivered as the stop of its container alone.
    pub fn is_alone(&self) -> bool {
        self.weight == Weight::Alone
    }

    /// The time when the request closes if the container lives on. Without a grace period it stays
    /// open for two seconds, or it would close at once.
    pub fn closes(&self) -> Time {
        let withheld = match self.wish {
            Wish::Stop(stop) => stop.withheld,
            Wish::PreStop | Wish::Kill => Duration::ZERO,
        };
        let deadline = self.deadline.after(withheld);
        deadline.max(self.at.after(LEAST))
    }

    /// True if it is open at `now` and counts for its pod.
    pub fn is_open(&self, now: Time) -> bool {
        self.weight != Weight::Disproved && now < self.closes()
    }

    /// True if it is to be dropped when another request comes at `now`.
    fn is_over(&self, now: Time) -> bool {
        self.weight == Weight::Disproved || self.deadline <= now
    }

    /// Adds a later request; the caller's deadline counts from the first.
    fn followed_by(&mut self, fresh: StopRequest) {
        self.deadline = self.deadline.min(fresh.deadline);
        if let Wish::Stop(next) = fresh.wish {
            let (at, withheld) = match self.wish {
                Wish::Stop(before) => (before.at, before.withheld),
                Wish::PreStop | Wish::Kill => (next.at, Duration::ZERO),
            };
            self.wish = Wish::Stop(Asked {
                at,
                forced: self.is_forced(),
                withheld,
                ..next
            });
        }
    }

    /// Records that it was delivered as the stop of its container alone.
    pub fn heeded_alone(&mut self) {
        if self.weight == Weight::Open {
            self.weight = Weight::Alone;
        }
    }

    /// Records that it was part of a disproved termination.
    pub fn disprove(&mut self) {
        self.weight = Weight::Disproved;
    }

    /// Records that its answer is delayed by `wait`.
    pub fn answered_after(&mut self, wait: Duration) {
        if let Wish::Stop(stop) = &mut self.wish {
            stop.withheld = wait;
        }
    }

    /// Records the answer at `now`, when the caller's timer starts.
    pub fn answered(&mut self, now: Time) {
        if let Wish::Stop(stop) = &mut self.wish {
            stop.withheld = stop.withheld.min(now.since(stop.at));
        }
    }
}

// === impl Container ===

impl Container {
    /// True if the caller has sent a stop signal.
    pub fn is_asked(&self) -> bool {
        self.request
            .is_some_and(|request| request.signal().is_some())
    }

    /// The stop request if it is open at `now` and counts for the pod.
    pub fn open_request(&self, now: Time) -> Option<&StopRequest> {
        let request = self.request.as_ref()?;
        let is_of_the_pod = self.kind == ContainerKind::Workload && !self.is_of_next_run;
        let counts = is_of_the_pod && self.life.is_alive();
        (counts && request.is_open(now)).then_some(request)
    }

    /// Records that the caller runs the preStop handler.
    pub fn pre_stop_requested(&mut self, fresh: StopRequest) {
        let request = self.renew_request(fresh);
        // A caller that begins again counts from here.
        if request.wish == Wish::PreStop {
            request.deadline = fresh.deadline;
        }
    }

    /// Records a stop signal or SIGKILL of the caller.
    pub fn requested(&mut self, fresh: StopRequest) {
        match fresh.wish {
            Wish::Kill => {
                self.request.get_or_insert(fresh);
            }
            Wish::Stop(_) | Wish::PreStop => self.renew_request(fresh).followed_by(fresh),
        }
    }

    /// The open request when another comes: the existing one, unless that proves nothing any more.
    fn renew_request(&mut self, fresh: StopRequest) -> &mut StopRequest {
        if self
            .request
            .is_some_and(|request| request.is_over(fresh.at))
        {
            self.request = None;
        }
        self.request.get_or_insert(fresh)
    }
}
