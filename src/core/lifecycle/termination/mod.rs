//! The termination of a pod: steps that share the grace period.
//!
//! The sources are the KEP-753 draft, "shutdown sequence steps", and the defer proposal. A step is
//! over when its hooks have ended and none of its containers is alive. A container that SIGKILL
//! does not end delays the end of its step by about a second. The next step begins at once. The
//! grace policy limits the time of each step (`grace.rs`).
//!
//! ```text
//! Hooks -> PreExit -> Apps -> PostExit -> Sidecars -> Over
//! ```
//!
//! [`Step`] describes the steps. An inferred termination may be wrong: a Create drops it in any
//! step. A decided termination is final: the next run (`run.rs`) begins only after `Over`.

mod after;
mod bounds;
mod steps;
mod turns;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::plan::{ContainerKind, SidecarStopOrder};

use super::Pod;
use super::action::{Cause, ContainerId, Step};
use super::container::Container;
use super::extension::Extension;
use super::grace::{Budget, MIN_GRACE};
use super::time::Time;

/// After SIGKILL, a step waits this long at most for a process that does not end.
const STUCK: Duration = Duration::from_secs(1);

/// The termination of the current run. After its end, the termination stays recorded until the next
/// run begins.
#[derive(Clone, Debug, Hash, Serialize, Deserialize)]
pub(in crate::lifecycle) struct Termination {
    cause: Cause,
    /// Start of the grace period: the first stop request or, if no stop request has caused the
    /// termination, its beginning.
    since: Time,
    /// The end of the grace period.
    deadline: Time,
    /// The length of the grace period according to the stop requests or the annotations. If this
    /// length is too short for the grace policy, another policy applies. An early SIGKILL of the
    /// caller does not change the length.
    grace: Duration,
    /// Time when the shim recognized the termination.
    known: Time,
    /// True if a person requested the termination, possibly after it had begun. Then native init
    /// containers and containers outside the pod's plan are stopped as well.
    by_hand: bool,
    defers: Defers,
    step: Step,
    step_began: Time,
    /// True if the step had time left when it began. False if the step is skipped.
    is_under_way: bool,
    /// Time that each container or hook has used in this step, for the log.
    used: Vec<(String, Duration)>,
    /// Time granted to defer containers beyond the grace period.
    pub extension: Extension,
    /// True if the log already says that the grace period is over.
    is_grace_over: bool,
    /// Time when the grace period was last shortened, or when the shim recognized the termination
    /// after the end of the grace period. Containers get two seconds from this time on, except
    /// under the grace policy `Strict`.
    shortened: Option<Time>,
    /// The shim has killed the sandbox, after the end of the termination.
    is_sandbox_killed: bool,
    /// In the next run the caller creates the whole pod again.
    is_followed_from_the_start: bool,
}

/// The hooks and defer containers that the termination may still begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Defers {
    Run,
    /// The caller leaves no time for hooks and defer containers.
    Forced,
    /// The caller has killed a running defer container. No other defer container begins after that.
    Killed,
}

/// The deadlines of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::lifecycle) struct StepDeadlines {
    /// Time when all remaining containers of the step get their stop signal, even if their turn has
    /// not come. From this time on, no hook or defer container begins.
    pub ask_all: Time,
    /// Time of SIGKILL for containers of the step that are still alive.
    pub kill: Time,
}

impl StepDeadlines {
    /// The time until which the step waits for a process that SIGKILL does not end.
    pub fn stuck(self) -> Time {
        self.kill.after(STUCK)
    }
}

impl Termination {
    pub fn new(cause: Cause, since: Time, deadline: Time, now: Time) -> Termination {
        Termination {
            by_hand: cause == Cause::Stopped,
            cause,
            since,
            deadline,
            grace: deadline.since(since),
            known: now,
            defers: Defers::Run,
            step: Step::Hooks,
            step_began: now,
            is_under_way: false,
            used: Vec::new(),
            extension: Extension::default(),
            is_grace_over: false,
            shortened: (deadline < now).then_some(now),
            is_sandbox_killed: false,
            is_followed_from_the_start: false,
        }
    }

