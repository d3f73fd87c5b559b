//! Starts of containers. Until a container's turn comes, its Start is blocked, or is answered while
//! the container stays held.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::plan::StartMode;
use crate::process::ExitStatus;

use super::Pod;
use super::action::{ActionError, Cause, ContainerId, Refusal, RequestId};
use super::container::Container;
use super::effects::ContainerContext;
use super::remedy::LOGGED_AFTER;
use super::rules::{Decision, Due, Subject};
use super::state::{Blocked, Held};
use super::stop::{KILLED, STOPPED};
use super::termination::Termination;
use super::time::Time;

/// Longest total time for which Starts of one pod stay unanswered in the start mode `Auto`. While
/// kubelet waits, the pod has no IP address, and kubelet does not act on a deletion.
const AUTO_BLOCKS_FOR: Duration = Duration::from_secs(10);

/// In the start mode `Block`, a blocked Start fails this long before its caller gives up, so that
/// the caller sees the reason.
const ANSWER_LEAD: Duration = Duration::from_secs(2);

/// The exit code of a held container whose turn did not come in time or will never come, or whose
/// program could not be executed.
pub(super) const NOT_STARTED: u32 = 1;

/// The time for which the start mode `Auto` may block callers.
#[derive(Clone, Debug, Default, Hash, Serialize, Deserialize)]
pub(super) struct AutoBudget {
    spent: Duration,
    /// The time since which at least one Start is blocked.
    since: Option<Time>,
}

impl AutoBudget {
    /// The time when the budget is used up, if a Start stays blocked until then. If Starts are
    /// blocked already, the rest of the budget counts from the first of them; otherwise from `now`.
    fn ends(&self, now: Time) -> Time {
        self.since
            .unwrap_or(now)
            .after(AUTO_BLOCKS_FOR.saturating_sub(self.spent))
    }

    fn update(&mut self, blocking: bool, now: Time) {
        match (self.since, blocking) {
            (None, true) => self.since = Some(now),
            (Some(since), false) => {
                self.spent = self.spent.saturating_add(now.since(since));
                self.since = None;
            }
            _ => {}
        }
    }
}

impl Pod {
    /// Handles a Start. Its caller gives up after `call_timeout`, or never if this is `None`. The
    /// answer comes as [`Action::AnswerStart`](super::Action::AnswerStart), now or later. If the
    /// container's turn does not come in time, the answer comes before the caller gives up. The
    /// start mode decides if this answer is a refusal, or a success after which the container is
    /// held (rule `start_is_due`).
    pub fn handle_start(
        &mut self,
        now: Time,
        id: &ContainerId,
        request: RequestId,
        call_timeout: Option<Duration>,
    ) {
        self.now = now;
        let blocked = Blocked {
            request,
            since: now,
            deadline: call_timeout.map(|call_timeout| now.after(call_timeout)),
            is_wait_noted: false,
        };
        let started = self.on_call(id, Pod::check_is_created, |context, ()| {
            let outcome = context.container.state.start(blocked);
            context.ok_or_log(outcome);
        });
        if started.is_err() {
            self.out.answer_start(id, request, started);
        }
        self.settle(now);
    }

    /// Refuses a Start if the container's state is not Created: the container is still being
    /// created, was started before, or has ended. The start order does not matter here.
    fn check_is_created(&self, container: &Container) -> Result<(), Refusal> {
        let (name, state) = (container.name.clone(), &container.state);
        let has_ended = state.is_ending() || state.is_exited();
        let decided = self.termination.as_ref().map(Termination::cause);
        match decided.filter(|cause| has_ended && cause.is_decided()) {
            _ if state.is_created() => Ok(()),
            // The container was ended before its Start.
            Some(because) => Err(Refusal::Terminating {
                name,
                because: because.clone(),
            }),
            None => Err(Refusal::NotCreated {
                name,
                state: state.summary(),
            }),
        }
    }

    /// Handles a caller that has given up on its Start. A blocked container goes back to Created,
    /// and no answer follows. If its program is being executed already, the execution goes on. Does
    /// nothing if the Start was answered.
    pub fn handle_start_abandoned(&mut self, now: Time, id: &ContainerId, request: RequestId) {
        self.now = now;
        self.with_container(id, |context| {
            if context.container.state.open_start() != Some(request) {
                return;
            }
            match context.container.state.as_blocked() {
                Some(_) => {
                    let outcome = context.container.state.take_back_start();
                    context.ok_or_log(outcome);
                }
                // The program is being executed, or the init process is being killed before that.
                // Both go on, although the caller no longer waits for the answer.
                None => context.container.is_given_up = true,
            }
        });
        self.settle(now);
    }

    /// Records the outcome of [`Action::Release`](super::Action::Release). A Start that is still
    /// open is answered with this outcome.
    pub fn handle_released(
        &mut self,
        now: Time,
        id: &ContainerId,
        outcome: Result<(), ActionError>,
    ) {
        self.now = now;
        let exit = self.on_event(
            id,
            Pod::code_if_not_released,
            |context, code| match outcome {
                Ok(()) => context.complete_release(),
                Err(reason) => context.fail_release(code, reason),
            },
        );
        self.handle_exit(id, exit.flatten());
        self.settle(now);
    }

