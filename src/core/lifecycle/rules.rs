//! The rules of a pod, and their evaluation.
//!
//! A rule only looks at the pod, or at one of its containers. It returns a decision that is due
//! now, or the time at which it may have a decision ([`Due`]). So each time limit is in one place.
//! The core carries out the first decision that is due, and evaluates all rules again, until no
//! decision is due. The driver has to call the core at the earliest time that a rule has returned.
//!
//! The order of the rules matters if two are due at once. The meaning of a stop request must be
//! known before the gates are checked: after a termination has begun, an open gate lets no
//! container start.

use std::time::Duration;

use crate::plan::{Hook, Signal};

use super::Pod;
use super::action::{Cause, ContainerId, HookKind, Refusal, SignalReason};
use super::container::Container;
use super::grace::Budget;
use super::history::End;
use super::probe::Stretched;
use super::report::Report;
use super::suspension::{RuleUse, Tally};
use super::task::Deletion;
use super::termination::{StepDeadlines, Termination};
use super::time::Time;

/// The result of a rule.
#[derive(Clone, Debug)]
pub(super) enum Due<D> {
    /// The decision is due now.
    Now(D),
    /// The rule may have a decision at this time, if no event comes before. The rule is then
    /// evaluated again.
    At(Time),
}

/// A decision about a pod.
#[derive(Clone, Debug)]
pub(super) enum PodDecision {
    /// Begin the termination.
    Terminate(Box<Termination>),
    /// Record what stop requests have shown about the termination: its grace period is shorter than
    /// known before, or the caller leaves time for hooks and defer containers after all.
    LearnDeadline { deadline: Time, forced: bool },
    /// Log that the grace period is over.
    NoteGraceOver,
    /// Begin the next step of the termination.
    NextStep,
    /// Begin the next run after a termination.
    StartOver { with: String },
    /// Write to the log, and to the stderr of the running containers, that the run has been late
    /// since `since`: all known apps are done, but more may come.
    NoteLateness { since: Time },
    /// Log the containers that keep the pod alive, although its run was over at `since`.
    NoteKept { since: Time },
}

/// A decision about a container.
#[derive(Clone, Debug)]
pub(super) enum Decision {
    /// Kill the sandbox, so that its caller starts the pod again in another sandbox.
    KillSandbox,
    /// Attempt the container's probe. `cost` is the CPU time that the attempt is expected to take.
    Probe {
        cost: Duration,
        stretched: Option<Stretched>,
    },
    /// Grant the defer container one more extension. It may now run for `granted` after the end of
    /// the grace period.
    Extend { granted: Duration },
    /// Put off the probe that decides if the defer container gets more time, because no CPU time is
    /// left for the probe. The container may meanwhile run for `granted` after the end of the grace
    /// period.
    PutOff {
        granted: Duration,
        stretched: Option<Stretched>,
    },
    /// Attempt the probe of the defer container to learn if it may go on beyond the grace period.
    AskForMore { cost: Duration },
    /// Grant the defer container no more time.
    RefuseMore,
    /// Answer the container's Start with success before its turn has come. The log names
    /// `waits_for`.
    Hold { waits_for: Vec<String> },
    /// Refuse the container's Start.
    RefuseStart(Refusal),
    /// Execute the container's program.
    Release,
    /// Write to the container's stderr that it waits for its turn.
    NoteWait { message: String },
    /// End the container without executing its program. The exit code is `code`, and the line
    /// `words` is written to the container's stderr.
    End { code: u32, words: Option<String> },
    /// Run the defer container.
    RunDefer,
    /// End the defer container without running it.
    SkipDefer { code: u32 },
    /// Run a hook of the container, bounded by `limit`.
    RunHook {
        kind: HookKind,
        hook: Hook,
        limit: Duration,
    },
    /// Deliver the container's stop signal, and schedule SIGKILL at `kill_at`.
    DeliverStop {
        signal: Signal,
        all: bool,
        why: SignalReason,
        kill_at: Option<Time>,
    },
    /// Deliver the container's stop signal shortly before SIGKILL, even if it was delivered before.
    LastChance { signal: Signal, kill_at: Time },
    /// Schedule SIGKILL for a container that cannot be signaled yet: the shim does not know yet
    /// that its program was executed.
    ScheduleKill { at: Time },
    /// Kill the container, or cancel its restart that is under way.
    Kill,
    /// Handle the caller's first SIGKILL that is not handled yet: carry out `then` instead of the
    /// signal or, if `then` is `None`, pass the signal on. If `ends_grace`, the grace period ends,
    /// too. If `ends_defers`, no other defer container begins.
    HandleKill {
        then: Option<Box<Decision>>,
        ends_grace: bool,
        ends_defers: bool,
    },
    /// Stop waiting for the container's exit.
    GiveUp,
    /// Restart the container's program in place.
    Restart,
    /// Report the exit of a container whose process has exited some time ago.
    ReportHiddenExit {
        code: u32,
        /// The entry for the history, and the reason for the pod's end if this exit ends the pod.
        end: Option<Box<(End, Option<Cause>)>>,
    },
    /// Stop the container because it has failed.
    Fail {
        signal: Signal,
        why: SignalReason,
        kill_at: Time,
    },
    /// Answer the container's stop requests: those that are due, or all if `only_due` is false.
    AnswerStops { only_due: bool },
    /// Stop waiting for a postStart handler, or for the stop of the container after a failed
    /// handler.
    ForgetPostStart,
    /// Publish the container's exit.
    PublishExit,
    /// Clean up the container's runtime state.
    CleanUp,
    /// Delete the container.
    Delete(Deletion),
    /// Kill the init process, which has not executed the program, because the caller deletes the
    /// container.
    KillParked,
    /// Begin the next Update of the container's resources.
    BeginUpdate,
}

