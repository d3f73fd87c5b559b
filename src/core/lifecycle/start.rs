//! Starting: what the caller is told while a container waits for its turn.

use std::time::Duration;

use crate::plan::{Role, StartMode};
use crate::process::ExitStatus;

use super::action::{Action, ContainerId, Refusal, Report, RequestId};
use super::container::{Answered, Blocked, Held, Running, Startup, State};
use super::termination::Termination;
use super::time::Time;
use super::{Pod, Timer};

/// In `Auto` a sandbox's callers are kept waiting for no longer than this all told: while kubelet
/// waits, the pod has no IP and a deletion is not acted on.
const AUTO_BLOCKS_FOR: Duration = Duration::from_secs(10);

/// A blocked Start fails this long before its caller gives up, so that the caller sees the reason.
const ANSWER_LEAD: Duration = Duration::from_secs(2);

/// How long a container is held before its stderr says so.
const HOLD_NOTICE: Duration = Duration::from_secs(5);

/// The exit code of a held container whose turn will not come.
pub(super) const NOT_STARTED: u32 = 1;

/// How much of the time that `Auto` may keep callers waiting is gone.
#[derive(Clone, Debug, Default)]
pub(super) struct AutoBudget {
    spent: Duration,
    /// Since when at least one Start is blocked.
    since: Option<Time>,
}

impl AutoBudget {
    /// When the budget is gone if it is used from now on.
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

// === what happened ===

impl Pod {
    /// The caller asks for a container's start and is willing to wait for `patience`. The answer
    /// comes as [`Action::AnswerStart`].
    pub fn handle_start(
        &mut self,
        now: Time,
        id: &ContainerId,
        request: RequestId,
        patience: Option<Duration>,
    ) {
        let decided = self.termination.as_ref().map(Termination::cause);
        let decided = decided.filter(|cause| cause.is_decided()).cloned();
        let refusal = match self.containers.get_mut(id) {
            None => Some(Refusal::NotFound { id: id.clone() }),
            Some(container) => match container.state {
                State::Created => {
                    container.state = State::Blocked(Blocked {
                        request,
                        since: now,
                        deadline: patience.map(|patience| now.after(patience)),
                    });
                    None
                }
                _ => Some(match decided {
                    // Its end came before its Start.
                    Some(because) if container.ends_as.is_some() => Refusal::Terminating {
                        name: container.name.clone(),
                        because,
                    },
                    _ => Refusal::NotCreated {
                        name: container.name.clone(),
                        state: container.state_word(),
                    },
                }),
            },
        };
        if let Some(refusal) = refusal {
            self.answer_start(id, request, Err(refusal));
        }
        self.settle(now);
    }

    /// The caller of a Start has gone away or given up. A container whose Start was not answered
    /// is as it was before: nobody knows of a start that nobody heard of.
    pub fn handle_start_abandoned(&mut self, now: Time, id: &ContainerId, request: RequestId) {
        if let Some(container) = self.containers.get_mut(id)
            && let State::Blocked(blocked) = &container.state
            && blocked.request == request
        {
            container.state = State::Created;
        }
        self.settle(now);
    }

    /// What became of [`Action::Release`]: the program is being executed, or the reason why not.
    pub fn handle_released(&mut self, now: Time, id: &ContainerId, outcome: Result<(), String>) {
        let probe = self.startup_probe(id);
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let State::Releasing { request, exit } = container.state else {
            return;
        };
        let name = container.name.clone();
        match outcome {
            Ok(()) => {
                self.executions = self.executions.saturating_add(1);
                container.place = self.executions;
                container.state = State::Running(Running {
                    since: now,
                    life: self.executions,
                    startup: Startup::begin(probe, now),
                });
                if let Some(request) = request {
                    self.started(now, id, request);
                }
                self.report_if_started(now, id);
            }
            Err(reason) => {
                container.state = State::Created;
                match request {
                    Some(request) => {
                        let refusal = Refusal::NotReleased { name, reason };
                        self.answer_start(id, request, Err(refusal));
                    }
                    // Its Start was answered long ago: all that can be done is to let it fail.
                    None if exit.is_none() => {
                        let message = format!("usher: {name} could not be released: {reason}");
                        let failed = ExitStatus::Code(1);
                        let code = match self.containers.get(id) {
                            Some(defer) if defer.defer_turn().is_some() => {
                                self.code_of_defer(defer, failed, now)
                            }
                            _ => NOT_STARTED,
                        };
                        self.end(id, code, Some(message));
                    }
                    None => {}
                }
            }
        }
        if let Some(exit) = exit {
            self.exited(now, id, exit);
        }
        self.settle(now);
    }
}

// === what follows ===

impl Pod {
    pub(super) fn settle_starts(&mut self, now: Time) {
        for id in self.ids() {
            let Some(container) = self.containers.get(&id) else {
                continue;
            };
            match container.state {
                // It is being killed: its exit will answer what is to be answered.
                _ if container.ends_as.is_some() => {}
                State::Blocked(_) | State::Held(_) if self.may_run(container) => {
                    self.release(&id, now);
                }
                State::Blocked(_) => self.settle_blocked(&id, now),
                State::Held(_) => self.settle_held(&id, now),
                _ => {}
            }
        }
        let blocking = self
            .containers
            .values()
            .any(|container| matches!(container.state, State::Blocked(_)));
        self.auto_budget.update(blocking, now);
    }

