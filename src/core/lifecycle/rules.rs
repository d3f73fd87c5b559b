//! The rules of a pod, and how they are followed.
//!
//! A rule looks at the pod, or at one of its containers in its pod, and changes nothing: it says what
//! is to be done now, or when it will have something to say ([`Due`]). So each time limit stands in one
//! place. What is due is done, and all rules are asked again, until nothing is; the earliest of what is
//! not due yet is what the driver has to wake the core for.
//!
//! The order of the rules matters where two are due at once: what a stop request means must be known
//! before a gate is looked at, since a gate that opens after the termination began starts nothing.

use std::time::Duration;

use crate::plan::{Hook, Signal};

use super::Pod;
use super::action::{Cause, ContainerId, HookKind, Refusal, Why};
use super::circles::{Followed, Tally};
use super::container::Container;
use super::grace::Budget;
use super::history::End;
use super::probe::Stretched;
use super::report::Report;
use super::task::Deletion;
use super::termination::{Ends, Termination};
use super::time::Time;

/// What a rule says.
#[derive(Clone, Debug)]
pub(super) enum Due<D> {
    /// This is to be done.
    Now(D),
    /// There will be something to be done then, if nothing happens before. What it is will be decided
    /// then.
    At(Time),
}

/// Something to be done to a pod.
#[derive(Clone, Debug)]
pub(super) enum PodDeed {
    /// It terminates.
    Terminate(Box<Termination>),
    /// Its caller gives less time than was known, or does give some.
    LearnDeadline { deadline: Time, forced: bool },
    /// It is said that the grace period is over.
    NoteGraceOver,
    /// The step of its termination is over.
    NextStep,
    /// Its end is over, and there is something to go on with.
    StartOver { with: String },
    /// What goes on is told that the run is late, and `since` when.
    NoteLateness { since: Time },
    /// The log names what keeps the pod alive, whose run was over at `since`.
    NoteKept { since: Time },
}

/// Something to be done to a container.
#[derive(Clone, Debug)]
pub(super) enum Deed {
    /// It is the sandbox, and is killed: its caller is to start the pod again in another.
    KillSandbox,
    /// Its probe is attempted, which is expected to cost so much CPU time.
    Probe {
        cost: Duration,
        stretched: Option<Stretched>,
    },
    /// It is a defer container, and may go on for so long beyond the grace period, one time more.
    Extend { granted: Duration },
    /// It is a defer container, and goes on for so long beyond the grace period, until it can be asked
    /// whether it may.
    PutOff {
        granted: Duration,
        stretched: Option<Stretched>,
    },
    /// It is a defer container, and is asked by its probe whether it may go on beyond the grace period.
    AskForMore { cost: Duration },
    /// It is a defer container, and gets no more time than it has.
    RefuseMore,
    /// Its Start is answered though its turn has not come.
    Hold { waits_for: Vec<String> },
    /// Its Start fails.
    RefuseStart(Refusal),
    /// Its program is executed.
    Release,
    /// Its stderr is told that it waits for its turn.
    NoteWait { message: String },
    /// Its program is never executed: it reports `code`, and its stderr is told why.
    End { code: u32, words: Option<String> },
    /// It is a defer container, and its turn to run has come.
    RunDefer,
    /// It is a defer container, and is not run.
    SkipDefer { code: u32 },
    /// A hook of it is run, for so long at most.
    RunHook {
        kind: HookKind,
        hook: Hook,
        limit: Duration,
    },
    /// It gets its stop signal, and SIGKILL at `kill_at`.
    Tell {
        signal: Signal,
        all: bool,
        why: Why,
        kill_at: Option<Time>,
    },
    /// It is told that it will be killed soon.
    LastChance { signal: Signal, kill_at: Time },
    /// It will be killed then, and cannot be told: it is being executed.
    Condemn { at: Time },
    /// It is killed, or what is being executed for it.
    Kill,
    /// The first SIGKILL of its caller that is open is seen to: by something else that is done, or by
    /// being passed on. It may be the end of the grace period, or that of all defer containers.
    HeedKill {
        then: Option<Box<Deed>>,
        ends_grace: bool,
        ends_defers: bool,
    },
    /// It is not waited for any more.
    GiveUp,
    /// Its program is executed anew.
    Restart,
    /// Its caller is told of its end, whose process is long gone.
    Dismiss {
        code: u32,
        /// What is to be remembered of it, and what that means to the pod.
        end: Option<Box<(End, Option<Cause>)>>,
    },
    /// It has failed, and is stopped for that.
    Fail {
        signal: Signal,
        why: Why,
        kill_at: Time,
    },
    /// Requests for its stop are answered: those that are due, or all if they wait for nothing.
    Answer { waits: bool },
    /// Kubelet runs no postStart handler in it, or does not stop it for a failed one.
    ForgetPostStart,
    /// Its exit is published.
    PublishExit,
    /// Its runtime state is cleaned up.
    CleanUp,
    /// It is deleted.
    Delete(Deletion),
    /// Its parked process is killed: the caller deletes it.
    KillParked,
}