pub(super) type PodRule = fn(&Pod) -> Option<Due<PodDecision>>;

type Rule = fn(&Subject<'_>) -> Option<Due<Decision>>;

/// The input of a rule about a container.
#[derive(Clone, Copy)]
pub(super) struct Subject<'a> {
    pub pod: &'a Pod,
    pub pod_facts: &'a PodFacts,
    pub id: &'a ContainerId,
    pub container: &'a Container,
}

/// Facts about the pod that rules about containers need, computed once per evaluation.
#[derive(Clone, Copy, Debug)]
pub(super) struct PodFacts {
    /// The division of the grace period; `None` outside of a termination.
    pub budget: Option<Budget>,
    /// The deadlines of the step under way; `None` if the step is skipped, and outside of a
    /// termination.
    pub ends: Option<StepDeadlines>,
    /// True if a termination of this pod, now or later, has hooks or defer containers to run.
    pub has_an_ending: bool,
    /// The time from which a termination that the shim has decided waits for listed defer
    /// containers, which the caller has not created yet.
    pub defers_awaited_from: Option<Time>,
    /// The time of the next probe, and the creation number of its container.
    pub next_probe: Option<(Time, u64)>,
}

/// The rules in their order, by name. `docs/lifecycle.md` describes them.
const POD_RULES: [(&str, PodRule); 7] = [
    ("termination begins", Pod::termination_begins),
    ("deadline is learned", Pod::deadline_is_learned),
    ("grace is over", Pod::grace_is_over),
    ("step is over", Pod::step_is_over),
    ("pod starts over", Pod::pod_starts_over),
    ("incomplete run is logged", Pod::incomplete_run_is_logged),
    ("kept pod is logged", Pod::kept_pod_is_logged),
];

const RULES: [(&str, Rule); 21] = [
    ("sandbox is killed", |subject| subject.sandbox_is_killed()),
    ("probe is due", |subject| subject.probe_is_due()),
    ("extension is decided", |subject| {
        subject.extension_is_decided()
    }),
    ("SIGKILL is handled", |subject| subject.sigkill_is_handled()),
    ("defer is held", |subject| subject.defer_is_held()),
    ("last chance is given", |subject| {
        subject.last_chance_is_given()
    }),
    ("hook is run", |subject| subject.hook_is_run()),
    ("defer is due", |subject| subject.defer_is_due()),
    ("defer is skipped", |subject| subject.defer_is_skipped()),
    ("stop is due", |subject| subject.stop_is_due()),
    ("single request is delivered", |subject| {
        subject.single_request_is_delivered()
    }),
    ("kill is due", |subject| subject.kill_is_due()),
    ("postStart wait is over", |subject| {
        subject.post_start_wait_is_over()
    }),
    ("start is due", |subject| subject.start_is_due()),
    ("state is cleaned up", |subject| {
        subject.state_is_cleaned_up()
    }),
    ("restart advances", |subject| subject.restart_advances()),
    ("probe has failed", |subject| subject.probe_has_failed()),
    ("update begins", |subject| subject.update_begins()),
    ("answer is due", |subject| subject.answer_is_due()),
    ("exit is published", |subject| subject.exit_is_published()),
    ("deletion advances", |subject| subject.deletion_advances()),
];

#[cfg(test)]
pub(super) fn names() -> Vec<&'static str> {
    let pods = POD_RULES.iter().map(|(name, _)| *name);
    pods.chain(RULES.iter().map(|(name, _)| *name)).collect()
}

impl<D> Due<D> {
    /// Returns the decision if it is due now.
    pub fn now(self) -> Option<D> {
        match self {
            Due::Now(decision) => Some(decision),
            Due::At(_) => None,
        }
    }

    /// Returns the result that is due earlier, or `self` if both are due at the same time.
    pub fn or_sooner(self, other: Due<D>) -> Due<D> {
        match (&self, &other) {
            (Due::Now(_), _) => self,
            (Due::At(at), Due::At(then)) if at <= then => self,
            _ => other,
        }
    }
}

impl Pod {
    /// Evaluates the rules at `now`, and carries out one decision after another until none is due.
    /// The methods that record an event call this at their end.
    pub(super) fn settle(&mut self, now: Time) {
        self.now = now;
        let mut tally = Tally::default();
        while let Some(followed) = self.follow_one_rule() {
            if tally.count(&followed) {
                self.suspend(followed);
            }
        }
        self.note_blocking();
    }

