//! The termination of a sandbox: its origin, its start, its stop requests, and its deadlines.

use std::time::Duration;

use crate::lifecycle::Time;
use crate::plan::{GracePolicy, RestartPolicy};
use crate::simulator::kubelet::Ask;
use crate::simulator::secs;

use super::{ContainerTrace, MIN_GRACE, Run, Taken, WINDOW};

/// The termination of a sandbox.
#[derive(Clone, Debug)]
pub struct Ending {
    pub sandbox: usize,
    pub from: Time,
    /// The end of the grace period, as the caller counts it.
    pub deadline: Time,
    /// The earliest deadline that the shim can assume. If kubelet has asked a container to stop
    /// twice, the deadline of the first request counts here.
    pub soonest: Time,
    /// The grace period that follows from the stop requests. The caller may kill sooner.
    pub grace: Duration,
    /// The earliest time when the shim can know of the termination.
    pub known: Time,
    pub forced: bool,
    /// True if the shim cannot know how much time the caller gives. The shim sees only a preStop
    /// handler, which looks the same with any grace period.
    pub is_vague: bool,
    /// True if the stop of a single container was still under way when the termination began. The
    /// deadline of that stop counts for the termination as well.
    pub is_entangled: bool,
}

/// The origin of a sandbox's termination.
struct Begun<'a, 'r> {
    run: &'r Run<'a>,
    sandbox: usize,
    /// The termination that the shim decided.
    decided: Option<&'r Taken>,
    /// The termination that the shim inferred from the caller's requests.
    inferred: Option<&'r Taken>,
    /// The time when the shim knew of the termination without any request: when it decided the
    /// termination, or when the sandbox died.
    by_shim: Option<Time>,
    /// The requests of this termination, in order.
    asks: Vec<&'a Ask>,
    from: Time,
}

impl<'a, 'r> Begun<'a, 'r> {
    fn of(run: &'r Run<'a>, sandbox: usize) -> Option<Begun<'a, 'r>> {
        // An earlier termination does not count if the pod started a new run before the first
        // request of this termination.
        let mut asks = run.log.asks.iter();
        let first = asks.find(|ask| ask.end && run.tells(ask) && run.ask_sandbox(ask) == sandbox);
        let is_last = |taken: &&Taken| {
            let followed = taken.followed.zip(first);
            let is_followed = followed.is_some_and(|(at, first)| first.at >= at);
            taken.sandbox == sandbox && taken.disproved.is_none() && !is_followed
        };
        let (decided, inferred): (Vec<_>, Vec<_>) = run
            .taken
            .iter()
            .filter(is_last)
            .partition(|taken| taken.because.is_decided());
        let (decided, inferred) = (decided.first().copied(), inferred.first().copied());
        let by_shim = decided.map(|taken| taken.at);
        let by_shim = by_shim.into_iter().chain(run.died_alone(sandbox)).min();
        let mut asks = run.asks_of_end(sandbox, by_shim, inferred.map(|taken| taken.at));
        if let Some(at) = by_shim {
            let decided = decided.filter(|taken| taken.at == at);
            asks.retain(|ask| ask.is_kill || run.counts_after(ask, at, decided));
        }
        let first = asks.first().map(|ask| ask.at);
        let from = first.into_iter().chain(by_shim).min()?;
        Some(Begun {
            run,
            sandbox,
            decided,
            inferred,
            by_shim,
            asks,
            from,
        })
    }

    fn ending(&self) -> Ending {
        let first_times = self.given(|_| true);
        let entangled: Vec<_> = self.entangled().collect();
        // If a container that was being stopped is asked again in the termination, the second
        // request sets the container's deadline.
        let alone = entangled.iter().filter(|ask| !self.is_asked(ask.id));
        let own = self.given(|ask| !self.is_begun_again(ask));
        let last = alone
            .map(|ask| ask.at.after(ask.grace))
            .fold(own, Time::min);
        let kills = self.kills();
        let deadline = kills.fold(last, Time::min);
        // The deadlines of stop requests for single containers count, too, whether the request came
        // before the termination or during it.
        let living = self.run.asks_of_living(self.sandbox);
        let living = living.filter(|ask| ask.at > self.from);
        let others = entangled.iter().copied().chain(living);
        let soonest = others
            .map(|ask| ask.at.after(ask.grace))
            .fold(first_times.min(deadline), Time::min);
        Ending {
            sandbox: self.sandbox,
            from: self.from,
            deadline,
            soonest,
            grace: last.since(self.from),
            known: self.known(),
            forced: self.is_forced(),
            is_vague: self.is_vague(),
            is_entangled: !entangled.is_empty(),
        }
    }

