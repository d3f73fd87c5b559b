//! Stop requests from the caller's side: when each closes, if it is one of several, and when a lone
//! one is delivered.

use std::time::Duration;

use crate::lifecycle::Time;
use crate::plan::GracePolicy;
use crate::simulator::case::{Part, PreStop};
use crate::simulator::kubelet::Ask;
use crate::simulator::{ms, name_of, secs};

use super::{ContainerTrace, LEAST, Run, WINDOW};

impl<'a> Run<'a> {
    /// The container of a request.
    pub fn whose(&self, ask: &Ask) -> Option<&ContainerTrace<'a>> {
        self.traces.iter().find(|trace| trace.id == ask.id)
    }

    pub fn ask_sandbox(&self, ask: &Ask) -> usize {
        self.whose(ask).map_or(0, |trace| trace.sandbox)
    }

    /// The time of the first stop request, a preStop handler included.
    pub fn first_asked(&self, trace: &ContainerTrace<'_>) -> Option<Time> {
        let mut asks = self.log.asks.iter();
        asks.find(|ask| ask.id == trace.id).map(|ask| ask.at)
    }

    /// True if it was asked to stop in a living pod.
    pub fn was_asked_alone(&self, trace: &ContainerTrace<'_>) -> bool {
        let mut asks = self.log.asks.iter();
        asks.any(|ask| ask.id == trace.id && !ask.end)
    }

    /// The end of the time given with a request and with the preStop handler before it. A deletion
    /// that gives more than the pod's own grace period looks like one that gives that.
    fn deadline(&self, ask: &Ask) -> Time {
        let asks = self.log.asks.iter();
        let so_far = asks.filter(|other| other.id == ask.id && other.at <= ask.at);
        let open = so_far.filter(|other| other.at.after(other.grace) > ask.at || *other == ask);
        let own = secs(self.case.grace);
        let deadlines = open.map(|other| other.at.after(other.grace.min(own)));
        deadlines.min().unwrap_or(ask.at)
    }

    /// The time until which its caller waits; its timer starts at the answer.
    pub fn closes(&self, ask: &Ask) -> Time {
        let answers = self.log.answers.iter();
        let answer = answers.filter(|(at, id, _)| *at == ask.at && *id == ask.id);
        let waited = answer.map(|(_, _, waited)| *waited).max();
        // A container removed before its answer might have been delayed as long as allowed.
        let is_stop = !ask.is_handler && !ask.is_kill;
        let waited = waited.or_else(|| is_stop.then(|| self.withheld()));
        let deadline = self.deadline(ask).max(ask.at.after(LEAST));
        deadline.after(waited.unwrap_or_default())
    }

    /// The longest delay of an answer.
    pub fn withheld(&self) -> Duration {
        match self.case.grace_policy {
            GracePolicy::Strict => Duration::ZERO,
            GracePolicy::Shared | GracePolicy::Reserve => secs(2),
            GracePolicy::Overrun => secs(8),
            GracePolicy::SkipHooks => secs(4),
        }
    }

    /// True for a request for a container that usher orders.
    pub(super) fn is_of_ours(&self, ask: &Ask) -> bool {
        self.case.member(name_of(ask.id)).part.is_ours()
    }

    /// True unless the request is for a guest, which proves nothing.
    pub fn tells(&self, ask: &Ask) -> bool {
        self.case.member(name_of(ask.id)).part != Part::Guest
    }

    pub(super) fn asks_of_living(&self, sandbox: usize) -> impl Iterator<Item = &Ask> {
        let asks = self.log.asks.iter().filter(|ask| !ask.end);
        asks.filter(move |ask| self.ask_sandbox(ask) == sandbox)
    }

    /// The longest distance of two requests that kubelet makes at once.
    pub fn spread(&self) -> Duration {
        ms(self.case.gaps.iter().max().copied().unwrap_or_default())
    }

    /// True if a request was closed at `next`, after this many records, or delivered: it is "open …
    /// until it has exited or its own deadline has passed", and a lone one is delivered when no
    /// other request can come for which it would be delayed.
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

    /// The time when a request that no other follows is delivered: that of a sidecar or a held
    /// defer when the silence of another container shows that the pod lives on, and then as late as
    /// possible. If no app reads RUNNING it is the end of the pod.
    pub(super) fn heeded_at(&self, ask: &Ask) -> Option<Time> {
        let trace = self.whose(ask)?;
        let as_post_start = self.taken_for_post_start(trace).filter(|_| ask.is_handler);
        if as_post_start.is_some() {
            return as_post_start;
        }
        // A container that exits before that proves nothing about a living app.
        let until = self.kept_until(ask, trace);
        let until = trace.ended().map_or(until, |ended| until.min(ended));
        let is_app = |app: &ContainerTrace<'_>| app.part() == Part::App && app.id != trace.id;
        let mut apps = self.of(trace.sandbox).filter(|app| is_app(app));
        let app_reads_running = apps.any(|app| app.reads_running(until));
        (trace.part() != Part::App && app_reads_running).then_some(until)
    }

    /// The end of a preStop handler that was taken for the postStart handler: "an Exec without
    /// deadline that began within 1 s of Start's answer and before the next Create is taken for
    /// it".
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

    /// True if two requests were not made at once: the first container exited before the second
    /// request, although that came too late to belong to it, or without a signal; or each has a
    /// deadline of its own. (Kubelet counts whole seconds, and gives two if nothing is left.)
    pub(super) fn is_alone(&self, first: &Ask, second: &Ask) -> bool {
        let (one, other) = (self.deadline(first), self.deadline(second));
        // A native sidecar is asked when the time of all others is over.
        let at_most = match self.is_of_ours(second) {
            true => LEAST,
            false => LEAST.saturating_add(self.spread()),
        };
        let is_clock = one.max(other).since(one.min(other)) <= at_most;
        let trace = self.whose(first);
        let ended = trace.filter(|trace| trace.had_ended(second.at, second.after));
        match ended {
            Some(trace) => {
                let is_later = second.at.since(first.at) > WINDOW;
                // "A lone request for an app is delivered at once; in a pod that has an ending
                // after the window."
                let at_once = !self.case.has_an_ending();
                self.case.by_hand || is_later || at_once || trace.ended_by_itself()
            }
            None => first.is_handler || self.closes(first) <= second.at || !is_clock,
        }
    }

    /// True if a container was signaled at the end of its longest delay, without any sign of a
    /// second request before.
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
        // A caller that asks again may leave it less time.
        let asks = self.log.asks.iter();
        let mut own = asks.filter(|ask| ask.id == asked.id && !ask.is_kill && ask.at <= told);
        is_alone && own.any(|ask| self.kept_until(ask, asked) <= told)
    }

    /// The time until which a lone request may be delayed because a second one may come: until the
    /// silence of another container shows that none does.
    pub fn kept_until(&self, ask: &Ask, trace: &ContainerTrace<'_>) -> Time {
        let window = ask.at.after(WINDOW);
        if trace.part() == Part::App {
            return window;
        }
        let others = self.of(trace.sandbox).filter(|other| other.id != trace.id);
        let silent = others.filter_map(|other| Some((other, self.silence_shows_at(ask, other)?)));
        // Containers that exit before prove nothing, and hide nothing any more.
        let (lasting, gone): (Vec<_>, Vec<_>) =
            silent.partition(|(other, at)| other.reads_running(*at));
        let shown = lasting.into_iter().map(|(_, at)| at).min();
        let last = gone.into_iter().filter_map(|(other, _)| other.ended());
        shown.or(last.max()).unwrap_or(window).max(window)
    }

    /// The time from which the silence of a container shows that its pod lives on although another
    /// was asked: "any that reads RUNNING has no preStop handler and was not asked".
    fn silence_shows_at(&self, ask: &Ask, other: &ContainerTrace<'_>) -> Option<Time> {
        if !other.part().is_ours() || !other.read_running(ask.at, ask.after) {
            return None;
        }
        let own = self.log.asks.iter().filter(|own| own.id == other.id);
        let mut before = own.filter(|own| own.at <= ask.at);
        // containerd sends a stop signal once.
        let was_asked = before.any(|own| !own.is_handler);
        let (window, deadline) = (ask.at.after(WINDOW), self.deadline(ask));
        match other.member.pre_stop {
            Some((PreStop::Sleep, takes)) => {
                Some(window.after(ms(takes)).min(deadline.before(LEAST)))
            }
            Some((PreStop::HttpGet | PreStop::TcpSocket, _)) => {
                Some(ask.at.after(deadline.since(ask.at) / 2))
            }
            Some((PreStop::Exec, _)) | None => (!was_asked).then_some(window),
        }
    }

    /// "An Exec without deadline that began within 1 s of Start's answer is taken for it": such an
    /// Exec alone proves nothing.
    pub(super) fn is_like_a_post_start(&self, ask: &Ask) -> bool {
        let trace = self.whose(ask);
        let answered = trace.and_then(|trace| trace.answered);
        let is_soon = answered.is_some_and(|(at, _)| ask.at <= at.after(secs(1)));
        let mut others = self.log.asks.iter().filter(|other| other.id != ask.id);
        let is_alone = others.all(|other| self.ask_sandbox(other) != self.ask_sandbox(ask));
        ask.is_handler && is_soon && is_alone
    }
}