    /// Returns a new termination with the same cause as `self`, which is over. The new termination
    /// is for containers that are still held, for example because their Start came too late.
    fn again(&self, now: Time, grace: Duration) -> Termination {
        Termination {
            is_sandbox_killed: self.is_sandbox_killed,
            is_followed_from_the_start: self.is_followed_from_the_start,
            ..Termination::new(self.cause.clone(), now, now.after(grace), now)
        }
    }

    /// Records `forced`, which is true if the caller leaves no time for hooks and defer containers.
    pub fn forced(mut self, forced: bool) -> Termination {
        self.force(forced);
        self
    }

    fn force(&mut self, forced: bool) {
        self.defers = match (self.defers, forced) {
            (Defers::Killed, _) => Defers::Killed,
            (_, true) => Defers::Forced,
            (_, false) => Defers::Run,
        };
    }

    pub fn step(&self) -> Step {
        self.step
    }

    pub fn is_over(&self) -> bool {
        self.step == Step::Over
    }

    pub fn since(&self) -> Time {
        self.since
    }

    pub fn deadline(&self) -> Time {
        self.deadline
    }

    /// The length of the grace period. If the caller sends SIGKILL early, this length stays the
    /// same.
    pub fn grace(&self) -> Duration {
        self.grace
    }

    pub fn step_began(&self) -> Time {
        self.step_began
    }

    /// Makes the termination certain because of `cause`: the sandbox has died, or a person has run
    /// `usher stop`. If a cause was decided before, that cause stays. If `deadline` is earlier than
    /// the end of the grace period, the grace period ends at `deadline`.
    pub fn decide(&mut self, cause: Cause, deadline: Time, now: Time) {
        self.by_hand |= cause == Cause::Stopped;
        if !self.cause.is_decided() {
            self.cause = cause;
        }
        // This check is needed after an early SIGKILL, which ends the grace period but does not
        // change `grace`. Without the check, `shorten` could reduce `grace` although `deadline`
        // comes after the end of the grace period.
        if deadline < self.deadline {
            self.shorten(deadline, now);
        }
    }

    /// Ends the grace period at `deadline`, unless it ends earlier anyway. Also reduces `grace`,
    /// even if an early SIGKILL has already ended the grace period.
    fn shorten(&mut self, deadline: Time, now: Time) {
        self.grace = self.grace.min(deadline.since(self.since));
        if deadline < self.deadline {
            self.deadline = deadline;
            self.shortened = Some(now);
        }
    }

    /// Ends the grace period now, because the caller has sent SIGKILL to a container.
    pub fn end_grace(&mut self, now: Time) {
        if now < self.deadline {
            self.deadline = now;
            self.shortened = Some(now);
        }
    }

    /// The time of SIGKILL for containers that get their last stop signal at the end of the grace
    /// period. SIGKILL comes two seconds after this end. If the shim learned of the end too late,
    /// SIGKILL comes two seconds after the shim learned of it.
    pub fn last_moment(&self) -> Time {
        let known = self.deadline.max(self.shortened.unwrap_or_default());
        known.after(MIN_GRACE)
    }

    pub fn cause(&self) -> &Cause {
        &self.cause
    }

    pub fn is_by_hand(&self) -> bool {
        self.by_hand
    }

    /// True if the shim has decided the termination. The caller does not know of it, and may start
    /// containers. False after `usher stop`, and if the death of the sandbox has caused the
    /// termination.
    pub fn is_shims(&self) -> bool {
        self.cause.is_decided() && !self.cause.is_left_to_caller() && !self.by_hand
    }

    /// True if the termination was inferred, and if each of its stop requests was a SIGKILL or had
    /// a grace period of at most 2 s.
    pub fn is_inferred_and_forced(&self) -> bool {
        self.cause == Cause::Inferred && self.defers == Defers::Forced
    }