    /// The exit code to report for a container whose program could not be executed after its Start
    /// was answered.
    fn code_if_not_released(&self, container: &Container) -> u32 {
        match container.defer_turn() {
            Some(_) => self.code_of_defer(ExitStatus::Code(1)),
            // SIGKILL may make the release fail before the exit of the process is reported.
            None if container.state.stop().is_killed() => KILLED,
            None => NOT_STARTED,
        }
    }
}

impl ContainerContext<'_> {
    /// Records that the program was executed, and answers an open Start with success. Returns the
    /// exit status if the process has exited already.
    fn complete_release(&mut self) -> Option<ExitStatus> {
        let (execution, watch) = (self.count_execution(), self.first_probe());
        let post_start = self.possible_post_start();
        let container = &mut self.container;
        let outcome = container
            .state
            .complete_release(self.now, execution, watch, post_start);
        let releasing = self.ok_or_log(outcome)?;
        self.container.place = execution;
        let (name, number) = (&self.container.name, self.container.number);
        self.history.record_run(name, number);
        if let Some(request) = releasing.open_start() {
            self.out.answer_start(self.id, request, Ok(()));
        }
        self.note_if_started();
        releasing.exit
    }

    /// Handles a failed release: the program could not be executed. Refuses an open Start. After an
    /// answered Start, ends the container with exit code `code`, unless its process has exited
    /// already. Returns that earlier exit.
    fn fail_release(&mut self, code: u32, reason: ActionError) -> Option<ExitStatus> {
        let was_killed = self.container.state.stop().is_killed();
        let outcome = self.container.state.take_back_release(self.now);
        let releasing = self.ok_or_log(outcome)?;
        let name = self.container.name.clone();
        match (releasing.open_start(), releasing.exit) {
            (Some(request), _) => {
                let refusal = Refusal::NotReleased { name, reason };
                self.out.answer_start(self.id, request, Err(refusal));
            }
            // The Start was answered with success before the execution, so only the container's
            // exit can report the failure.
            (None, None) => {
                let message = format!("usher: {name}'s program could not be executed: {reason}");
                self.end(code, (!was_killed).then_some(message));
            }
            (None, Some(_)) => {}
        }
        releasing.exit
    }
}