    /// The earliest deadline that follows from the stop requests for which `counts` is true. If the
    /// shim decided the termination, the pod's grace period gives a deadline as well.
    fn given(&self, counts: impl Fn(&Ask) -> bool) -> Time {
        // The shim does not see that a deletion gives more time than the pod's own grace period.
        let own = secs(self.run.case.grace);
        let by_shim = match self.by_shim {
            Some(at) => at.after(own),
            None => Time::default().after(Duration::MAX),
        };
        // usher does not stop native containers, nor containers outside the pod's plan. Requests
        // for them set the deadline only if there are no other requests.
        let has_ours = self.asks.iter().any(|ask| self.run.is_of_ours(ask));
        let asks = self.asks.iter().filter(|ask| {
            let tells = self.run.is_of_ours(ask) || !has_ours;
            tells && !ask.is_kill && counts(ask)
        });
        asks.map(|ask| ask.at.after(ask.grace.min(own)))
            .fold(by_shim, Time::min)
    }

    /// True if `ask` runs a preStop handler, and the caller runs the handler again before the shim
    /// knows of the termination. Then the deadline counts from the repeated run.
    fn is_begun_again(&self, ask: &Ask) -> bool {
        let inferred = self.inferred.map(|taken| taken.at);
        let known = self.by_shim.into_iter().chain(inferred).min();
        let mut asks = self.asks.iter();
        let again = asks.any(|later| {
            let is_before = known.is_none_or(|known| later.at <= known);
            later.id == ask.id && later.is_handler && later.at > ask.at && is_before
        });
        ask.is_handler && again
    }

    fn is_asked(&self, id: &str) -> bool {
        self.asks.iter().any(|ask| ask.id == id)
    }

    /// The first sign of the termination, and the number of observations before it.
    fn first_sign(&self) -> (Time, usize) {
        let first = self.asks.first().map(|ask| (ask.at, ask.after));
        let taken = [self.decided, self.inferred].into_iter().flatten();
        let taken = taken.map(|taken| (taken.at, taken.after));
        taken.chain(first).min().unwrap_or((self.from, usize::MAX))
    }

