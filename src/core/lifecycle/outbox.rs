//! The queue of actions for the driver.

use std::collections::VecDeque;

use super::action::{Action, ContainerId, Refusal, RequestId};
use super::report::Report;

#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Outbox {
    actions: VecDeque<Action>,
}

impl Outbox {
    pub fn push(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    pub fn pop(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Action> {
        self.actions.iter()
    }

    pub fn report(&mut self, report: Report) {
        self.push(Action::Report(report));
    }

    pub fn answer_start(
        &mut self,
        id: &ContainerId,
        request: RequestId,
        answer: Result<(), Refusal>,
    ) {
        self.push(Action::AnswerStart {
            id: id.clone(),
            request,
            answer,
        });
    }

    /// Answers a Kill with success. If the caller's signal is passed on, the driver answers the
    /// Kill after the delivery, without this action.
    pub fn answer_kill(&mut self, request: RequestId) {
        self.push(Action::AnswerKill {
            request,
            answer: Ok(()),
        });
    }

    pub fn end_output(&mut self, id: &ContainerId, code: u32) {
        self.push(Action::EndOutput {
            id: id.clone(),
            code,
        });
    }

    /// Writes a line to the container's stderr.
    pub fn write_message(&mut self, id: &ContainerId, message: String, last_words: bool) {
        self.push(Action::WriteMessage {
            id: id.clone(),
            message,
            last_words,
        });
    }
}
