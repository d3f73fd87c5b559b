//! Defer containers: run one after another when the pod terminates.
//!
//! The source is the defer proposal ("Defer Containers", 2017). Defer containers are created and
//! held from the start, so that their images are present and their configuration is proven before
//! they are needed. Each defer container gets its turn once in a sandbox, whatever the cause of the
//! termination. If it fails, its restart policy may run it again within its turn. In a forced
//! termination no defer container runs.

use crate::plan::{DeferExitCode, DeferTurn};
use crate::process::ExitStatus;

use super::Pod;
use super::action::{SignalReason, Step};
use super::container::Container;
use super::grace::MIN_GRACE;
use super::rules::{Decision, Due, Subject};
use super::state::Stop;
use super::termination::{StepDeadlines, Termination};
use super::time::Time;

impl Step {
    /// Returns the step for a turn of defer containers.
    pub(super) const fn of(turn: DeferTurn) -> Step {
        match turn {
            DeferTurn::PreExit => Step::PreExit,
            DeferTurn::PostExit => Step::PostExit,
        }
    }

    /// Returns the turn of the defer containers in this step. `None` for a step without defer
    /// containers.
    pub const fn defer_turn(self) -> Option<DeferTurn> {
        match self {
            Step::PreExit => Some(DeferTurn::PreExit),
            Step::PostExit => Some(DeferTurn::PostExit),
            Step::Hooks | Step::Apps | Step::Sidecars | Step::Over => None,
        }
    }
}

impl Subject<'_> {
    /// Rule: the Start of a defer container is answered at once, whatever the start mode, and the
    /// container is held.
    pub(super) fn defer_is_held(&self) -> Option<Due<Decision>> {
        self.container.defer_turn()?;
        self.container.state.as_blocked()?;
        let waits_for = Vec::new();
        Some(Due::Now(Decision::Hold { waits_for }))
    }

    /// Rule: the defer containers of the current step run one after another. When the time of a
    /// container is over, the container gets its stop signal, then SIGKILL. If SIGKILL does not end
    /// it, the termination no longer waits for it. A defer container may still run from an earlier
    /// termination that the shim had inferred by mistake. This container gets its signals even
    /// outside of its step.
    pub(super) fn defer_is_due(&self) -> Option<Due<Decision>> {
        let pod = self.pod;
        let turn = self.container.defer_turn()?;
        if self.has_no_turn_left(turn) {
            return Some(Due::Now(self.last_chance(pod.now.after(MIN_GRACE))));
        }
        let ends = self
            .pod_facts
            .ends
            .filter(|_| pod.turn_under_way() == Some(turn))?;
        // A defer container may still run from an earlier termination that the shim had inferred by
        // mistake. It gets its signals in time, even if the defer containers before it in the list
        // have not run yet.
        if !self.is_next_defer(turn) && !self.container.state.is_running() {
            return None;
        }
        if self.container.state.is_held() {
            let has_run = pod.history.was_deferred(&self.container.name);
            let may_begin = !has_run && !pod.leaves_defers_out() && pod.now < ends.ask_all;
            return (may_begin && !self.container.is_busy())
                .then_some(Due::Now(Decision::RunDefer));
        }
        let own = pod.own_ends(self.container, ends);
        let late = match self.container.state.stop() {
            // SIGKILL has not ended the container: the termination no longer waits for it.
            Stop::GivenUp { .. } => return None,
            Stop::Killed { .. } => None,
            _ => self.is_late(own.kill),
        };
        let give_up = || pod.due(own.stuck(), || Decision::GiveUp);
        let first = late.unwrap_or_else(give_up);
        Some(match first {
            Due::At(_) if self.can_be_stopped_now() => {
                pod.due(own.ask_all, || self.stop_of_late_defer(own))
            }
            first => first,
        })
    }

    /// The decision that stops a defer container whose time is over: the stop signal, and SIGKILL
    /// two seconds later, or at `own.kill` if that is earlier. A container that does not run ends
    /// without a signal. `own` has the container's own deadlines.
    fn stop_of_late_defer(&self, own: StepDeadlines) -> Decision {
        match self.deliver_stop(SignalReason::TimeShort) {
            Decision::DeliverStop {
                signal, all, why, ..
            } => Decision::DeliverStop {
                signal,
                all,
                why,
                kill_at: Some(own.kill.min(self.pod.now.after(MIN_GRACE))),
            },
            unexecuted => unexecuted,
        }
    }

    /// True if the defer container still runs without a stop signal, although its step is skipped
    /// or past. An earlier termination has started the container. That termination was inferred,
    /// and then turned out to be wrong.
    fn has_no_turn_left(&self, turn: DeferTurn) -> bool {
        let running = self.container.state.as_running();
        let is_undelivered = running.is_some_and(|running| running.stop == Stop::Undelivered);
        let is_skipped = self.pod.termination.as_ref().is_some_and(|termination| {
            let is_its_step = termination.step() == Step::of(turn);
            is_its_step && self.pod_facts.ends.is_none() || termination.step() > Step::of(turn)
        });
        is_undelivered && is_skipped && !self.container.is_of_next_run
    }

    /// Rule: the shim ends a held defer container whose turn will not come. Either a container of
    /// its name has had a turn, or its step is past, or the termination runs no defer containers,
    /// or no time is left. Reports the [code in place of success](Pod::code_in_place_of_success),
    /// or 143 if the setting `defer-exit-code` is `Propagate` and no container of the name has had
    /// a turn.
    pub(super) fn defer_is_skipped(&self) -> Option<Due<Decision>> {
        let (pod, container) = (self.pod, self.container);
        let turn = container
            .defer_turn()
            .filter(|_| container.state.is_held())?;
        if pod.history.was_deferred(&container.name) {
            return Some(Due::Now(Decision::End {
                code: pod.code_in_place_of_success(),
                words: None,
            }));
        }
        let termination = pod
            .termination
            .as_ref()
            .filter(|_| !container.is_of_next_run)?;
        let is_past = termination.step() > Step::of(turn);
        let is_now = termination.step() == Step::of(turn);
        let is_next = self.is_next_defer(turn);
        let has_no_time = self
            .pod_facts
            .ends
            .is_none_or(|ends| is_next && pod.now >= ends.ask_all);
        let is_left_out = is_past || is_now && (pod.leaves_defers_out() || has_no_time);
        is_left_out.then(|| Due::Now(self.deliver_stop(SignalReason::Turn)))
    }
}

