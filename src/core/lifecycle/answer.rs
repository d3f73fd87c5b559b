//! Answers of stop requests that wait.
//!
//! Kubelet kills what it asked for when the grace period is over, and its timer starts at the
//! answer. So the policies that may take longer, and defer containers that may go on beyond the
//! end, get their time by an answer that comes later.

use std::time::Duration;

use super::action::{Action, ContainerId, RequestId};
use super::container::{Container, WithheldAnswer};
use super::grace::{Budget, LEAST};
use super::time::Time;
use super::{Pod, Timer};

/// An answer comes this long before its caller gives up.
const ANSWER_LEAD: Duration = Duration::from_secs(10);

/// How many requests of one container wait for their answers; a caller that asks more often is told
/// at once.
const WITHHELD_AT_MOST: usize = 16;

impl Pod {
    /// A stop request of the container is to be answered, as soon as it may.
    pub(super) fn answer_stop(
        &mut self,
        now: Time,
        id: &ContainerId,
        request: RequestId,
        patience: Option<Duration>,
    ) {
        let withheld = self.withholds().map_or(Duration::ZERO, |longest| {
            let bound = patience.map(|patience| patience.saturating_sub(ANSWER_LEAD));
            bound.map_or(longest, |bound| longest.min(bound))
        });
        match self.containers.get_mut(id) {
            Some(container)
                if !withheld.is_zero() && container.answers.len() < WITHHELD_AT_MOST =>
            {
                let until = now.after(withheld);
                container.answers.push(WithheldAnswer { request, until });
            }
            _ => self.answer_kill(request),
        }
    }

    pub(super) fn answer_kill(&mut self, request: RequestId) {
        self.actions.push_back(Action::AnswerKill {
            request,
            answer: Ok(()),
        });
    }

    /// The longest that an answer may wait in this pod; none if it may not.
    fn withholds(&self) -> Option<Duration> {
        let plan = self.plan.as_ref().filter(|plan| !plan.is_empty())?;
        let budget = Budget::new(plan.settings(), Duration::MAX);
        let by_policy = budget.withholds();
        match budget.extension.filter(|_| self.is_extension_pending()) {
            Some(extension) => {
                let longest = self.longest_grace().saturating_add(extension);
                Some(longest.saturating_add(LEAST.saturating_mul(5)))
            }
            None => (!by_policy.is_zero()).then_some(by_policy),
        }
    }

    fn longest_grace(&self) -> Duration {
        let graces = self
            .containers
            .values()
            .map(|container| self.annotated_grace(container));
        graces.max().unwrap_or_default()
    }

    /// Whether the answer of a container that lives is still to wait.
    fn is_to_wait(&self, container: &Container) -> bool {
        if !container.is_alive() {
            return false;
        }
        let extends = self.is_extension_pending() && self.termination.is_some();
        extends || !container.stopping.signalled
    }

    pub(super) fn settle_answers(&mut self, now: Time) {
        for id in self.ids() {
            let Some(container) = self.containers.get(&id) else {
                continue;
            };
            let waits = self.is_to_wait(container);
            let Some(container) = self.containers.get_mut(&id) else {
                continue;
            };
            let (kept, due): (Vec<_>, Vec<_>) = std::mem::take(&mut container.answers)
                .into_iter()
                .partition(|answer| waits && now < answer.until);
            container.answers = kept;
            due.iter()
                .for_each(|answer| self.answer_kill(answer.request));
        }
    }

    /// The container is going: nobody who asked for it waits any longer.
    pub(super) fn answer_withheld(&mut self, id: &ContainerId) {
        let answers = self
            .containers
            .get_mut(id)
            .map(|container| std::mem::take(&mut container.answers));
        for answer in answers.unwrap_or_default() {
            self.answer_kill(answer.request);
        }
    }

    pub(super) fn answer_timers(&self, timers: &mut Vec<(Time, Timer)>) {
        let answers = self
            .containers
            .values()
            .flat_map(|container| &container.answers);
        timers.extend(answers.map(|answer| (answer.until, Timer::Answer)));
    }
}
