//! Stop requests of the caller, one per container.
//!
//! A request is open until its container has exited, or until the caller's own deadline. The
//! [`Evidence`] of a request says what the request proves. Two requests that are open at once mean
//! the end of the pod. A request that was delivered alone concerns only its container.
//!
//! ```text
//!   PreStop ----> Stop ----> Stop        the kind; each arrow is a stop signal
//!                  ^
//!   Kill ----------'
//!
//!   Open --> Alone --> Disproved         the evidence
//!     '-------------------^
//! ```

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::plan::{ContainerKind, Signal};

use super::container::Container;
use super::grace::MIN_GRACE;
use super::time::Time;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct StopRequest {
    /// Time of the caller's first call for this stop: preStop handler, stop signal or SIGKILL.
    at: Time,
    /// Expected time of the caller's SIGKILL. For a [`RequestKind::Kill`], the time until which the
    /// caller waits for the exit.
    deadline: Time,
    kind: RequestKind,
    evidence: Evidence,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum RequestKind {
    /// The shim has seen only the preStop handler, which the caller runs before its stop signal.
    PreStop,
    /// A stop signal.
    Stop(StopSignal),
    /// SIGKILL without a stop signal or preStop handler before.
    Kill,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct StopSignal {
    /// Time of the first stop signal; a preStop handler may have run before.
    at: Time,
    signal: Signal,
    /// True if the signal is for all processes, not only the init process.
    all: bool,
    /// True if the caller gave the container no time: its first signal was SIGKILL, or left it 2 s
    /// at most. Kubelet gives these 2 s even without a grace period.
    forced: bool,
    /// Delay of the answer: the longest possible delay or, once the answer is sent, the real one.
    /// The caller starts its timer when it gets the answer.
    withheld: Duration,
}

/// The evidence that a request gives about its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Evidence {
    /// If another request is open at the same time, this request proves that the pod ends.
    Open,
    /// The shim has delivered the request as the stop of its container alone, before any
    /// termination was known. The request belongs to a later termination only in two cases: the
    /// termination begins at most one termination window after the request, or both have the same
    /// deadline.
    Alone,
    /// The request proves nothing. It was part of a termination that the shim had inferred by
    /// mistake, or it is a SIGKILL that only cleans up a container that was never started.
    Disproved,
}

impl StopRequest {
    fn new(at: Time, grace: Duration, kind: RequestKind) -> StopRequest {
        StopRequest {
            at,
            deadline: at.after(grace),
            kind,
            evidence: Evidence::Open,
        }
    }

    /// The request implied by a preStop handler run at `at`, with `grace` for the handler and the
    /// stop.
    pub fn pre_stop(at: Time, grace: Duration) -> StopRequest {
        StopRequest::new(at, grace, RequestKind::PreStop)
    }

    /// A stop signal at `at`; SIGKILL follows when `grace` is over.
    pub fn stop(at: Time, grace: Duration, signal: Signal, all: bool) -> StopRequest {
        let stop = StopSignal {
            at,
            signal,
            all,
            // Kubelet gives two seconds even without a grace period (a forced deletion).
            forced: grace <= MIN_GRACE,
            withheld: Duration::ZERO,
        };
        StopRequest::new(at, grace, RequestKind::Stop(stop))
    }

    /// SIGKILL at `at`. After it, the caller waits for the exit for the time `grace`.
    pub fn kill(at: Time, grace: Duration) -> StopRequest {
        StopRequest::new(at, grace, RequestKind::Kill)
    }

    pub fn at(&self) -> Time {
        self.at
    }

    pub fn deadline(&self) -> Time {
        self.deadline
    }

    /// The stop signal, and true if it is for all processes; `None` without a stop signal.
    pub fn signal(&self) -> Option<(Signal, bool)> {
        match self.kind {
            RequestKind::Stop(stop) => Some((stop.signal, stop.all)),
            RequestKind::PreStop | RequestKind::Kill => None,
        }
    }

    /// True if only the preStop handler was seen.
    pub fn is_pre_stop(&self) -> bool {
        self.kind == RequestKind::PreStop
    }

    /// True if `deadline` is the deadline of this request, give or take two seconds: kubelet counts
    /// whole seconds, and gives two if no time is left.
    pub fn ends_with(&self, deadline: Time) -> bool {
        let (first, last) = (self.deadline.min(deadline), self.deadline.max(deadline));
        last.since(first) <= MIN_GRACE
    }

    /// True for SIGKILL without a stop signal or preStop handler before.
    pub fn is_kill(&self) -> bool {
        self.kind == RequestKind::Kill
    }

    /// True if the caller leaves no time: SIGKILL without a stop signal, or a stop signal with 2 s
    /// at most.
    pub fn is_forced(&self) -> bool {
        match self.kind {
            RequestKind::PreStop => false,
            RequestKind::Stop(stop) => stop.forced,
            RequestKind::Kill => true,
        }
    }

    /// True if the caller sent a stop signal and gave the container 2 s at most, counted from its
    /// first signal. False after a preStop handler: then 2 s may be the rest of the grace period.
    pub fn is_short_stop(&self) -> bool {
        matches!(self.kind, RequestKind::Stop(stop) if stop.forced)
    }

    /// True if the request can be part of a termination that began at `since`. False if the request
    /// came before `since` and the shim has handled it as a stop of this container alone: it then
    /// has its own deadline. Also false if the request is no sign of a termination
    /// ([`Evidence::Disproved`]).
    pub fn is_of_end_since(&self, since: Time) -> bool {
        match self.evidence {
            Evidence::Open => true,
            Evidence::Alone => self.at >= since,
            Evidence::Disproved => false,
        }
    }

    /// True if the request was delivered as the stop of one container, not as part of a
    /// termination.
    pub fn is_alone(&self) -> bool {
        self.evidence == Evidence::Alone
    }

    /// The time until which the request is open if the container does not exit: the caller's
    /// deadline plus the delay of the answer. A request without a grace period stays open for two
    /// seconds, because otherwise it would close at once.
    pub fn closes(&self) -> Time {
        let withheld = match self.kind {
            RequestKind::Stop(stop) => stop.withheld,
            RequestKind::PreStop | RequestKind::Kill => Duration::ZERO,
        };
        let deadline = self.deadline.after(withheld);
        deadline.max(self.at.after(MIN_GRACE))
    }

    /// True if the request closes later than `now`, and still proves something about its pod
    /// (`Evidence::Open` or `Evidence::Alone`). Does not check if the container has exited:
    /// [`Container::open_request`] checks that.
    pub fn is_open(&self, now: Time) -> bool {
        self.evidence != Evidence::Disproved && now < self.closes()
    }

    /// True if a request that comes at `now` replaces this one instead of adding to it. This is so
    /// if this one proves nothing (`Evidence::Disproved`), or if its deadline is past. After a
    /// preStop handler that takes the whole grace period, kubelet still sends its stop signal. So
    /// until a stop signal comes, two seconds are added to the deadline.
    fn is_over(&self, now: Time) -> bool {
        let until = match self.kind {
            RequestKind::PreStop => self.deadline.after(MIN_GRACE),
            RequestKind::Stop(_) | RequestKind::Kill => self.deadline,
        };
        self.evidence == Evidence::Disproved || until <= now
    }

    /// Adds a later request: its stop signal replaces the earlier one. The caller's deadline counts
    /// from the first request, unless a preStop handler has taken all of the time.
    fn followed_by(&mut self, fresh: StopRequest) {
        self.deadline = match self.deadline <= fresh.at {
            true => fresh.deadline,
            false => self.deadline.min(fresh.deadline),
        };
        if let RequestKind::Stop(next) = fresh.kind {
            let (at, withheld) = match self.kind {
                RequestKind::Stop(before) => (before.at, before.withheld),
                RequestKind::PreStop | RequestKind::Kill => (next.at, Duration::ZERO),
            };
            self.kind = RequestKind::Stop(StopSignal {
                at,
                forced: self.is_forced(),
                withheld,
                ..next
            });
        }
    }

    /// Records that the shim has delivered the request as the stop of this container alone, and not
    /// as part of a termination.
    pub fn mark_delivered_alone(&mut self) {
        if self.evidence == Evidence::Open {
            self.evidence = Evidence::Alone;
        }
    }

    /// Records that the request is no sign that the pod ends.
    pub fn disprove(&mut self) {
        self.evidence = Evidence::Disproved;
    }

    /// Records that the answer to the request is delayed by `wait` at most.
    pub fn set_answer_delay(&mut self, wait: Duration) {
        if let RequestKind::Stop(stop) = &mut self.kind {
            stop.withheld = wait;
        }
    }

    /// Records that the request is answered at `now`. The caller's timer starts then.
    pub fn mark_answered(&mut self, now: Time) {
        if let RequestKind::Stop(stop) = &mut self.kind {
            stop.withheld = stop.withheld.min(now.since(stop.at));
        }
    }
}

impl Container {
    /// True if the caller has sent a stop signal, even if the request is closed. A SIGKILL or a
    /// preStop handler alone does not count.
    pub fn is_asked(&self) -> bool {
        self.request
            .is_some_and(|request| request.signal().is_some())
    }

    /// The stop request if it is open at `now`. `None` also if the container has exited or is the
    /// sandbox.
    pub fn open_request(&self, now: Time) -> Option<&StopRequest> {
        let request = self.request.as_ref()?;
        let counts = self.kind == ContainerKind::Workload && self.state.is_alive();
        (counts && request.is_open(now)).then_some(request)
    }

    /// Records that the caller runs the preStop handler, with which it begins to stop the
    /// container.
    pub fn add_pre_stop_request(&mut self, fresh: StopRequest) {
        let request = self.renew_request(fresh);
        // The caller begins the stop again, so the deadline counts from this preStop handler.
        if request.kind == RequestKind::PreStop {
            request.deadline = fresh.deadline;
        }
    }

    /// Records a stop signal or SIGKILL of the caller.
    ///
    /// - A stop signal begins a new request if the container has none, or if the old one [is
    ///   over](StopRequest::is_over). Otherwise the new signal replaces the signal of the old
    ///   request. The deadline then moves to a later time only if a preStop handler has used up all
    ///   of the time.
    /// - SIGKILL begins a new request only if the container has none. An earlier request stays as
    ///   it is, even if it is over.
    pub fn add_request(&mut self, fresh: StopRequest) {
        match fresh.kind {
            RequestKind::Kill => {
                self.request.get_or_insert(fresh);
            }
            RequestKind::Stop(_) | RequestKind::PreStop => {
                self.renew_request(fresh).followed_by(fresh)
            }
        }
    }

    /// Returns the container's stop request, after replacing it by `fresh` if it [is
    /// over](StopRequest::is_over). If there is no request, `fresh` becomes the container's
    /// request.
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