impl Subject<'_> {
    fn is_next_defer(&self, turn: DeferTurn) -> bool {
        let next = self.pod.next_defer(turn);
        next.is_some_and(|next| next.number == self.container.number)
    }

    /// True if this defer container runs in its turn, has got no stop signal, and its time is over.
    /// Its time is the grace period plus all time granted so far. The shim may then grant more.
    /// False for a container whose time ends earlier because of its own limit or a restart.
    pub(super) fn is_late_defer(&self) -> bool {
        let turn = self.pod.turn_under_way();
        let is_next = turn.is_some_and(|turn| self.is_next_defer(turn));
        let running = self.container.state.as_running().filter(|_| is_next);
        let (Some(running), Some(ends)) = (running, self.pod_facts.ends) else {
            return false;
        };
        let (now, own) = (self.pod.now, self.pod.own_ends(self.container, ends));
        let is_capped = own.ask_all < ends.ask_all;
        !is_capped && !running.stop.is_delivered() && own.ask_all <= now && now < own.kill
    }
}

impl Pod {
    /// The defer container that runs in this turn, or is the next to run. All others of the turn
    /// wait for it. `None` if none is left. Does not count a container whose Start has not come, or
    /// whose exit the termination no longer waits for.
    fn next_defer(&self, turn: DeferTurn) -> Option<&Container> {
        // A defer container may exit before the driver reports the outcome of its execution. Until
        // that report, the container may still be run again.
        let is_in_time = self.ends().is_some_and(|ends| self.now < ends.stuck());
        let may_run_again = |container: &Container| is_in_time && container.state.has_early_exit();
        let counts = |container: &Container| {
            container.defer_turn() == Some(turn)
                && !container.is_of_next_run
                && (container.state.is_running_for_caller()
                    || container.state.as_blocked().is_some())
                && !container.state.is_ending()
                && (may_run_again(container)
                    || !matches!(container.state.stop(), Stop::GivenUp { .. }))
        };
        let left = self.containers.values().filter(|it| counts(it));
        left.min_by_key(|container| self.place_of_defer(turn, container))
    }

