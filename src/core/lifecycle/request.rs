//! What the caller wants stopped: the stop request of one container.
//!
//! A request is open until the caller's own deadline, and what it proves is in its [`Weight`]: two that
//! are open at once are the end of the pod, one that was heeded alone is about its container.
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

/// The caller wants the container stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct StopRequest {
    /// When it was first asked for.
    at: Time,
    /// When the caller will kill it.
    deadline: Time,
    wish: Wish,
    weight: Weight,
}

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Wish {
    /// Nothing yet: only its preStop handler was seen, which its stop begins with.
    PreStop,
    /// It is to be stopped.
    Stop(Asked),
    /// It is to be killed, and was never asked to stop.
    Kill,
}

/// How it is to be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Asked {
    /// When it was first asked for: a preStop handler may have come before.
    at: Time,
    signal: Signal,
    /// The signal is for all of its processes, not only its init process.
    all: bool,
    /// The caller has left it no time from the first on: a SIGKILL, or a grace period that is none.
    forced: bool,
    /// How much later than it was asked its caller begins to count, at most: at the answer.
    withheld: Duration,
}

/// What a request proves of the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Weight {
    /// That its end has come, together with another.
    Open,
    /// It was heeded before anything was known of an end of its pod: it is of no end that began later.
    Alone,
    /// Nothing any more: it was part of a termination that proved to be none.
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

    /// Its preStop handler is run at `at`, and the caller gives `grace` for that and its stop.
    pub fn pre_stop(at: Time, grace: Duration) -> StopRequest {
        StopRequest::new(at, grace, Wish::PreStop)
    }

    /// It gets a stop signal at `at`, and SIGKILL when `grace` is over.
    pub fn stop(at: Time, grace: Duration, signal: Signal, all: bool) -> StopRequest {
        let stop = Asked {
            at,
            signal,
            all,
            // Kubelet gives two seconds even where there is no grace period (a forced deletion).
            forced: grace <= LEAST,
            withheld: Duration::ZERO,
        };
        StopRequest::new(at, grace, Wish::Stop(stop))
    }

    /// It gets SIGKILL at `at`; `grace` is how long the caller waits for its end.
    pub fn kill(at: Time, grace: Duration) -> StopRequest {
        StopRequest::new(at, grace, Wish::Kill)
    }

    /// When it was first asked for.
    pub fn at(&self) -> Time {
        self.at
    }

    /// When the caller will kill it.
    pub fn deadline(&self) -> Time {
        self.deadline
    }

    /// The signal it is to be stopped with, and whether all of it is to get that; none if it was not
    /// asked to stop.
    pub fn signal(&self) -> Option<(Signal, bool)> {
        match self.wish {
            Wish::Stop(stop) => Some((stop.signal, stop.all)),
            Wish::PreStop | Wish::Kill => None,
        }
    }

    /// Nothing of it was seen but that its preStop handler is run.
    pub fn is_pre_stop(&self) -> bool {
        self.wish == Wish::PreStop
    }

    /// Whether its caller's time ends with `deadline`: kubelet counts whole seconds, and gives two where
    /// nothing is left.
    pub fn ends_with(&self, deadline: Time) -> bool {
        let (first, last) = (self.deadline.min(deadline), self.deadline.max(deadline));
        last.since(first) <= LEAST
    }

    /// It is to be killed, and was never asked to stop.
    pub fn is_kill(&self) -> bool {
        self.wish == Wish::Kill
    }

    /// The caller leaves it no time: SIGKILL without a stop signal, or a grace period that is none.
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

    /// Whether it can be of an end of the pod that began at `since`: whoever was told before, alone, has
    /// a time of its own.
    pub fn is_of_end_since(&self, since: Time) -> bool {
        match self.weight {
            Weight::Open => true,
            Weight::Alone => self.at >= since,
            Weight::Disproved => false,
        }
    }

    /// Whether it was heeded as the stop of its container alone.
    pub fn is_alone(&self) -> bool {
        self.weight == Weight::Alone
    }

    /// When it is over, if the container lives on. Where there is no grace period it is open for the
    /// moment that follows every grace period, or it would be over at once.
    pub fn closes(&self) -> Time {
        let withheld = match self.wish {
            Wish::Stop(stop) => stop.withheld,
            Wish::PreStop | Wish::Kill => Duration::ZERO,
        };
        let deadline = self.deadline.after(withheld);
        deadline.max(self.at.after(LEAST))
    }

    /// Whether it is open at `now`, and says something of its pod.
    pub fn is_open(&self, now: Time) -> bool {
        self.weight != Weight::Disproved && now < self.closes()
    }

    /// Whether it is to be forgotten when another comes at `now`.
    fn is_over(&self, now: Time) -> bool {
        self.weight == Weight::Disproved || self.deadline <= now
    }

    /// A stop signal follows what there was; the caller counts from the first on.
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

    /// It was heeded as the stop of its container alone.
    pub fn heeded_alone(&mut self) {
        if self.weight == Weight::Open {
            self.weight = Weight::Alone;
        }
    }

    /// It was part of a termination that proved to be none.
    pub fn disprove(&mut self) {
        self.weight = Weight::Disproved;
    }

    /// Its answer comes that much later.
    pub fn answered_after(&mut self, wait: Duration) {
        if let Wish::Stop(stop) = &mut self.wish {
            stop.withheld = wait;
        }
    }

    /// It is answered at `now`: its caller begins to count.
    pub fn answered(&mut self, now: Time) {
        if let Wish::Stop(stop) = &mut self.wish {
            stop.withheld = stop.withheld.min(now.since(stop.at));
        }
    }
}

// === impl Container ===

impl Container {
    /// Whether the caller has sent a stop signal.
    pub fn is_asked(&self) -> bool {
        self.request
            .is_some_and(|request| request.signal().is_some())
    }

    /// The caller's wish to stop it, if it is open at `now` and says something of its pod.
    pub fn open_request(&self, now: Time) -> Option<&StopRequest> {
        let request = self.request.as_ref()?;
        let is_of_the_pod = self.kind == ContainerKind::Workload && !self.is_of_next_run;
        let counts = is_of_the_pod && self.life.is_alive();
        (counts && request.is_open(now)).then_some(request)
    }

    /// The caller runs its preStop handler.
    pub fn pre_stop_requested(&mut self, fresh: StopRequest) {
        let request = self.renew_request(fresh);
        // A caller that begins again counts from here.
        if request.wish == Wish::PreStop {
            request.deadline = fresh.deadline;
        }
    }

    /// The caller sends a stop signal, or SIGKILL: that is a request of its own where none came before.
    pub fn requested(&mut self, fresh: StopRequest) {
        match fresh.wish {
            Wish::Kill => {
                self.request.get_or_insert(fresh);
            }
            Wish::Stop(_) | Wish::PreStop => self.renew_request(fresh).followed_by(fresh),
        }
    }

    /// The request that is open when another comes: the one there was, unless that proves nothing any
    /// more.
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