    /// Carries out the next decision that is due. Returns its rule and its container, or `None` if
    /// nothing is due.
    fn follow_one_rule(&mut self) -> Option<RuleUse> {
        if let Some((name, decision)) = self.pod_decision() {
            self.apply_to_pod(decision);
            return Some((name, None));
        }
        let (name, id, decision) = self.container_decision()?;
        self.with_container(&id, |context| context.carry_out(decision));
        Some((name, Some(id)))
    }

    /// Suspends a rule that repeats without effect, for a while and for one container, and logs it.
    /// In tests this is a failure.
    fn suspend(&mut self, followed: RuleUse) {
        #[cfg(any(test, feature = "simulator"))]
        assert!(
            !self.faulty_rules.is_empty(),
            "{followed:?} repeats without effect: {self:?}"
        );
        let rule = followed.0;
        let container = followed.1.as_ref().and_then(|id| self.known(id).ok());
        let name = container.map(|container| container.name.clone());
        let pause = self.suspended_rules.suspend(self.now, followed);
        let report = Report::RuleSuspended { rule, name, pause };
        self.out.report(report);
    }

    /// The first decision about the pod that is due now, with the name of its rule. Suspended rules
    /// do not count.
    fn pod_decision(&self) -> Option<(&'static str, PodDecision)> {
        self.pod_rules().find_map(|(name, rule)| {
            let decision = rule(self)?.now()?;
            let is_suspended = self.suspended_rules.until(self.now, name, None).is_some();
            (!is_suspended).then_some((*name, decision))
        })
    }

    /// The first decision about a container that is due now, with the name of its rule. Each rule
    /// looks at all containers, in the order of their creation, before the next rule. Suspended
    /// rules do not count.
    fn container_decision(&self) -> Option<(&'static str, ContainerId, Decision)> {
        let pod_facts = self.pod_facts();
        let mut subjects: Vec<_> = self.subjects(&pod_facts).collect();
        subjects.sort_by_key(|subject| subject.container.number);
        RULES.iter().find_map(|(name, rule)| {
            let mut subjects = subjects.iter();
            subjects.find_map(|subject| {
                let decision = rule(subject)?.now()?;
                let is_suspended = self
                    .suspended_rules
                    .until(self.now, name, Some(subject.id))
                    .is_some();
                (!is_suspended).then(|| (*name, subject.id.clone(), decision))
            })
        })
    }

    fn pod_rules(&self) -> impl Iterator<Item = &(&'static str, PodRule)> {
        let rules = POD_RULES.iter();
        #[cfg(any(test, feature = "simulator"))]
        let rules = rules.chain(self.faulty_rules);
        rules
    }

    fn subjects<'a>(&'a self, pod_facts: &'a PodFacts) -> impl Iterator<Item = Subject<'a>> {
        self.containers.iter().map(move |(id, container)| Subject {
            pod: self,
            pod_facts,
            id,
            container,
        })
    }

    /// The earliest time at which a rule may have a decision, with the name of this rule. `None` if
    /// no rule has a decision before the next event. While a rule is suspended, it has no decision.
    pub fn next_timer(&self) -> Option<(Time, &'static str)> {
        let pods = self.pod_rules().filter_map(|(name, rule)| {
            let due = rule(self)?;
            Some((self.time_of((name, None), &due), *name))
        });
        let pod_facts = self.pod_facts();
        let containers = self.subjects(&pod_facts).flat_map(|subject| {
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
        let asked_again = self.suspended_rules.until(self.now, rule, id);
        asked_again.map_or(at, |again| at.max(again))
    }

    /// Calls `decision` and returns the result if the time `at` has come. Otherwise returns `at`.
    pub(super) fn due<D>(&self, at: Time, decision: impl FnOnce() -> D) -> Due<D> {
        match at <= self.now {
            true => Due::Now(decision()),
            false => Due::At(at),
        }
    }

    pub(super) fn pod_facts(&self) -> PodFacts {
        PodFacts {
            budget: self.budget(),
            ends: self.ends(),
            has_an_ending: self.has_an_ending(),
            defers_awaited_from: self.defers_awaited_from(),
            next_probe: self.next_to_be_probed(),
        }
    }
}

#[cfg(any(test, feature = "simulator"))]
impl Pod {
    /// Adds a faulty rule to the pod. If `is_due`, the rule always has a decision. Otherwise the
    /// rule always asks to be evaluated again at the current time.
    pub fn break_a_rule(&mut self, is_due: bool) {
        const IN_CIRCLES: &[(&str, PodRule)] = &[("faulty", |pod| {
            let since = pod.now;
            Some(Due::Now(PodDecision::NoteLateness { since }))
        })];
        const IN_THE_PAST: &[(&str, PodRule)] = &[("faulty", |pod| Some(Due::At(pod.now)))];
        self.faulty_rules = match is_due {
            true => IN_CIRCLES,
            false => IN_THE_PAST,
        };
    }
}