    pub(super) fn release(&mut self, id: &ContainerId, now: Time) {
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let (request, since) = match &container.state {
            State::Blocked(blocked) => (Some(blocked.request), blocked.since),
            State::Held(held) => (None, held.since),
            _ => return,
        };
        container.state = State::Releasing {
            request,
            exit: None,
        };
        if container.is_ordered() {
            self.has_released = true;
            let report = Report::Released {
                name: container.name.clone(),
                role: container.role,
                waited: now.since(since),
            };
            self.report(report);
        }
        self.actions.push_back(Action::Release { id: id.clone() });
    }

    fn settle_blocked(&mut self, id: &ContainerId, now: Time) {
        let Some(container) = self.containers.get(id) else {
            return;
        };
        let State::Blocked(blocked) = &container.state else {
            return;
        };
        let (request, since) = (blocked.request, blocked.since);
        let name = container.name.clone();
        if let Some(termination) = &self.termination {
            let because = termination.cause().clone();
            self.unblock(id, State::Created);
            return self.answer_start(id, request, Err(Refusal::Terminating { name, because }));
        }
        let missing = self.missing(container);
        match self.start_mode() {
            StartMode::Block if self.block_ends(blocked) <= now => {
                let waits_for = self.describe(&missing);
                self.unblock(id, State::Created);
                let within = now.since(since);
                self.answer_start(
                    id,
                    request,
                    Err(Refusal::StartTimedOut {
                        name,
                        within,
                        waits_for,
                    }),
                );
            }
            StartMode::Auto
                if self.can_come_by_itself(&missing) && now < self.auto_ends(blocked, now) => {}
            StartMode::Block => {}
            StartMode::Auto | StartMode::Hold => {
                self.unblock(
                    id,
                    State::Held(Held {
                        since: now,
                        told: false,
                    }),
                );
                self.report(Report::Held {
                    name,
                    waits_for: missing,
                });
                self.started(now, id, request);
            }
        }
    }

    /// Answers a Start that succeeds: what follows soon may be its postStart handler.
    pub(super) fn started(&mut self, now: Time, id: &ContainerId, request: RequestId) {
        let creations = self.creations;
        if let Some(container) = self.containers.get_mut(id) {
            container.answered = Some(Answered { at: now, creations });
        }
        self.answer_start(id, request, Ok(()));
    }

    fn start_mode(&self) -> StartMode {
        match &self.plan {
            None => StartMode::Hold,
            Some(plan) => plan.settings().start_mode,
        }
    }

    fn unblock(&mut self, id: &ContainerId, state: State) {
        if let Some(container) = self.containers.get_mut(id) {
            container.state = state;
        }
    }

    /// When a Start in `Block` fails.
    fn block_ends(&self, blocked: &Blocked) -> Time {
        let own = blocked.since.after(self.startup_timeout());
        blocked
            .deadline
            .map_or(own, |deadline| own.min(deadline.before(ANSWER_LEAD)))
    }

    /// When a Start in `Auto` is answered at the latest.
    fn auto_ends(&self, blocked: &Blocked, now: Time) -> Time {
        let budget = self.auto_budget.ends(now);
        match blocked.deadline {
            None => budget,
            Some(deadline) => budget.min(blocked.since.after(half(deadline.since(blocked.since)))),
        }
    }

    fn settle_held(&mut self, id: &ContainerId, now: Time) {
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let State::Held(held) = &mut container.state else {
            return;
        };
        if matches!(container.role, Role::Defer(_)) {
            return;
        }
        let waited = now.since(held.since);
        let tell = !held.told && waited >= HOLD_NOTICE;
        held.told |= tell;
        let name = container.name.clone();
        let Some(container) = self.containers.get(id) else {
            return;
        };
        let waits_for = self.describe(&self.missing(container));
        if waited >= self.startup_timeout() {
            let message = format!(
                "usher: {name} was held for {waited:?} and is ended: it waited for {waits_for}"
            );
            self.end(id, NOT_STARTED, Some(message));
        } else if tell {
            let message = format!("usher: {name} is held: it waits for {waits_for}");
            self.actions.push_back(Action::Tell {
                id: id.clone(),
                message,
                last_words: false,
            });
        }
    }

    pub(super) fn startup_timeout(&self) -> Duration {
        self.plan
            .as_ref()
            .map_or(Duration::MAX, |plan| plan.settings().startup_timeout)
    }

    pub(super) fn answer_start(
        &mut self,
        id: &ContainerId,
        request: RequestId,
        answer: Result<(), Refusal>,
    ) {
        self.actions.push_back(Action::AnswerStart {
            id: id.clone(),
            request,
            answer,
        });
    }

    pub(super) fn start_timers(&self, timers: &mut Vec<(Time, Timer)>) {
        for container in self.containers.values() {
            match &container.state {
                _ if container.ends_as.is_some() => {}
                State::Blocked(blocked) => {
                    let at = match self.start_mode() {
                        StartMode::Block => self.block_ends(blocked),
                        StartMode::Auto => self.auto_ends(blocked, blocked.since),
                        StartMode::Hold => continue,
                    };
                    timers.push((at, Timer::StartWait));
                }
                State::Held(held) if !matches!(container.role, Role::Defer(_)) => {
                    timers.push((held.since.after(self.startup_timeout()), Timer::HoldEnds));
                    if !held.told {
                        timers.push((held.since.after(HOLD_NOTICE), Timer::HoldNotice));
                    }
                }
                _ => {}
            }
        }
    }
}

fn half(time: Duration) -> Duration {
    time.checked_div(2).unwrap_or_default()
}