    /// Earlier stop requests for single containers that the termination includes. When the
    /// termination began, the grace period of the request was not over, and the caller saw the
    /// container as RUNNING.
    fn entangled(&self) -> impl Iterator<Item = &'r Ask> {
        let (at, after) = self.first_sign();
        let run = self.run;
        run.asks_of_living(self.sandbox).filter(move |ask| {
            let is_open = ask.at <= at && ask.at.after(ask.grace) > at;
            let reads_running = |trace: &ContainerTrace<'_>| trace.read_running(at, after);
            run.is_of_ours(ask) && is_open && run.whose(ask).is_some_and(reads_running)
        })
    }

    /// Times of the caller's SIGKILLs, which show only that the grace period is over.
    fn kills(&self) -> impl Iterator<Item = Time> {
        let asked = self.asks.iter().filter(|ask| ask.is_kill);
        let log = self.run.log;
        let later = log.kills.iter().filter(|(at, id)| {
            let mut asks = log.asks.iter().filter(|ask| ask.id == *id);
            // A request does not belong to the termination if it was delivered alone and was closed
            // before the termination began.
            let is_again = log.asked_again.contains(id)
                && asks.any(|ask| ask.end || self.run.closes(ask) > self.from);
            *at >= self.from && (self.is_asked(id) || is_again)
        });
        asked.map(|ask| ask.at).chain(later.map(|(at, _)| *at))
    }

    /// The time when the shim could know of the termination. The shim knows at once of a
    /// termination that it decides, and of the sandbox's death. To know of a caller's termination,
    /// the shim waits for a stop request for a second container, at most until the termination
    /// window is over. If the shim inferred the termination earlier, that time counts.
    fn known(&self) -> Time {
        let first = self.asks.first();
        let second = first.and_then(|first| self.asks.iter().find(|ask| ask.id != first.id));
        let inferred = self.inferred.map(|taken| taken.at);
        self.by_shim.unwrap_or_else(|| {
            let at_latest = second.map_or(self.from.after(WINDOW), |ask| ask.at);
            inferred.map_or(at_latest, |inferred| inferred.min(at_latest))
        })
    }

    /// True if the caller leaves the containers no time to exit.
    fn is_forced(&self) -> bool {
        // If the shim has decided the termination before any stop request came, the grace periods
        // of the requests do not matter.
        let inferred = self.inferred.map(|taken| taken.at);
        let is_decided = self
            .by_shim
            .is_some_and(|at| inferred.is_none_or(|inferred| at <= inferred));
        let is_short = |ask: &&Ask| ask.is_kill || ask.grace <= MIN_GRACE;
        let is_asked = !self.asks.is_empty() && self.asks.iter().all(is_short);
        is_asked && !is_decided && !self.was_given_time()
    }

    /// True if a stop request that gave more than two seconds is still open when the shim infers
    /// the termination. If the shim does not infer it, the check is made at the first request or
    /// at the shim's decision, whichever comes first.
    fn was_given_time(&self) -> bool {
        let inferred = self.inferred.map(|taken| (taken.at, taken.after));
        let (at, after) = inferred.unwrap_or_else(|| self.first_sign());
        let run = self.run;
        run.log.asks.iter().any(|ask| {
            let mut traces = run.traces.iter().filter(|trace| trace.id == ask.id);
            ask.grace > MIN_GRACE
                && ask.at <= at
                && run.ask_sandbox(ask) == self.sandbox
                && run.is_of_ours(ask)
                && run.closes(ask) > at
                && traces.any(|trace| trace.read_running(at, after))
        })
    }

    fn is_vague(&self) -> bool {
        let own = secs(self.run.case.grace);
        let is_short = |ask: &&Ask| ask.is_handler && ask.grace < own;
        let first = self.asks.first();
        self.asks.iter().any(is_short)
            || first.is_some_and(|ask| self.run.is_like_a_post_start(ask))
    }
}

impl<'a> Run<'a> {
    /// The last termination of a sandbox. `None` if there was none, or if a new run followed it in
    /// the sandbox.
    pub fn ending(&self, sandbox: usize) -> Option<Ending> {
        Some(Begun::of(self, sandbox)?.ending())
    }

    /// True if the shim decided the termination only after the first request, when less than
    /// `least` of the grace period was left.
    pub fn is_decided_late(&self, ending: &Ending, least: Duration) -> bool {
        self.taken.iter().any(|taken| {
            let is_late = taken.at > ending.from && ending.soonest.since(taken.at) < least;
            taken.sandbox == ending.sandbox && taken.because.is_decided() && is_late
        })
    }

    /// True if any request to stop the whole pod gave less time than `least`. Requests for native
    /// containers and for containers outside the pod's plan do not count.
    pub fn is_given_less(&self, ending: &Ending, least: Duration) -> bool {
        self.log.asks.iter().any(|ask| {
            let is_of_it = ask.end && !ask.is_kill && self.ask_sandbox(ask) == ending.sandbox;
            is_of_it && ask.grace < least && self.is_of_ours(ask)
        })
    }