    /// Returns a key that sorts the defer containers of a turn into the order in which they run.
    fn place_of_defer(&self, turn: DeferTurn, container: &Container) -> (Option<usize>, u64) {
        let names = self.plan.as_ref().map(|plan| match turn {
            DeferTurn::PreExit => plan.pre_exit(),
            DeferTurn::PostExit => plan.post_exit(),
        });
        let mut names = names.into_iter().flatten();
        let place = names.position(|name| *name == container.name);
        (place, container.number)
    }

    /// Returns the latest time at which the last defer container of this turn exits. The step of
    /// the turn begins at `began` and has the deadlines `ends`. If `ahead_of` is a container, only
    /// the defer containers that run before it count.
    pub(super) fn latest_end_of_defers(
        &self,
        turn: DeferTurn,
        began: Time,
        ends: StepDeadlines,
        ahead_of: Option<&Container>,
    ) -> Time {
        let running = self
            .running_defer()
            .filter(|it| it.defer_turn() == Some(turn));
        let at = running.map_or(began, |running| {
            let kill = running.state.stop().kill_at();
            kill.unwrap_or_else(|| self.own_ends(running, ends).kill)
        });
        let place = |container: &Container| self.place_of_defer(turn, container);
        let is_ahead = |it: &Container| ahead_of.is_none_or(|other| place(it) < place(other));
        let held = self.containers.values().filter(|it| {
            it.defer_turn() == Some(turn)
                && it.state.is_held()
                && !it.is_of_next_run
                && is_ahead(it)
        });
        held.fold(at, |at, container| {
            let capped = self
                .cap_of(container)
                .map(|cap| at.after(cap).after(MIN_GRACE));
            capped.map_or(ends.kill, |capped| capped.min(ends.kill))
        })
    }

    /// The defer container that runs in its turn.
    pub(super) fn running_defer(&self) -> Option<&Container> {
        let next = self.next_defer(self.turn_under_way()?)?;
        next.state.is_running().then_some(next)
    }

    /// True if this defer container runs in its turn.
    pub(super) fn has_the_turn(&self, container: &Container) -> bool {
        let running = self.running_defer();
        running.is_some_and(|running| running.number == container.number)
    }

    /// The turn of the defer containers that run in the step under way; `None` in other steps.
    fn turn_under_way(&self) -> Option<DeferTurn> {
        self.termination.as_ref()?.step().defer_turn()
    }

    /// True if a defer container of the step under way runs or waits for its turn.
    pub(super) fn is_a_defer_left(&self) -> bool {
        let turn = self.turn_under_way();
        turn.is_some_and(|turn| self.next_defer(turn).is_some())
    }

    /// True if a held defer container belongs to the step under way, even if the step is skipped.
    pub(super) fn is_a_defer_held(&self) -> bool {
        let turn = self.turn_under_way();
        self.containers.values().any(|container| {
            container.state.is_held()
                && !container.is_of_next_run
                && turn.is_some()
                && container.defer_turn() == turn
        })
    }

    /// The deadlines of a defer container in its step: the step's `ends`, or earlier if the
    /// container has a limit of its own or was restarted. Its own limit is for the time from its
    /// first execution to its stop signal, including restarts. A restarted container is stopped
    /// early enough to leave time for the containers that run or stop after it.
    pub(super) fn own_ends(&self, container: &Container, ends: StepDeadlines) -> StepDeadlines {
        let Some(began) = container.turn_began() else {
            return ends;
        };
        let capped = self.cap_of(container).map(|cap| began.after(cap));
        // The shim may have inferred an earlier termination by mistake. A defer container that
        // began in that termination may still run, and has got no signal yet. So it gets SIGKILL at
        // the earliest two seconds after this step began.
        let began = self.termination.as_ref().map(Termination::step_began);
        let kill = |at: Time| at.max(began.unwrap_or_default()).after(MIN_GRACE);
        let kill = capped.map_or(ends.kill, |at| ends.kill.min(kill(at)));
        let retried = container.back_off.was_scheduled_in_termination();
        let again = self.last_retry(container).filter(|_| retried);
        StepDeadlines {
            ask_all: capped
                .into_iter()
                .chain(again)
                .fold(ends.ask_all, Time::min),
            kill,
        }
    }

