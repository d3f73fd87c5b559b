//! What a person asks of the pod, past its caller: `usher stop` and `usher release`.

use std::time::Duration;

use crate::plan::{ContainerKind, Role, USUAL_GRACE_PERIOD};

use super::action::{Cause, ContainerId, Refusal, Report, Step};
use super::container::{Container, State};
use super::history::History;
use super::stop::STOPPED;
use super::termination::Termination;
use super::time::Time;
use super::{Obstacle, Pod};

impl Pod {
    /// The pod is to terminate: within `grace`, else within its own grace period. Answers with the
    /// containers that are to stop and when the grace period is over; with none if all have stopped.
    ///
    /// Guests are stopped too, and the containers of a pod without orders: nobody else will ask them.
    /// The sandbox is its caller's.
    pub fn handle_stop(
        &mut self,
        now: Time,
        grace: Option<Duration>,
    ) -> Option<(Vec<String>, Time)> {
        let workload = |container: &&Container| {
            container.kind == ContainerKind::Workload && !matches!(container.state, State::Exited)
        };
        let mut alive: Vec<_> = self.containers.values().filter(workload).collect();
        alive.sort_by_key(|container| container.number);
        let own = alive.first().map_or(USUAL_GRACE_PERIOD, |container| {
            self.annotated_grace(container)
        });
        let names: Vec<_> = alive
            .iter()
            .map(|container| container.name.clone())
            .collect();
        if names.is_empty() {
            return None;
        }
        let deadline = now.after(grace.unwrap_or(own));
        match &mut self.termination {
            Some(termination) if termination.step() != Step::Over => {
                // Without a grace period of its own the request changes nothing of the time.
                let deadline = grace.map_or(termination.deadline(), |_| deadline);
                termination.decide(Cause::Stopped, deadline);
            }
            _ => {
                self.report(Report::Terminating {
                    because: Cause::Stopped,
                    grace: deadline.since(now),
                });
                self.termination = Some(Termination::new(Cause::Stopped, now, deadline, now));
            }
        }
        let deadline = self.termination.as_ref().map(Termination::deadline);
        self.settle(now);
        Some((names, deadline.unwrap_or(now)))
    }

    /// A container's program is to be executed though its turn has not come. Answers with what it
    /// waited for.
    ///
    /// # Errors
    ///
    /// If it is not held or its Start does not wait, if the pod terminates, and for a defer container,
    /// whose turn is then.
    pub fn handle_release(
        &mut self,
        now: Time,
        id: &ContainerId,
    ) -> Result<Vec<Obstacle>, Refusal> {
        let Some(container) = self.containers.get(id) else {
            return Err(Refusal::NotFound { id: id.clone() });
        };
        let name = container.name.clone();
        if matches!(container.role, Role::Defer(_)) {
            return Err(Refusal::TurnAtTheEnd { name });
        }
        let waits = matches!(container.state, State::Blocked(_) | State::Held(_));
        if !waits || container.ends_as.is_some() {
            let state = container.state_word();
            return Err(Refusal::NotHeld { name, state });
        }
        if let Some(termination) = &self.termination {
            let because = termination.cause().clone();
            return Err(Refusal::Terminating { name, because });
        }
        let obstacles = self.obstacles(container);
        self.report(Report::Overridden {
            name,
            waited_for: self.missing(container),
        });
        self.release(id, now);
        self.settle(now);
        Ok(obstacles)
    }

    /// Whether the pod terminates because a person wants it to.
    pub(super) fn is_stopped_by_hand(&self) -> bool {
        self.termination
            .as_ref()
            .is_some_and(Termination::is_by_hand)
    }

    /// Whether a termination is for the container, too.
    pub(super) fn is_to_be_stopped(&self, container: &Container) -> bool {
        container.is_ordered()
            || self.is_stopped_by_hand() && container.kind == ContainerKind::Workload
    }

    /// A container has been created in a pod that was stopped by hand meanwhile: it is too late.
    pub(super) fn end_if_stopped(&mut self, id: &ContainerId) {
        let is_workload = |container: &Container| container.kind == ContainerKind::Workload;
        if self.is_stopped_by_hand() && self.containers.get(id).is_some_and(is_workload) {
            self.end(id, STOPPED, None);
        }
    }

    /// The caller creates a container in a pod that was stopped by hand: that is a new beginning, of
    /// which what ended before knows nothing.
    pub(super) fn start_over(&mut self, with: &str) {
        let is_over = |termination: &Termination| termination.step() == Step::Over;
        if self.is_stopped_by_hand() && self.termination.as_ref().is_some_and(is_over) {
            self.termination = None;
            self.history = History::default();
            self.report(Report::StartsOver {
                with: with.to_owned(),
            });
        }
    }
}