    /// The requests of a sandbox's termination, in order. Requests that were closed or delivered
    /// before any sign of the termination are left out, because they stopped single containers.
    fn asks_of_end(
        &self,
        sandbox: usize,
        by_shim: Option<Time>,
        recognised: Option<Time>,
    ) -> Vec<&'a Ask> {
        let log = self.log;
        let asks = log.asks.iter().filter(|ask| ask.end);
        let mut asks: Vec<_> = asks
            .filter(|ask| self.ask_sandbox(ask) == sandbox)
            .filter(|ask| self.tells(ask))
            .collect();
        asks.sort_by_key(|ask| ask.at);
        // `own` is true for each request that stops only a single container. The value may depend
        // on the value for a later request, so the loop runs backward.
        let mut own = vec![false; asks.len()];
        for place in (0..asks.len()).rev() {
            let ask = asks[place];
            let second = (place + 1..asks.len()).find(|other| asks[*other].id != ask.id);
            let next = second.map(|second| asks[second].at);
            let is_known = recognised.is_some_and(|at| match next {
                Some(next) => at < next,
                None => self.heeded_at(ask).is_none_or(|heeded| at <= heeded),
            });
            own[place] = !is_known
                && match (second, by_shim) {
                    (Some(second), by_shim) if by_shim.is_none_or(|at| asks[second].at < at) => {
                        let (next, after) = (asks[second].at, asks[second].after);
                        let is_own = own[second] || self.is_alone(ask, asks[second]);
                        self.is_over(ask, next, after) && is_own
                    }
                    (_, Some(by_shim)) => self.is_over(ask, by_shim, 0),
                    // A person with `ctr` ends the pod by several kills in a row, and a single kill
                    // stops one container.
                    (_, None) => self.case.by_hand || self.heeded_at(ask).is_some(),
                };
        }
        let first = own.iter().position(|is_own| !is_own);
        asks.split_off(first.unwrap_or(asks.len()))
    }

    /// True if a stop request belongs to a termination that the shim knew of at the time `at`. The
    /// request's container must belong to the terminated run, and must meet one of these
    /// conditions:
    ///
    /// - The container has a process at `at`, or at the time of the request if that is later.
    /// - The request comes at `at` or later, and the caller then sees the container as RUNNING. The
    ///   container needs no process, because the shim learns the grace period from the request.
    fn counts_after(&self, ask: &Ask, at: Time, decided: Option<&Taken>) -> bool {
        let Some(trace) = self.whose(ask) else {
            return false;
        };
        let is_of_it = match decided {
            // A defer container is part of the termination even if it was created at the moment of
            // the decision, because its turn may still come.
            Some(_) if trace.part().is_defer() => trace.created <= at,
            Some(taken) => trace.created_after < taken.after,
            None => trace.created <= at,
        };
        let tells = ask.at >= at && trace.reads_running(ask.at);
        is_of_it && (trace.is_alive(ask.at.max(at)) || tells)
    }

    /// The time when the sandbox died without a stop request.
    fn died_alone(&self, sandbox: usize) -> Option<Time> {
        let mut asks = self.log.asks.iter();
        let died = self.deaths[sandbox].filter(|died| {
            // The stop of the sandbox by kubelet at the very end does not count.
            self.log.over.is_none_or(|over| *died < over)
                && asks.all(|ask| !ask.end || self.ask_sandbox(ask) != sandbox || ask.at > *died)
        });
        died.filter(|died| self.of(sandbox).any(|trace| trace.is_alive(*died)))
    }

    /// The start of the run that ended at `end`. Without a sandbox container, a Create after a
    /// termination starts the pod over, unless the restart policy is `Never`.
    pub fn began(&self, sandbox: usize, end: Time) -> Time {
        let taken = self.taken.iter().filter(|taken| taken.sandbox == sandbox);
        let is_anew = self.case.by_hand && self.case.policy != RestartPolicy::Never;
        let followed = taken.filter_map(|taken| {
            let is_anew = is_anew || taken.is_followed_from_the_start;
            taken.followed.filter(|_| is_anew)
        });
        followed.filter(|at| *at <= end).max().unwrap_or_default()
    }

    /// The time that the grace policy adds to the grace period: usually the longest time for which
    /// the shim may delay the answer to a stop request.
    pub fn beyond(&self, ending: &Ending) -> Duration {
        match self.case.grace_policy {
            GracePolicy::Strict => Duration::ZERO,
            // In a forced termination, the caller leaves no time to exit. A sidecar still gets 2 s
            // between its stop signal and SIGKILL.
            _ if ending.forced => secs(2),
            GracePolicy::Reserve if ending.grace < secs(6) => Duration::ZERO,
            _ => self.withheld(),
        }
    }
}