impl Subject<'_> {
    /// Rule: the program of a container whose turn has come is executed. Until then its Start waits
    /// unanswered, or is answered early and the container is held; the start mode decides. Each
    /// wait has a bound. At the bound an unanswered Start is refused, or in mode `Auto` answered
    /// early. At its own bound a held container is ended without being executed, unless it is a
    /// defer container. In a termination, a Start that waits is refused or answered at once, unless
    /// the container belongs to the next run.
    pub(super) fn start_is_due(&self) -> Option<Due<Decision>> {
        let (pod, container) = (self.pod, self.container);
        let state = &container.state;
        // The sandbox is gone: the next run, in which this container would start, never begins.
        if container.is_of_next_run && pod.sandbox_is_gone && state.is_parked() {
            return Some(Due::Now(Decision::End {
                code: STOPPED,
                words: None,
            }));
        }
        if container.is_busy() {
            return None;
        }
        let waits = state.as_blocked().is_some() || state.is_held();
        if waits && self.may_run() {
            return Some(Due::Now(Decision::Release));
        }
        match (state.as_blocked(), state.as_held()) {
            (Some(blocked), _) => self.start_waits(blocked),
            (_, Some(held)) if container.defer_turn().is_none() => Some(self.hold_lasts(held)),
            _ => None,
        }
    }

    fn start_waits(&self, blocked: &Blocked) -> Option<Due<Decision>> {
        let (pod, container) = (self.pod, self.container);
        let name = || container.name.clone();
        let missing = pod.awaited_names(container);
        let waits_in_vain = || {
            pod.waits_in_vain_from(&missing)
                .is_some_and(|vain| vain <= pod.now)
        };
        if let Some(termination) = pod
            .termination
            .as_ref()
            .filter(|_| !container.is_of_next_run)
        {
            let because = termination.cause().clone();
            // The caller does not know of this termination. So the Start succeeds, and then the
            // caller sees that a running container is stopped.
            if because == Cause::Completed || termination.is_shims() && !waits_in_vain() {
                let waits_for = Vec::new();
                return Some(Due::Now(Decision::Hold { waits_for }));
            }
            let refusal = Refusal::Terminating {
                name: name(),
                because,
            };
            return Some(Due::Now(Decision::RefuseStart(refusal)));
        }
        let waits_for = || pod.waits_for(container, &missing);
        // Kubelet creates the awaited defer containers only after this Start is answered.
        if self.awaits_defers() {
            let refusal = || Refusal::NeverComes {
                name: name(),
                waits_for: waits_for(),
            };
            return Some(Due::Now(match waits_in_vain() {
                true => Decision::RefuseStart(refusal()),
                false => Decision::Hold {
                    waits_for: missing.clone(),
                },
            }));
        }
        let (ends, then) = match pod.start_mode() {
            StartMode::Block => {
                let at = pod.start_refused_at(blocked, &missing);
                let refusal = || match waits_in_vain() {
                    true => Refusal::NeverComes {
                        name: name(),
                        waits_for: waits_for(),
                    },
                    false => Refusal::StartTimedOut {
                        name: name(),
                        within: pod.now.since(blocked.since),
                        waits_for: waits_for(),
                    },
                };
                (at, pod.due(at, || Decision::RefuseStart(refusal())))
            }
            // While kubelet waits for an answer, it does not act on the pod's deletion.
            StartMode::Auto if !container.is_of_next_run && pod.can_come_by_itself(&missing) => {
                let at = pod.start_answered_by(blocked);
                let waits_for = missing.clone();
                (at, pod.due(at, || Decision::Hold { waits_for }))
            }
            StartMode::Auto | StartMode::Hold => {
                return Some(Due::Now(Decision::Hold { waits_for: missing }));
            }
        };
        let said = self.wait_is_said(
            blocked.since,
            blocked.is_wait_noted,
            ends,
            "has not been started",
        );
        let defers_awaited = self.pod_facts.defers_awaited_from.map(Due::At);
        let others = [said, defers_awaited].into_iter().flatten();
        Some(others.fold(then, |then, other| other.or_sooner(then)))
    }

    fn hold_lasts(&self, held: &Held) -> Due<Decision> {
        let (pod, container) = (self.pod, self.container);
        let missing = pod.awaited_names(container);
        let waited = pod.now.since(held.since);
        let end = || {
            let (name, waits_for) = (&container.name, pod.waits_for(container, &missing));
            let message = format!(
                "usher: {name} was held for {waited:?} and is ended: it waited for {waits_for}"
            );
            Decision::End {
                code: NOT_STARTED,
                words: Some(message),
            }
        };
        let ends = pod.hold_ended_at(held, &missing);
        let said = self.wait_is_said(held.since, held.is_wait_noted, ends, "has been held");
        said.unwrap_or_else(|| pod.due(ends, end))
    }

    /// The decision to write a message about the container's wait to its stderr, or the time at
    /// which the message is due. The wait begins at `since` and ends at `ends`. `None` if the
    /// message was written before, or if the wait ends first. `how` is the verb of the message.
    fn wait_is_said(
        &self,
        since: Time,
        is_wait_noted: bool,
        ends: Time,
        how: &str,
    ) -> Option<Due<Decision>> {
        let (pod, container) = (self.pod, self.container);
        let at = since.after(LOGGED_AFTER);
        let message = || {
            let (name, waited) = (&container.name, pod.now.since(since));
            let waits_for = pod.waits_for(container, &pod.awaited_names(container));
            format!("usher: {name} {how} for {waited:?}: it waits for {waits_for}")
        };
        (!is_wait_noted && at < ends)
            .then(|| pod.due(at, || Decision::NoteWait { message: message() }))
    }
}

impl Pod {
    /// Records whether any Start is blocked now. The budget of the start mode `Auto` counts the
    /// time of blocked Starts. Called after the rules were evaluated.
    pub(super) fn note_blocking(&mut self) {
        let mut containers = self.containers.values();
        let blocking = containers.any(|container| container.state.as_blocked().is_some());
        self.auto_budget.update(blocking, self.now);
    }

    pub(super) fn start_mode(&self) -> StartMode {
        match &self.plan {
            None => StartMode::Hold,
            Some(plan) => plan.settings().start_mode,
        }
    }

    /// The time at which a Start that waits for the containers `missing` is refused in start mode
    /// `Block`: after `startup-timeout`, shortly before its caller gives up, or when a missing
    /// container has failed for good.
    pub(super) fn start_refused_at(&self, blocked: &Blocked, missing: &[String]) -> Time {
        let own = blocked.since.after(self.startup_timeout());
        let callers = blocked
            .deadline
            .map(|deadline| deadline.before(ANSWER_LEAD));
        let bounds = [callers, self.waits_in_vain_from(missing)];
        bounds.into_iter().flatten().fold(own, Time::min)
    }

    /// The time when a held container that waits for `missing` is ended: after `startup-timeout`,
    /// or when a missing container has failed for good.
    pub(super) fn hold_ended_at(&self, held: &Held, missing: &[String]) -> Time {
        let own = held.since.after(self.startup_timeout());
        let vain = self.waits_in_vain_from(missing);
        vain.map_or(own, |vain| own.min(vain))
    }

    /// The latest time of the answer to a Start in start mode `Auto`: the budget is used up, or
    /// half of the call's timeout is over.
    pub(super) fn start_answered_by(&self, blocked: &Blocked) -> Time {
        let budget = self.auto_budget.ends(self.now);
        match blocked.deadline {
            None => budget,
            Some(deadline) => budget.min(blocked.since.after(half(deadline.since(blocked.since)))),
        }
    }

    pub(super) fn startup_timeout(&self) -> Duration {
        self.plan
            .as_ref()
            .map_or(Duration::MAX, |plan| plan.settings().startup_timeout)
    }
}

fn half(time: Duration) -> Duration {
    time.checked_div(2).unwrap_or_default()
}