    pub fn is_followed_from_the_start(&self) -> bool {
        self.is_followed_from_the_start
    }

    /// Records that the caller creates the whole pod again in the next run.
    pub fn follow_from_the_start(&mut self) {
        self.is_followed_from_the_start = true;
    }

    /// Records that the caller kills a running defer container: no other defer container begins any
    /// more. Does not send a signal.
    pub fn note_defer_killed(&mut self) {
        self.defers = Defers::Killed;
    }

    fn leaves_hooks_out(&self) -> bool {
        self.defers == Defers::Forced
    }

    /// Notes the time that a container has used in this step, for the log. The time counts from
    /// `began`, or from the start of the grace period if that is later.
    pub fn note_used(&mut self, name: &str, began: Time, now: Time) {
        let time = now.since(began.max(self.since));
        self.used.push((name.to_owned(), time));
    }

    /// Notes the time that a termination hook has used of its step, for the log. Does nothing if
    /// the step of the hooks is over.
    pub fn note_hook(&mut self, name: &str, now: Time) {
        if self.step == Step::Hooks {
            self.note_used(name, self.step_began, now);
        }
    }
}

impl Pod {
    /// The division of the termination's grace period among the steps. `None` without a termination
    /// or without a plan.
    pub(in crate::lifecycle) fn budget(&self) -> Option<Budget> {
        let (termination, plan) = self.termination.as_ref().zip(self.plan.as_ref())?;
        Some(Budget {
            grace: termination.deadline.since(termination.since),
            ..Budget::new(plan.settings(), termination.grace)
        })
    }

    /// The deadlines of the step under way. `None` if the step is skipped, or without a
    /// termination.
    pub(in crate::lifecycle) fn ends(&self) -> Option<StepDeadlines> {
        let termination = self.termination.as_ref()?;
        self.ends_from(termination.step, termination.step_began)
    }

    /// The deadlines of a step that begins at `began`, or `None` if the step is skipped.
    fn ends_from(&self, step: Step, began: Time) -> Option<StepDeadlines> {
        let termination = self.termination.as_ref()?;
        let since = termination.since;
        let budget = self.budget()?;
        let share = budget.share(step, began.since(since));
        let mut ends = match share {
            Some(share) => StepDeadlines {
                ask_all: since.after(share.ask_all),
                kill: since.after(share.kill),
            },
            // The step had time when it began, but the caller gives less time now.
            None if termination.is_under_way && step == termination.step => StepDeadlines {
                ask_all: termination.deadline,
                kill: termination.deadline,
            },
            None => return None,
        };
        // Even if the grace period was shortened, containers that have got no signal yet get two
        // seconds.
        if let Some(shortened) = termination.shortened
            && step != Step::Hooks
            && budget.gives_a_last_chance()
        {
            ends.kill = ends.kill.max(shortened.after(MIN_GRACE));
        }
        match step {
            Step::PreExit | Step::PostExit => Some(self.extended(ends)),
            _ => Some(ends),
        }
    }

    /// True if the caller leaves no time for termination hooks.
    pub(in crate::lifecycle) fn leaves_hooks_out(&self) -> bool {
        self.termination
            .as_ref()
            .is_some_and(Termination::leaves_hooks_out)
    }

    /// True if usher runs no more defer containers in this run of the pod. The caller leaves no
    /// time for them or has killed one of them, or no container that usher orders has executed its
    /// program.
    pub(in crate::lifecycle) fn leaves_defers_out(&self) -> bool {
        let by_caller = self
            .termination
            .as_ref()
            .is_some_and(|termination| termination.defers != Defers::Run);
        by_caller || !self.has_released
    }

