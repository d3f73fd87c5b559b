//! Stop requests as the caller sees them: until when each is open, which of them belong together,
//! and when a single request is delivered.

use std::time::Duration;

use crate::lifecycle::Time;
use crate::plan::GracePolicy;
use crate::simulator::case::{Part, PreStop};
use crate::simulator::kubelet::Ask;
use crate::simulator::{ms, name_of, secs};

use super::{ContainerTrace, MIN_GRACE, Run, WINDOW};

impl<'a> Run<'a> {
    /// The container of a request.
    pub fn whose(&self, ask: &Ask) -> Option<&ContainerTrace<'a>> {
        self.traces.iter().find(|trace| trace.id == ask.id)
    }

    pub fn ask_sandbox(&self, ask: &Ask) -> usize {
        self.whose(ask).map_or(0, |trace| trace.sandbox)
    }

    /// The time of the container's first stop request or preStop handler.
    pub fn first_asked(&self, trace: &ContainerTrace<'_>) -> Option<Time> {
        let mut asks = self.log.asks.iter();
        asks.find(|ask| ask.id == trace.id).map(|ask| ask.at)
    }

    /// True if the container was asked to stop while the pod lived on.
    pub fn was_asked_alone(&self, trace: &ContainerTrace<'_>) -> bool {
        let mut asks = self.log.asks.iter();
        asks.any(|ask| ask.id == trace.id && !ask.end)
    }

    /// The end of the grace period that a request gives. If a preStop handler comes first, the
    /// grace period starts with the handler. A deletion may give more time than the pod's own grace
    /// period. The shim cannot see the additional time, so it does not count here.
    fn deadline(&self, ask: &Ask) -> Time {
        let asks = self.log.asks.iter();
        let so_far = asks.filter(|other| other.id == ask.id && other.at <= ask.at);
        let open = so_far.filter(|other| other.at.after(other.grace) > ask.at || *other == ask);
        let own = secs(self.case.grace);
        let deadlines = open.map(|other| other.at.after(other.grace.min(own)));
        deadlines.min().unwrap_or(ask.at)
    }

    /// The time until which the caller of a request waits. The caller starts its timer when the
    /// request is answered.
    pub fn closes(&self, ask: &Ask) -> Time {
        let waits = |list: &[(Time, &'static str, Duration)]| {
            let its = list
                .iter()
                .filter(|(at, id, _)| *at == ask.at && *id == ask.id);
            its.map(|(_, _, waited)| *waited).max()
        };
        // If a container ended before its stop request was answered, the answer may have been
        // delayed as long as allowed, or containerd may have been down.
        let is_stop = !ask.is_handler && !ask.is_kill;
        let unanswered = || waits(&self.log.unanswered).unwrap_or_default();
        let waited =
            waits(&self.log.answers).or_else(|| is_stop.then(|| unanswered().max(self.withheld())));
        let deadline = self.deadline(ask).max(ask.at.after(MIN_GRACE));
        deadline.after(waited.unwrap_or_default())
    }

    /// Longest time for which the grace policy lets the shim delay the answer to a stop request.
    pub fn withheld(&self) -> Duration {
        match self.case.grace_policy {
            GracePolicy::Strict => Duration::ZERO,
            GracePolicy::Shared | GracePolicy::Reserve => secs(2),
            GracePolicy::Overrun => secs(8),
            GracePolicy::SkipHooks => secs(4),
        }
    }

    /// True if the request is for a container whose stop usher controls.
    pub(super) fn is_of_ours(&self, ask: &Ask) -> bool {
        self.case.member(name_of(ask.id)).part.is_ours()
    }

    /// True if the request can show that the caller ends the whole pod. A request for a container
    /// that usher leaves alone cannot show this.
    pub fn tells(&self, ask: &Ask) -> bool {
        self.case.member(name_of(ask.id)).part != Part::Guest
    }

    pub(super) fn asks_of_living(&self, sandbox: usize) -> impl Iterator<Item = &Ask> {
        let asks = self.log.asks.iter().filter(|ask| !ask.end);
        asks.filter(move |ask| self.ask_sandbox(ask) == sandbox)
    }

    /// The longest time from the start of a deletion by kubelet to one of its stop requests.
    pub fn spread(&self) -> Duration {
        ms(self.case.gaps.iter().max().copied().unwrap_or_default())
    }

    /// True if a request is over by the time `next`, for one of these reasons:
    ///
    /// - The container has exited. For a SIGKILL, only this counts.
    /// - The deadline has passed.
    /// - The shim has delivered the stop signal, because no request for another container has come.
    /// - The shim took a preStop handler for the postStart handler, and the handler has ended.
    ///
    /// An exit at the time `next` counts only if its report is among the first `after`
    /// observations.
    pub(super) fn is_over(&self, ask: &Ask, next: Time, after: usize) -> bool {
        let Some(trace) = self.whose(ask) else {
            return true;
        };
        let has_ended = trace.had_ended(next, after);
        match ask.is_handler {
            true => {
                let over = self.taken_for_post_start(trace);
                has_ended || self.deadline(ask) <= next || over.is_some_and(|over| over <= next)
            }
            false if ask.is_kill => has_ended,
            false => has_ended || self.closes(ask) <= next || self.kept_until(ask, trace) <= next,
        }
    }

    /// The time when the shim delivers a request, because no request for another container has
    /// come. If the container exits sooner, the time of its exit. If the request is a preStop
    /// handler that the shim took for a postStart handler, the end of the handler.
    ///
    /// `None` for a request for an app. Also `None` if the caller sees no app as RUNNING at that
    /// time, because the request then means the end of the pod.
    pub(super) fn heeded_at(&self, ask: &Ask) -> Option<Time> {
        let trace = self.whose(ask)?;
        let as_post_start = self.taken_for_post_start(trace).filter(|_| ask.is_handler);
        if as_post_start.is_some() {
            return as_post_start;
        }
        // If the container exits sooner, its exit ends the delay.
        let until = self.kept_until(ask, trace);
        let until = trace.ended().map_or(until, |ended| until.min(ended));
        let is_app = |app: &ContainerTrace<'_>| app.part() == Part::App && app.id != trace.id;
        let mut apps = self.of(trace.sandbox).filter(|app| is_app(app));
        let app_reads_running = apps.any(|app| app.reads_running(until));
        (trace.part() != Part::App && app_reads_running).then_some(until)
    }

    /// The end of a preStop handler that the shim took for the postStart handler. The shim does so
    /// if the Exec has no deadline, and begins within 1 s of Start's answer and before the next
    /// Create.
    pub fn taken_for_post_start(&self, trace: &ContainerTrace<'_>) -> Option<Time> {
        let (answered, _) = trace.answered?;
        let (_, takes) = trace.member.pre_stop?;
        let mut asks = self.log.asks.iter();
        let ask = asks.find(|ask| ask.id == trace.id && ask.is_handler)?;
        let is_next =
            |other: &ContainerTrace<'_>| other.created > answered && other.created < ask.at;
        let is_taken = ask.at.since(answered) <= secs(1)
            && trace.part() == Part::Sidecar
            && trace.member.post_start.is_none()
            && !self.traces.iter().any(is_next);
        is_taken.then(|| ask.at.after(ms(takes).min(ask.grace)))
    }

    /// True if two stop requests do not belong to the same termination.
    ///
    /// If the first container still runs at the second request, any of these is enough:
    ///
    /// - The first request asked for the preStop handler.
    /// - The first request is closed.
    /// - The deadlines differ by more than kubelet's rounding. Kubelet counts whole seconds, and
    ///   gives two seconds if nothing is left.
    ///
    /// If the first container has exited before the second request, any of these is enough:
    ///
    /// - The second request came after the termination window.
    /// - The first container exited before it got any signal.
    /// - A person runs the pod.
    /// - The pod has neither defer containers nor termination hooks.
    pub(super) fn is_alone(&self, first: &Ask, second: &Ask) -> bool {
        let (one, other) = (self.deadline(first), self.deadline(second));
        // Kubelet stops a native sidecar when the grace period of all other containers is over.
        let at_most = match self.is_of_ours(second) {
            true => MIN_GRACE,
            false => MIN_GRACE.saturating_add(self.spread()),
        };
        let is_clock = one.max(other).since(one.min(other)) <= at_most;
        let trace = self.whose(first);
        let ended = trace.filter(|trace| trace.had_ended(second.at, second.after));
        match ended {
            Some(trace) => {
                let is_later = second.at.since(first.at) > WINDOW;
                // If the pod has no defer container and no termination hook, the shim delivers a
                // stop request for an app at once. Otherwise the shim first waits for a second
                // request, as long as the termination window lasts.
                let at_once = !self.case.has_an_ending();
                self.case.by_hand || is_later || at_once || trace.ended_by_itself()
            }
            None => first.is_handler || self.closes(first) <= second.at || !is_clock,
        }
    }

    /// True if a container got its signal at `told` because the longest delay of its stop request
    /// was over and no other container had been asked to stop.
    pub fn is_told_alone(&self, asked: &ContainerTrace<'_>, told: Time) -> bool {
        let mut asks = self.log.asks.iter();
        let Some(own) = asks.find(|ask| ask.id == asked.id && !ask.is_kill) else {
            return false;
        };
        let shows = |ask: &&Ask| {
            let other = self.whose(ask);
            let counts = other.is_some_and(|other| {
                other.sandbox == asked.sandbox
                    && other.part() != Part::Guest
                    && other.reported_after >= own.after
            });
            counts && ask.id != own.id && ask.at < told && self.closes(ask) > own.at
        };
        let mut taken = self.taken.iter();
        let was_taken = taken.any(|taken| {
            let is_before = taken.sandbox == asked.sandbox && taken.at < told;
            let over = taken.disproved.or(taken.followed);
            is_before && over.is_none_or(|at| at >= told)
        });
        let is_alone = self.log.asks.iter().filter(shows).count() == 0 && !was_taken;
        // If the caller asks again, the second request may give less time.
        let asks = self.log.asks.iter();
        let mut own = asks.filter(|ask| ask.id == asked.id && !ask.is_kill && ask.at <= told);
        is_alone && own.any(|ask| self.kept_until(ask, asked) <= told)
    }

    /// The time until which the shim may delay a stop request, to wait for a request for another
    /// container. If the caller ends the whole pod, the other request comes by this time.
    /// Otherwise the caller stops only this container.
    pub fn kept_until(&self, ask: &Ask, trace: &ContainerTrace<'_>) -> Time {
        let window = ask.at.after(WINDOW);
        if trace.part() == Part::App {
            return window;
        }
        let others = self.of(trace.sandbox).filter(|other| other.id != trace.id);
        let silent = others.filter_map(|other| Some((other, self.silence_shows_at(ask, other)?)));
        // Another container may exit before kubelet would ask it to stop. The lack of a request for
        // that container proves nothing.
        let (lasting, gone): (Vec<_>, Vec<_>) =
            silent.partition(|(other, at)| other.reads_running(*at));
        let shown = lasting.into_iter().map(|(_, at)| at).min();
        let last = gone.into_iter().filter_map(|(other, _)| other.ended());
        shown.or(last.max()).unwrap_or(window).max(window)
    }

    /// Latest time at which kubelet asks `other` to stop if it stops the whole pod. So if no
    /// request has come by then, kubelet does not stop the whole pod. `None` if `other` proves
    /// nothing, for example because the caller does not see `other` as RUNNING.
    fn silence_shows_at(&self, ask: &Ask, other: &ContainerTrace<'_>) -> Option<Time> {
        if !other.part().is_ours() || !other.read_running(ask.at, ask.after) {
            return None;
        }
        let own = self.log.asks.iter().filter(|own| own.id == other.id);
        let mut before = own.filter(|own| own.at <= ask.at);
        // A container that was already asked to stop gets no second request, because containerd
        // sends a stop signal only once.
        let was_asked = before.any(|own| !own.is_handler);
        let (window, deadline) = (ask.at.after(WINDOW), self.deadline(ask));
        match other.member.pre_stop {
            Some((PreStop::Sleep, takes)) => {
                Some(window.after(ms(takes)).min(deadline.before(MIN_GRACE)))
            }
            Some((PreStop::HttpGet | PreStop::TcpSocket, _)) => {
                Some(ask.at.after(deadline.since(ask.at) / 2))
            }
            Some((PreStop::Exec, _)) | None => (!was_asked).then_some(window),
        }
    }

    /// True if the request is an Exec without a deadline that began within 1 s of Start's answer.
    /// Such an Exec may be a postStart handler, so it proves no termination by itself.
    pub(super) fn is_like_a_post_start(&self, ask: &Ask) -> bool {
        let trace = self.whose(ask);
        let answered = trace.and_then(|trace| trace.answered);
        let is_soon = answered.is_some_and(|(at, _)| ask.at <= at.after(secs(1)));
        let mut others = self.log.asks.iter().filter(|other| other.id != ask.id);
        let is_alone = others.all(|other| self.ask_sandbox(other) != self.ask_sandbox(ask));
        ask.is_handler && is_soon && is_alone
    }
}