/// A rule about a pod.
pub(super) type PodRule = fn(&Pod) -> Option<Due<PodDeed>>;

/// A rule about a container.
type Rule = fn(&Subject<'_>) -> Option<Due<Deed>>;

/// What a rule about a container may look at.
#[derive(Clone, Copy)]
pub(super) struct Subject<'a> {
    pub pod: &'a Pod,
    /// What is the same for all containers of the pod.
    pub round: &'a Round,
    pub id: &'a ContainerId,
    pub container: &'a Container,
}

/// What rules about containers ask of their pod, worked out once when they are asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    /// How the steps share their time; none if the pod does not terminate.
    pub budget: Option<Budget>,
    /// When the step ends that is under way; none if it is to be skipped.
    pub ends: Option<Ends>,
    /// There is something to be done when the pod terminates.
    pub has_an_ending: bool,
    /// A decided end waits for listed defer containers that the caller has not created yet.
    pub awaits_defers: bool,
    /// Who is probed next, by the pod's count of creations, and when it wants to be.
    pub next_probe: Option<(Time, u64)>,
}

/// In the order in which they are asked, each with its name. `docs/lifecycle.md` says what they are.
const POD_RULES: [(&str, PodRule); 7] = [
    ("termination begins", Pod::termination_begins),
    ("deadline is learned", Pod::deadline_is_learned),
    ("grace is over", Pod::grace_is_over),
    ("step is over", Pod::step_is_over),
    ("pod starts over", Pod::pod_starts_over),
    ("lateness is said", Pod::lateness_is_said),
    ("kept is said", Pod::kept_is_said),
];

const RULES: [(&str, Rule); 20] = [
    ("sandbox is killed", |subject| subject.sandbox_is_killed()),
    ("probe is due", |subject| subject.probe_is_due()),
    ("defer may go on", |subject| subject.defer_may_go_on()),
    ("kill is heeded", |subject| subject.kill_is_heeded()),
    ("defer is held", |subject| subject.defer_is_held()),
    ("time is short", |subject| subject.time_is_short()),
    ("hook is run", |subject| subject.hook_is_run()),
    ("defer has its turn", |subject| subject.defer_has_its_turn()),
    ("defer is left out", |subject| subject.defer_is_left_out()),
    ("stop has its turn", |subject| subject.stop_has_its_turn()),
    ("lone request is heeded", |subject| {
        subject.lone_request_is_heeded()
    }),
    ("kill is due", |subject| subject.kill_is_due()),
    ("postStart is past", |subject| subject.post_start_is_past()),
    ("start has its turn", |subject| subject.start_has_its_turn()),
    ("state is cleaned up", |subject| {
        subject.state_is_cleaned_up()
    }),
    ("life goes on", |subject| subject.life_goes_on()),
    ("probe has failed", |subject| subject.probe_has_failed()),
    ("answer is due", |subject| subject.answer_is_due()),
    ("exit is published", |subject| subject.exit_is_published()),
    ("deletion goes on", |subject| subject.deletion_goes_on()),
];

/// The names of all rules, in their order.
#[cfg(test)]
pub(super) fn names() -> Vec<&'static str> {
    let pods = POD_RULES.iter().map(|(name, _)| *name);
    pods.chain(RULES.iter().map(|(name, _)| *name)).collect()
}

// === impl Due ===

impl<D> Due<D> {
    /// What is to be done now, if anything is.
    pub fn now(self) -> Option<D> {
        match self {
            Due::Now(deed) => Some(deed),
            Due::At(_) => None,
        }
    }

    /// The one that comes first; this one where both do.
    pub fn or_sooner(self, other: Due<D>) -> Due<D> {
        match (&self, &other) {
            (Due::Now(_), _) => self,
            (Due::At(at), Due::At(then)) if at <= then => self,
            _ => other,
        }
    }
}

// === impl Pod ===

impl Pod {
    /// Does what is due. Every event ends here.
    pub(super) fn settle(&mut self, now: Time) {
        self.now = now;
        let mut tally = Tally::default();
        while let Some(followed) = self.follow_one_rule() {
            if tally.is_too_often(&followed) {
                self.set_aside(followed);
            }
        }
        self.note_blocking();
    }