    /// The step in which the termination stops a container, or runs it if it is a defer container.
    /// `None` without a termination. Native init containers and containers outside the pod's plan
    /// have a step only after a person has run `usher stop`.
    pub(in crate::lifecycle) fn step_of(&self, container: &Container) -> Option<Step> {
        let policy = container.role_policy();
        let termination = self.termination.as_ref()?;
        match termination.by_hand {
            // If it is too late to stop the container with the apps, it is stopped with the
            // sidecars.
            true if policy.defer_turn().is_none() => {
                let own = policy.step.unwrap_or(policy.step_by_hand);
                Some(own.max(termination.step.min(Step::Sidecars)))
            }
            _ => policy.step,
        }
    }

    /// True if a termination applies to the container. It applies to the containers of this run
    /// that usher orders or, after `usher stop`, to all containers but the sandbox. A termination
    /// decided by the shim does not apply to a container whose Start is unanswered, because the
    /// caller would see this Start fail. Does not check that a termination is under way.
    pub(in crate::lifecycle) fn is_to_be_stopped(&self, container: &Container) -> bool {
        let termination = self.termination.as_ref();
        let by_hand = termination.is_some_and(Termination::is_by_hand);
        let is_shims = termination.is_some_and(Termination::is_shims);
        container.kind == ContainerKind::Workload
            && !container.is_of_next_run
            && (container.is_ordered() || by_hand)
            && !(is_shims && container.state.is_yet_to_be_started())
    }

    /// True if a container is still held when a termination is over that the shim has decided. For
    /// example, its Start came too late. Ignores defer containers that have had their turn.
    fn has_a_latecomer(&self) -> bool {
        self.containers.values().any(|container| {
            let was_deferred = || self.history.was_deferred(&container.name);
            container.state.is_held()
                && self.is_to_be_stopped(container)
                && self.step_of(container).is_some()
                && !(container.defer_turn().is_some() && was_deferred())
        })
    }

    /// The living containers that belong to the step under way.
    fn members(&self) -> impl Iterator<Item = (&ContainerId, &Container)> {
        let step = self.termination.as_ref().map(Termination::step);
        self.containers.iter().filter(move |(_, container)| {
            self.is_to_be_stopped(container)
                && container.state.is_alive()
                && self.step_of(container) == step
        })
    }

    fn is_parallel(&self) -> bool {
        let settings = self.plan.as_ref().map(|plan| plan.settings());
        settings.is_some_and(|settings| settings.sidecar_stop_order == SidecarStopOrder::Parallel)
    }

    /// The place in the start order of the sidecar that is being stopped, or is to be stopped next.
    /// Sidecars stop in the reverse start order, so it is the highest place of a living sidecar
    /// whose program was executed. `None` if no such sidecar is left.
    fn next_sidecar_to_stop(&self) -> Option<u64> {
        let sidecars = self.containers.values().filter(|container| {
            self.is_to_be_stopped(container)
                && container.state.is_alive()
                // A container that never ran does not delay others.
                && !container.state.is_unexecuted()
                && self.step_of(container) == Some(Step::Sidecars)
        });
        sidecars.map(place).max()
    }

    /// True if the sidecar's turn to stop has come. Also true for an exited sidecar whose turn
    /// would have come by now. The shim does not restart such a sidecar in place.
    pub(in crate::lifecycle) fn turn_has_come(&self, sidecar: &Container) -> bool {
        let is_time = self
            .termination
            .as_ref()
            .is_some_and(|termination| termination.step >= Step::Sidecars);
        let is_last = self
            .next_sidecar_to_stop()
            .is_none_or(|last| last <= place(sidecar));
        is_time && (self.is_parallel() || is_last)
    }

    fn is_a_hook_left(&self) -> bool {
        self.containers.values().any(|container| {
            let runs = container.state.has_process() && container.is_hooked();
            runs || self.termination_hook(container).is_some()
        })
    }
}

/// The place of a sidecar in the order of starts. A sidecar whose program is just being executed
/// comes last in this order, and so stops first.
fn place(sidecar: &Container) -> u64 {
    match sidecar.state.is_releasing() {
        true => u64::MAX,
        false => sidecar.place,
    }
}