    /// The latest time at which a failed defer container may still be retried. This is the end of
    /// the grace period, less two seconds for the stop of this container, and two for each later
    /// defer container and each later step. `None` if nothing comes later, because only the step's
    /// deadlines then limit the retries.
    fn last_retry(&self, container: &Container) -> Option<Time> {
        let step = self.step_of(container)?;
        let is_behind = |other: &&Container| {
            let is_later = self.step_of(other) >= Some(step) && other.number != container.number;
            let is_left = other.state.is_alive() && !other.state.is_ending();
            self.is_to_be_stopped(other) && is_later && is_left
        };
        let behind: Vec<_> = self.containers.values().filter(is_behind).collect();
        let defers = behind.iter().filter(|it| it.defer_turn().is_some()).count();
        let steps = [Step::Apps, Step::Sidecars].into_iter();
        let steps = steps.filter(|step| behind.iter().any(|it| self.step_of(it) == Some(*step)));
        let needed = u32::try_from(defers.saturating_add(steps.count())).unwrap_or(u32::MAX);
        let end = self.termination.as_ref()?.deadline();
        let own = needed.saturating_add(1);
        (needed > 0).then(|| end.before(MIN_GRACE.saturating_mul(own)))
    }

    /// True if the shim restarts a defer container that exited with `status`: it has failed in its
    /// step without a stop signal, its own restart policy restarts failures, and time is left.
    /// `stop` is the progress of its stop before the exit. False if the sandbox is gone.
    pub(super) fn is_run_again(
        &self,
        container: &Container,
        status: ExitStatus,
        stop: Stop,
    ) -> bool {
        let Some(turn) = container.defer_turn() else {
            return false;
        };
        let wanted = self.restart_policy(container).restarts_failed() && !self.sandbox_is_gone;
        let is_its_step = self.turn_under_way() == Some(turn);
        let again = self
            .now
            .after(container.back_off.peek_wait_in_termination());
        let ends = self
            .ends()
            .map(|ends| self.own_ends(container, ends).ask_all);
        let ends = ends.map(|end| self.last_retry(container).map_or(end, |last| last.min(end)));
        let has_time = ends.is_some_and(|end| again < end);
        wanted
            && status != ExitStatus::Code(0)
            && is_its_step
            && has_time
            && stop == Stop::Undelivered
    }

    /// The exit code reported for a defer container that exited with `status`, by the setting
    /// `defer-exit-code`: its own code, or the [code in place of
    /// success](Pod::code_in_place_of_success). With the latter, a failed defer container never
    /// makes the caller restart the pod (defer proposal).
    pub(super) fn code_of_defer(&self, status: ExitStatus) -> u32 {
        let policy = self
            .plan
            .as_ref()
            .map(|plan| plan.settings().defer_exit_code);
        match policy {
            Some(DeferExitCode::Mask) => self.code_in_place_of_success(),
            Some(DeferExitCode::Propagate) | None => status.code(),
        }
    }

    /// True if a defer container that the annotations list is not created yet, or its Start is not
    /// answered yet. A termination that the shim has decided then waits for the container, for a
    /// limited time.
    pub(super) fn is_a_defer_missing(&self) -> bool {
        let listed = self
            .plan
            .iter()
            .flat_map(|plan| plan.pre_exit().iter().chain(plan.post_exit()));
        listed.into_iter().any(|name| {
            // Containers left from before a restart of the whole pod do not belong to this run.
            if self.history.of(name).is_none() {
                return true;
            }
            self.current(name).is_some_and(|container| {
                !container.state.is_running_for_caller() && !container.state.is_exited()
            })
        })
    }
}