    /// Does what is due next, and returns by which rule. None if nothing is due.
    fn follow_one_rule(&mut self) -> Option<Followed> {
        if let Some((name, deed)) = self.deed_of_pod() {
            self.do_to_pod(deed);
            return Some((name, None));
        }
        let (name, id, deed) = self.deed_of_one()?;
        self.reach(&id, |hand| hand.carry_out(deed));
        Some((name, Some(id)))
    }

    /// Sets a rule aside that goes round in circles.
    fn set_aside(&mut self, followed: Followed) {
        #[cfg(any(test, feature = "simulator"))]
        assert!(
            !self.faulty_rules.is_empty(),
            "{followed:?} goes round in circles: {self:?}"
        );
        let rule = followed.0;
        let container = followed.1.as_ref().and_then(|id| self.known(id).ok());
        let name = container.map(|container| container.name.clone());
        let pause = self.circles.set_aside(self.now, followed);
        let report = Report::Circle { rule, name, pause };
        self.out.report(report);
    }

    /// What is to be done to the pod next, and by which rule.
    fn deed_of_pod(&self) -> Option<(&'static str, PodDeed)> {
        self.pod_rules().find_map(|(name, rule)| {
            let deed = rule(self)?.now()?;
            let is_aside = self.circles.until(self.now, name, None).is_some();
            (!is_aside).then_some((*name, deed))
        })
    }

    /// What is to be done next to one of the containers, to which, and by which rule: they are asked in the
    /// order in which they were created.
    fn deed_of_one(&self) -> Option<(&'static str, ContainerId, Deed)> {
        let round = self.round();
        let mut subjects: Vec<_> = self.subjects(&round).collect();
        subjects.sort_by_key(|subject| subject.container.number);
        RULES.iter().find_map(|(name, rule)| {
            let mut subjects = subjects.iter();
            subjects.find_map(|subject| {
                let deed = rule(subject)?.now()?;
                let is_aside = self
                    .circles
                    .until(self.now, name, Some(subject.id))
                    .is_some();
                (!is_aside).then(|| (*name, subject.id.clone(), deed))
            })
        })
    }

    fn pod_rules(&self) -> impl Iterator<Item = &(&'static str, PodRule)> {
        let rules = POD_RULES.iter();
        #[cfg(any(test, feature = "simulator"))]
        let rules = rules.chain(self.faulty_rules);
        rules
    }

    fn subjects<'a>(&'a self, round: &'a Round) -> impl Iterator<Item = Subject<'a>> {
        self.containers.iter().map(move |(id, container)| Subject {
            pod: self,
            round,
            id,
            container,
        })
    }

    /// The next timer and the name of the rule that it is for.
    pub fn next_timer(&self) -> Option<(Time, &'static str)> {
        let pods = self.pod_rules().filter_map(|(name, rule)| {
            let due = rule(self)?;
            Some((self.time_of((name, None), &due), *name))
        });
        let round = self.round();
        let containers = self.subjects(&round).flat_map(|subject| {
            let timer = move |(name, rule): &(&'static str, Rule)| {
                let due = rule(&subject)?;
                Some((self.time_of((name, Some(subject.id)), &due), *name))
            };
            RULES.iter().filter_map(timer)
        });
        pods.chain(containers).min_by_key(|(at, _)| *at)
    }

    fn time_of<D>(&self, (rule, id): (&str, Option<&ContainerId>), due: &Due<D>) -> Time {
        let at = match due {
            Due::Now(_) => self.now,
            Due::At(at) => *at,
        };
        let asked_again = self.circles.until(self.now, rule, id);
        asked_again.map_or(at, |again| at.max(again))
    }

    /// What is to be done from `at` on: it is decided no sooner.
    pub(super) fn due<D>(&self, at: Time, deed: impl FnOnce() -> D) -> Due<D> {
        match at <= self.now {
            true => Due::Now(deed()),
            false => Due::At(at),
        }
    }

    pub(super) fn round(&self) -> Round {
        Round {
            budget: self.budget(),
            ends: self.ends(),
            has_an_ending: self.has_an_ending(),
            awaits_defers: self.awaits_defers(),
            next_probe: self.next_to_be_probed(),
        }
    }
}

#[cfg(any(test, feature = "simulator"))]
impl Pod {
    /// Gives the pod a rule that is a bug: it is always due, or always was.
    pub fn break_a_rule(&mut self, is_due: bool) {
        const IN_CIRCLES: &[(&str, PodRule)] = &[("faulty", |pod| {
            let since = pod.now;
            Some(Due::Now(PodDeed::NoteLateness { since }))
        })];
        const IN_THE_PAST: &[(&str, PodRule)] = &[("faulty", |pod| Some(Due::At(pod.now)))];
        self.faulty_rules = match is_due {
            true => IN_CIRCLES,
            false => IN_THE_PAST,
        };
    }
}
