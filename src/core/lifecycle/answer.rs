//! Delayed answers to stop requests.
//!
//! Kubelet starts its timer only when the shim has answered a stop request, and sends SIGKILL when
//! the timer reaches the grace period. So a delayed answer leaves more time for containers that are
//! stopped last, and for defer containers that may exceed the grace period.

use std::time::Duration;

use super::Pod;
use super::action::{ContainerId, RequestId};
use super::container::{Container, WithheldAnswer};
use super::effects::ContainerContext;
use super::grace::{Budget, MIN_GRACE};
use super::rules::{Decision, Due, Subject};
use super::termination::Termination;

/// A delayed answer is sent at least this long before its caller would give up.
const ANSWER_LEAD: Duration = Duration::from_secs(10);

/// Maximum number of delayed answers of one container. Further requests are answered at once.
const WITHHELD_AT_MOST: usize = 16;

impl Pod {
    /// Answers a stop request, or delays the answer: the rule `answer_is_due` sends it later. The
    /// caller gives up after `call_timeout`, and the rule sends the answer before that.
    pub(super) fn answer_stop(
        &mut self,
        id: &ContainerId,
        request: RequestId,
        call_timeout: Option<Duration>,
    ) {
        let bound = call_timeout.map(|call_timeout| call_timeout.saturating_sub(ANSWER_LEAD));
        self.on_event(id, Pod::answer_delay, |context, longest| {
            let withheld = bound.map_or(longest, |bound| longest.min(bound));
            context.withhold(request, withheld);
        });
    }

    /// The longest time for which the shim delays its answer to a stop request for the container.
    /// The time depends on the pod's grace policy and on the grace period of the request, and is
    /// longer while a defer container may exceed the grace period. Zero if usher does not order the
    /// pod's containers, or if the grace policy allows no delay.
    fn answer_delay(&self, container: &Container) -> Duration {
        let Some(plan) = self.plan.as_ref().filter(|plan| !plan.is_empty()) else {
            return Duration::ZERO;
        };
        let request = container.request;
        let own = request.map_or(Duration::MAX, |request| {
            request.deadline().since(request.at())
        });
        // After a preStop handler, the stop request carries only the rest of the grace period. The
        // whole period is known from the termination under way, or from the termination that begins
        // with this request.
        let begins = || {
            let (known, end) = self.inferred()?;
            (known <= self.now).then_some(end.grace())
        };
        let under_way = self.termination.as_ref().map(Termination::grace);
        let whole = under_way.or_else(begins);
        let grace = whole.map_or(own, |whole| whole.max(own));
        let budget = Budget::new(plan.settings(), grace);
        match budget.extension.filter(|_| self.is_extension_possible()) {
            Some(extension) => {
                let longest = self.longest_grace().saturating_add(extension);
                longest.saturating_add(MIN_GRACE.saturating_mul(5))
            }
            None => budget.answer_delay(),
        }
    }

    fn longest_grace(&self) -> Duration {
        let graces = self
            .containers
            .values()
            .map(|container| self.annotated_grace(container));
        graces.max().unwrap_or_default()
    }
}

impl ContainerContext<'_> {
    fn withhold(&mut self, request: RequestId, withheld: Duration) {
        let container = &mut self.container;
        if withheld.is_zero() || container.answers.len() >= WITHHELD_AT_MOST {
            return self.out.answer_kill(request);
        }
        if let Some(request) = &mut container.request {
            request.set_answer_delay(withheld);
        }
        let until = self.now.after(withheld);
        container.answers.push(WithheldAnswer { request, until });
    }
}

impl Subject<'_> {
    /// Rule: a delayed answer to a stop request is sent when its delay ends. When delayed answers
    /// have no use any more (`answers_wait`), all delayed answers of the container are sent at
    /// once. `None` if no answer is delayed.
    pub(super) fn answer_is_due(&self) -> Option<Due<Decision>> {
        let answers = self.container.answers.iter();
        let until = answers.map(|answer| answer.until).min()?;
        Some(match self.answers_wait() {
            true => self
                .pod
                .due(until, || Decision::AnswerStops { only_due: true }),
            false => Due::Now(Decision::AnswerStops { only_due: false }),
        })
    }

    /// True while delayed answers have a use. The container must be alive. In addition, either its
    /// stop signal is still to be delivered, or the pod terminates and a defer container may exceed
    /// the grace period.
    fn answers_wait(&self) -> bool {
        let extends = self.pod.is_extension_possible() && self.pod.termination.is_some();
        let stop = self.container.state.stop();
        // A container that is stopped because it failed may be restarted. So its turn to stop may
        // still come.
        let is_delivered = stop.is_delivered() && !stop.is_for_failure();
        self.container.state.is_alive() && (extends || !is_delivered)
    }
}
