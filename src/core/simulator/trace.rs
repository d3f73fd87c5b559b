//! What has happened to a pod: the lives of its containers, and the ends of its sandboxes, as the
//! containers and kubelet know them.

use std::time::Duration;

use crate::lifecycle::{Cause, Report, Time};
use crate::plan::{GracePolicy, RestartPolicy, Signal};
use crate::process::ExitStatus;

use crate::simulator::{Seen, ms, name_of, secs};

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
    /// How much had been seen before that.
    pub created_after: usize,
    pub answered: Option<(Time, bool)>,
    pub executed: Vec<Time>,
    pub signals: Vec<(Time, Signal)>,
    pub died: Vec<(Time, ExitStatus)>,
    pub reported: Option<(Time, u32)>,
    /// How much had been seen before that.
    pub reported_after: usize,
    pub restarting: Vec<Time>,
    /// When its postStart handler was run once more.
    pub post_starts: Vec<Time>,
    pub released: Option<Time>,
    /// What its stderr was told.
    pub told: Vec<(Time, String)>,
}

/// The end of a sandbox.
#[derive(Clone, Debug)]
pub struct Ending {
    pub sandbox: usize,
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

/// What the core took for the end of a sandbox.
#[derive(Clone, Debug)]
pub struct Taken {
    pub at: Time,
    /// How much had been seen before.
    pub after: usize,
    pub sandbox: usize,
    pub because: Cause,
    /// When it took it back.
    pub disproved: Option<Time>,
    /// When it was over, and the same sandbox started over.
    pub followed: Option<Time>,
}

/// What a node has to tell of a pod's life when it is over.
#[derive(Clone, Debug, Default)]
pub struct Account<'a> {
    /// What was seen by the containers and by their caller.
    pub seen: &'a [(Time, Seen)],
    /// How long each Start waited for its answer, and how long it was willing to.
    pub start_waits: Vec<(Duration, Option<Duration>)>,
    /// The calls that were not answered, or more than once.
    pub unanswered: Vec<String>,
    /// What is left when nothing should be.
    pub left: Vec<String>,
    /// How often the core was woken though there was nothing for it to do.
    pub idle_wakes: usize,
    /// How long an end may be known to the shim before it is told.
    pub untold: Duration,
    /// What went wrong on the node itself.
    pub excuses: Vec<Excuse>,
}

/// Something that went wrong on the node itself: whom it has kept from what was promised, and for how long.
#[derive(Clone, Debug)]
pub struct Excuse {
    /// The container; none if it was all that the node has.
    pub id: Option<String>,
    pub from: Time,
    pub until: Time,
}

/// A trace, and what is known of it.
pub struct Run<'a> {
    pub case: &'a Case,
    pub log: &'a Log,
    pub account: Account<'a>,
    pub lives: Vec<Life<'a>>,
    /// What the core took for the end.
    pub taken: Vec<Taken>,
    /// When each sandbox died.
    pub deaths: Vec<Option<Time>>,
}

// === a trace ===

impl<'a> Run<'a> {
    pub fn new(case: &'a Case, log: &'a Log, account: Account<'a>) -> Run<'a> {
        let seen = account.seen;
        let mut run = Run {
            case,
            log,
            account,
            lives: Vec::new(),
            taken: Vec::new(),
            deaths: vec![None; log.sandboxes.len()],
        };
        for (n, (at, seen)) in seen.iter().enumerate() {
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
                        created_after: n,
                        answered: None,
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
                self.with(id, |life| life.answered = Some((at, answer.is_ok())));
            }
            Seen::StartFailed(id, _) => self.with(id, |life| life.answered = Some((at, false))),
            Seen::Executed(id) => self.with(id, |life| life.executed.push(at)),
            Seen::Signalled(id, signal) => self.with(id, |life| life.signals.push((at, *signal))),
            Seen::Died(id, _) if id == "pause" => self.deaths[sandbox] = Some(at),
            Seen::Died(id, status) => self.with(id, |life| life.died.push((at, *status))),
            // Who has said it is not to blame for how long the news take.
            Seen::ExitSaid(id, code) | Seen::ExitReported(id, code) => {
                self.with(id, |life| {
                    life.reported.get_or_insert((at, *code));
                    life.reported_after = life.reported_after.min(n);
                });
            }
            Seen::PostStarted(id) => self.with(id, |life| life.post_starts.push(at)),
            Seen::Restarting(id) => self.with(id, |life| life.restarting.push(at)),
            Seen::Told(id, what) => self.with(id, |life| life.told.push((at, what.clone()))),
            Seen::Released(id) => self.with(id, |life| life.released = Some(at)),
            Seen::Reported(Report::Terminating { because, .. }) => {
                self.taken.push(Taken {
                    at,
                    after: n,
                    sandbox,
                    because: because.clone(),
                    disproved: None,
                    followed: None,
                });
            }
            Seen::Reported(Report::NotTerminating { .. }) => {
                if let Some(taken) = self.taken.last_mut() {
                    taken.disproved = Some(at);
                }
            }
            Seen::Reported(Report::StartsOver { .. }) => {
                if let Some(taken) = self.taken.last_mut()
                    && taken.sandbox == sandbox
                {
                    taken.followed = Some(at);
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

    /// Whether something on the node has hindered a container in that time.
    pub fn is_hindered(&self, id: &str, from: Time, until: Time) -> bool {
        self.account.excuses.iter().any(|excuse| {
            let is_its = excuse.id.as_ref().is_none_or(|of| of == id);
            is_its && excuse.from <= until && excuse.until >= from
        })
    }

    /// The same of any container of a sandbox.
    pub fn is_any_hindered(&self, sandbox: usize, from: Time, until: Time) -> bool {
        let mut lives = self.of(sandbox);
        lives.any(|life| self.is_hindered(&life.id, from, until))
    }

    pub fn ask_sandbox(&self, ask: &Ask) -> usize {
        let life = self.lives.iter().find(|life| life.id == ask.id);
        life.map_or(0, |life| life.sandbox)
    }

    /// When the core first took something for the end of a sandbox.
    pub fn first_taken(&self, sandbox: usize) -> Option<Time> {
        let mut taken = self.taken.iter();
        taken
            .find(|taken| taken.sandbox == sandbox)
            .map(|taken| taken.at)
    }

    /// Its caller did not wait for the answer of its Start, and has killed it.
    pub fn was_given_up(&self, life: &Life<'_>) -> bool {
        self.log.given_up.iter().any(|id| *id == life.id)
    }

    /// When the time is over that was given with a request, and with the preStop handler before it. A
    /// deletion that gives more than the pod's own grace period looks like one that gives that.
    fn deadline(&self, ask: &Ask) -> Time {
        let asks = self.log.asks.iter();
        let so_far = asks.filter(|other| other.id == ask.id && other.at <= ask.at);
        let open = so_far.filter(|other| other.at.after(other.grace) > ask.at || *other == ask);
        let own = secs(self.case.grace);
        let deadlines = open.map(|other| other.at.after(other.grace.min(own)));
        deadlines.min().unwrap_or(ask.at)
    }

    /// Until when its caller waits for what was asked: its own time begins at the answer.
    pub fn closes(&self, ask: &Ask) -> Time {
        let answers = self.log.answers.iter();
        let answer = answers.filter(|(at, id, _)| *at == ask.at && *id == ask.id);
        let waited = answer.map(|(_, _, waited)| *waited).max();
        // Whoever is not there any more when it is answered might have waited for as long as he may.
        let is_stop = !ask.is_handler && !ask.is_kill;
        let waited = waited.or_else(|| is_stop.then(|| self.withheld()));
        let deadline = self.deadline(ask).max(ask.at.after(LEAST));
        deadline.after(waited.unwrap_or_default())
    }

    /// When kubelet began to stop all of a sandbox.
    pub fn stopped_all(&self, sandbox: usize) -> Option<(Time, End)> {
        let mut ends = self.log.ends.iter();
        ends.find(|(_, of, _)| *of == sandbox)
            .map(|(at, _, end)| (*at, *end))
    }

    /// The end of a sandbox, if it had one: the last that was not followed by anything.
    pub fn ending(&self, sandbox: usize) -> Option<Ending> {
        let of_sandbox = |taken: &&Taken| taken.sandbox == sandbox && taken.disproved.is_none();
        let last = self.taken.iter().filter(of_sandbox);
        // What came before that is of the end before.
        let mut asks = self
            .log
            .asks
            .iter()
            .filter(|ask| ask.end && self.tells(ask));
        let asked = asks.find(|ask| self.ask_sandbox(ask) == sandbox);
        let last = last.filter(|taken| {
            let followed = taken.followed.zip(asked);
            followed.is_none_or(|(at, asked)| asked.at < at)
        });
        let mut decided = last.clone().filter(|taken| taken.because.is_decided());
        let mut inferred = last.filter(|taken| !taken.because.is_decided());
        let (decided, inferred) = (decided.next(), inferred.next());
        let by_shim = decided.map(|taken| taken.at);
        let by_shim = by_shim.into_iter().chain(self.died_alone(sandbox)).min();
        let recognised = inferred.map(|taken| (taken.at, taken.after));
        let mut asks = self.asks_of_end(sandbox, by_shim, recognised.map(|(at, _)| at));
        // What comes to life for what follows a decided end is no part of it, though it be in the same
        // breath; and what was asked before, and has nothing left to stop, shortens none. One that is asked
        // later tells what its caller gives, as long as it reads RUNNING.
        let counts = |ask: &Ask, at: Time| {
            let mut lives = self.lives.iter();
            let life = lives.find(|life| life.id == ask.id);
            life.is_some_and(|life| {
                let is_of_it = match decided.filter(|taken| taken.at == at) {
                    // But for defers, "whose turn may still come".
                    Some(_) if life.part().is_defer() => life.created <= at,
                    Some(taken) => life.created_after < taken.after,
                    None => life.created <= at,
                };
                let tells = ask.at >= at && life.reads_running(ask.at);
                is_of_it && (life.is_alive(ask.at) || tells)
            })
        };
        if let Some(at) = by_shim {
            asks.retain(|ask| ask.is_kill || counts(ask, at));
        }
        let first = asks.first().map(|ask| ask.at);
        let from = first.into_iter().chain(by_shim).min()?;
        // A deletion that gives more than the pod's own grace period looks like one that gives that.
        let own = secs(self.case.grace);
        let mut deadline = match by_shim {
            Some(at) => at.after(own),
            None => Time::default().after(Duration::MAX),
        };
        // "Or from an Exec with the argv of its exec preStop handler": a caller that begins with that once
        // more, before anything is known of an end, counts from there.
        let known_from = [by_shim, recognised.map(|(at, _)| at)];
        let known_from = known_from.into_iter().flatten().min();
        let is_begun_again = |ask: &Ask| {
            let mut later = asks.iter().filter(|later| later.at > ask.at);
            let is_again = |later: &Ask| {
                let is_before = known_from.is_none_or(|known| later.at <= known);
                later.id == ask.id && later.is_handler && is_before
            };
            ask.is_handler && later.any(|later| is_again(later))
        };
        let mut first_time = deadline;
        // The caller's own are told at once, whatever that means, and shorten nothing.
        let has_ours = asks.iter().any(|ask| self.is_of_ours(ask));
        let telling = asks.iter().filter(|ask| self.is_of_ours(ask) || !has_ours);
        for ask in telling.filter(|ask| !ask.is_kill) {
            let ends = ask.at.after(ask.grace.min(own));
            first_time = first_time.min(ends);
            if !is_begun_again(ask) {
                deadline = deadline.min(ends);
            }
        }
        // One that was asked before, and had not ended when that was taken for the end, is a part of it.
        let (mut was_given_time, mut soonest) = (false, first_time);
        let mut is_entangled = false;
        let began = asks.first().map(|ask| (ask.at, ask.after));
        let decided = decided.map(|taken| (taken.at, taken.after));
        let began = [began, decided, recognised].into_iter().flatten().min();
        let (begun, after) = began.unwrap_or((from, usize::MAX));
        // A request that was heeded alone, and is open still, gave it time as well.
        let log = self.log.asks.iter();
        let before = log.filter(|ask| ask.at <= begun && self.ask_sandbox(ask) == sandbox);
        for ask in before.filter(|ask| self.is_open_of_ours(ask, begun, after)) {
            was_given_time |= ask.grace > LEAST;
        }
        for ask in self.asks_of_living(sandbox).filter(|ask| ask.at <= begun) {
            let life = self.lives.iter().find(|life| life.id == ask.id);
            let is_open = self.is_of_ours(ask) && ask.at.after(ask.grace) > begun;
            if is_open && life.is_some_and(|life| life.read_running(begun, after)) {
                is_entangled = true;
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
        for ask in self.asks_of_living(sandbox).filter(|ask| ask.at > from) {
            soonest = soonest.min(ask.at.after(ask.grace));
        }
        for (at, id) in &self.log.kills {
            let mut of_it = self.log.asks.iter().filter(|ask| ask.id == *id);
            // A request that was heeded alone, and whose time was over before this end began, is no part of it.
            let is_again = self.log.asked_again.contains(id)
                && of_it.any(|ask| ask.end || self.closes(ask) > from);
            let is_in = asks.iter().any(|ask| ask.id == *id) || is_again;
            if is_in && *at >= from {
                deadline = deadline.min(*at);
            }
        }
        let second = asks
            .first()
            .and_then(|first| asks.iter().find(|ask| ask.id != first.id));
        let known = by_shim.unwrap_or_else(|| match second {
            Some(ask) => ask.at,
            None => from.after(WINDOW),
        });
        let is_short = |ask: &&&Ask| ask.is_kill || ask.grace <= LEAST;
        // What is decided is so at once, whatever its caller gives then.
        let was_given_time = was_given_time
            || by_shim.is_some_and(|at| recognised.is_none_or(|(recognised, _)| at <= recognised));
        let forced = !was_given_time
            && !asks.is_empty()
            && asks.iter().filter(is_short).count() == asks.len();
        Some(Ending {
            sandbox,
            from,
            deadline,
            soonest: soonest.min(deadline),
            grace,
            known,
            is_entangled,
            is_vague: asks.iter().any(|ask| ask.is_handler && ask.grace < own)
                || asks
                    .first()
                    .is_some_and(|ask| self.is_like_a_post_start(ask)),
            forced,
        })
    }

    /// Whether it is the request, of what usher orders, that reads RUNNING, and its time is not over.
    fn is_open_of_ours(&self, ask: &Ask, at: Time, after: usize) -> bool {
        let mut lives = self.lives.iter().filter(|life| life.id == ask.id);
        self.is_of_ours(ask)
            && self.closes(ask) > at
            && lives.any(|life| life.read_running(at, after))
    }

    /// Whether what leaves no doubt of an end came so long after its first request that less than that was
    /// left.
    pub fn is_decided_late(&self, ending: &Ending, least: Duration) -> bool {
        self.taken.iter().any(|taken| {
            let is_late = taken.at > ending.from && ending.soonest.since(taken.at) < least;
            taken.sandbox == ending.sandbox && taken.because.is_decided() && is_late
        })
    }

    /// Whether so little time is given with a request of what usher orders, however long before the end began.
    pub fn is_given_less(&self, ending: &Ending, least: Duration) -> bool {
        self.log.asks.iter().any(|ask| {
            let is_of_it = ask.end && !ask.is_kill && self.ask_sandbox(ask) == ending.sandbox;
            is_of_it && ask.grace < least && self.is_of_ours(ask)
        })
    }

    /// When the sandbox died though nobody had asked anything to stop.
    fn died_alone(&self, sandbox: usize) -> Option<Time> {
        let mut asks = self.log.asks.iter();
        let died = self.deaths[sandbox].filter(|died| {
            // Kubelet's own last act is no end.
            self.log.over.is_none_or(|over| *died < over)
                && asks.all(|ask| !ask.end || self.ask_sandbox(ask) != sandbox || ask.at > *died)
        });
        died.filter(|died| self.of(sandbox).any(|life| life.is_alive(*died)))
    }

    /// Since when there is the pod that ended at `end`: where there is no sandbox container, what is
    /// created after an end starts the pod over, if nobody says that nothing is started again.
    pub fn began(&self, sandbox: usize, end: Time) -> Time {
        let taken = self.taken.iter().filter(|taken| taken.sandbox == sandbox);
        let is_anew = self.case.by_hand && self.case.policy != RestartPolicy::Never;
        let followed = taken.filter_map(|taken| taken.followed.filter(|_| is_anew));
        followed.filter(|at| *at <= end).max().unwrap_or_default()
    }

    /// "An Exec without deadline that began within 1 s of Start's answer is taken for it": that alone tells
    /// nothing.
    fn is_like_a_post_start(&self, ask: &Ask) -> bool {
        let life = self.lives.iter().find(|life| life.id == ask.id);
        let answered = life.and_then(|life| life.answered);
        let is_soon = answered.is_some_and(|(at, _)| ask.at <= at.after(secs(1)));
        let mut others = self.log.asks.iter().filter(|other| other.id != ask.id);
        let is_alone = others.all(|other| self.ask_sandbox(other) != self.ask_sandbox(ask));
        ask.is_handler && is_soon && is_alone
    }

    /// It is the request of what usher orders.
    fn is_of_ours(&self, ask: &Ask) -> bool {
        self.case.member(name_of(ask.id)).part.is_ours()
    }

    /// How long after another kubelet's next request comes at most, where it makes them at once.
    pub fn spread(&self) -> Duration {
        ms(self.case.gaps.iter().max().copied().unwrap_or_default())
    }

    /// A guest's request tells nothing.
    pub fn tells(&self, ask: &Ask) -> bool {
        self.case.member(name_of(ask.id)).part != Part::Guest
    }

    fn asks_of_living(&self, sandbox: usize) -> impl Iterator<Item = &Ask> {
        let asks = self.log.asks.iter().filter(|ask| !ask.end);
        asks.filter(move |ask| self.ask_sandbox(ask) == sandbox)
    }

    /// The requests of a sandbox's end, in their order, but for those that were requests of their own:
    /// they had ended, or were heeded, before anything showed that there was an end.
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
        // From the last on: what had ended before one of its own is one of its own as well.
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
                    // With `ctr` one kill after another is the end, and one alone is none.
                    (_, None) => self.case.by_hand || self.heeded_at(ask).is_some(),
                };
        }
        let first = own.iter().position(|is_own| !is_own);
        asks.split_off(first.unwrap_or(asks.len()))
    }

    /// Whether a request was over at `next`, when so much had been seen, or heeded: it is "open … until it has exited or its own
    /// deadline has passed", and a lone one is delivered when nothing can come any more that it may be
    /// kept for.
    fn is_over(&self, ask: &Ask, next: Time, after: usize) -> bool {
        let Some(life) = self.lives.iter().find(|life| life.id == ask.id) else {
            return true;
        };
        let has_ended = life.had_ended(next, after);
        match ask.is_handler {
            true => {
                let over = self.taken_for_post_start(life);
                has_ended || self.deadline(ask) <= next || over.is_some_and(|over| over <= next)
            }
            false if ask.is_kill => has_ended,
            false => has_ended || self.closes(ask) <= next || self.kept_until(ask, life) <= next,
        }
    }

    /// When a request that no other follows is delivered: that of a sidecar or a held defer "if no live app
    /// has a preStop handler that could still be hiding its request", and then as late as it may be.
    /// (Where no app reads RUNNING it is the end.)
    fn heeded_at(&self, ask: &Ask) -> Option<Time> {
        let life = self.lives.iter().find(|life| life.id == ask.id)?;
        let as_post_start = self.taken_for_post_start(life).filter(|_| ask.is_handler);
        if as_post_start.is_some() {
            return as_post_start;
        }
        // One that ends before that proves nothing of an app that lives on.
        let until = self.kept_until(ask, life);
        let until = life.ended().map_or(until, |ended| until.min(ended));
        let is_app = |app: &Life<'_>| app.part() == Part::App && app.id != life.id;
        let mut apps = self.of(life.sandbox).filter(|app| is_app(app));
        let app_reads_running = apps.any(|app| app.reads_running(until));
        (life.part() != Part::App && app_reads_running).then_some(until)
    }

    /// When a preStop handler is over that was taken for the postStart handler: "an Exec without deadline
    /// that began within 1 s of Start's answer and before the next Create is taken for it".
    pub fn taken_for_post_start(&self, life: &Life<'_>) -> Option<Time> {
        let (answered, _) = life.answered?;
        let (_, takes) = life.member.pre_stop?;
        let mut asks = self.log.asks.iter();
        let ask = asks.find(|ask| ask.id == life.id && ask.is_handler)?;
        let is_next = |other: &Life<'_>| other.created > answered && other.created < ask.at;
        let is_taken = ask.at.since(answered) <= secs(1)
            && life.part() == Part::Sidecar
            && life.member.post_start.is_none()
            && !self.lives.iter().any(is_next);
        is_taken.then(|| ask.at.after(ms(takes).min(ask.grace)))
    }

    /// Whether two requests were not made at once: what was asked first ended before the second came,
    /// though later than that could have come with it, or without having been told; or each has a time of
    /// its own. (Kubelet counts whole seconds, and gives two where nothing is left.)
    fn is_alone(&self, first: &Ask, second: &Ask) -> bool {
        let (one, other) = (self.deadline(first), self.deadline(second));
        // A native sidecar is asked when the time of all others is over.
        let at_most = match self.is_of_ours(second) {
            true => LEAST,
            false => LEAST.saturating_add(self.spread()),
        };
        let is_clock = one.max(other).since(one.min(other)) <= at_most;
        let life = self.lives.iter().find(|life| life.id == first.id);
        let ended = life.filter(|life| life.had_ended(second.at, second.after));
        match ended {
            Some(life) => {
                let is_later = second.at.since(first.at) > WINDOW;
                // "A lone request for an app is delivered at once; in a pod that has an ending after the
                // window."
                let at_once = !self.case.has_an_ending();
                self.case.by_hand || is_later || at_once || life.ended_by_itself()
            }
            None => first.is_handler || self.closes(first) <= second.at || !is_clock,
        }
    }

    /// Whether a container is told when its request may be kept no longer, and nothing shows until then that
    /// it is not the only one.
    pub fn is_told_alone(&self, asked: &Life<'_>, told: Time) -> bool {
        let mut asks = self.log.asks.iter();
        let Some(own) = asks.find(|ask| ask.id == asked.id && !ask.is_kill) else {
            return false;
        };
        let shows = |ask: &&Ask| {
            let other = self.lives.iter().find(|life| life.id == ask.id);
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
        // A caller that asks once more may leave it less.
        let asks = self.log.asks.iter();
        let mut own = asks.filter(|ask| ask.id == asked.id && !ask.is_kill && ask.at <= told);
        is_alone && own.any(|ask| self.kept_until(ask, asked) <= told)
    }

    /// Until when a lone request may be kept, since a second one may come.
    pub fn kept_until(&self, ask: &Ask, life: &Life<'_>) -> Time {
        let window = ask.at.after(WINDOW);
        let last = self.deadline(ask).before(LEAST);
        if life.part() == Part::App {
            return window;
        }
        // An init container whose success is withheld reads RUNNING as an app does.
        let apps = self.of(life.sandbox).filter(|app| {
            let is_app = matches!(app.part(), Part::App | Part::Init) && app.id != life.id;
            is_app && app.read_running(ask.at, ask.after)
        });
        let hidden = apps.filter_map(|app| match app.member.pre_stop? {
            (PreStop::Exec, _) => None,
            (PreStop::Sleep, takes) => Some(window.after(ms(takes)).min(last)),
            (PreStop::HttpGet | PreStop::TcpSocket, _) => Some(last),
        });
        hidden.max().unwrap_or(window).max(window)
    }

    pub fn sandboxes(&self) -> std::ops::Range<usize> {
        0..self.log.sandboxes.len()
    }

    /// Whether somebody shortens a time that was given before.
    pub fn is_hurried(&self) -> bool {
        let hurries = |(_, fault): &(u64, Fault)| matches!(fault, Fault::Hurry(_));
        self.case.late.iter().any(hurries)
    }

    /// For how long the answer of a request is withheld at most.
    fn withheld(&self) -> Duration {
        match self.case.grace_policy {
            GracePolicy::Strict => Duration::ZERO,
            GracePolicy::Shared | GracePolicy::Reserve => secs(2),
            GracePolicy::Overrun => secs(8),
            GracePolicy::SkipHooks => secs(4),
        }
    }

    /// What the policy gives beyond the grace period: as long as the answers of requests are withheld.
    pub fn beyond(&self, ending: &Ending) -> Duration {
        match self.case.grace_policy {
            GracePolicy::Strict => Duration::ZERO,
            // SIGKILL tells nothing of a grace period, and a sidecar's comes 2 s after its stop signal.
            _ if ending.forced => secs(2),
            GracePolicy::Reserve if ending.grace < secs(6) => Duration::ZERO,
            _ => self.withheld(),
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

    /// It has SIGKILL then.
    pub fn is_killed_by(&self, at: Time) -> bool {
        let mut signals = self.signals.iter();
        signals.any(|(told, signal)| *signal == Signal::KILL && *told <= at)
    }

    /// Its caller takes it for running.
    pub fn reads_running(&self, at: Time) -> bool {
        self.answered.is_some_and(|(t, is_ok)| is_ok && t <= at)
            && self.reported.is_none_or(|(t, _)| t > at)
    }

    /// Its caller took it for running at that time, when so much had been seen.
    pub fn read_running(&self, at: Time, after: usize) -> bool {
        let was_answered = self.answered.is_some_and(|(t, is_ok)| is_ok && t <= at);
        was_answered && self.reported_after >= after
    }

    /// Whether it had ended when another was asked at that time, after so much had been seen. "The exit is
    /// published when the container is asked to stop": of what was withheld nothing is left at once.
    fn had_ended(&self, at: Time, after: usize) -> bool {
        let is_at_once = |ended: Time| ended == at && self.reported_after < after;
        self.ended()
            .is_some_and(|ended| ended < at || is_at_once(ended))
    }

    /// It ended before anybody sent it a signal.
    pub fn ended_by_itself(&self) -> bool {
        let died = self.died.last().map(|(at, _)| *at);
        died.is_some_and(|died| self.signals.iter().all(|(told, _)| *told > died))
    }

    pub fn part(&self) -> Part {
        self.member.part
    }

    /// When its program ended for good, or for the first time.
    pub fn ended(&self) -> Option<Time> {
        self.reported.map(|(at, _)| at)
    }
}
