//! Requests of a person: `usher stop` and `usher release`.

use std::time::Duration;

use crate::plan::{ContainerKind, USUAL_GRACE_PERIOD};

use super::action::{Cause, ContainerId, Refusal};
use super::container::Container;
use super::report::Report;
use super::termination::Termination;
use super::time::Time;
use super::{Obstacle, Pod};

impl Pod {
    /// Begins the pod's termination for `usher stop`, within `grace` or else within the pod's own
    /// grace period. A termination under way goes on, and `grace` can only shorten it. Returns the
    /// containers that have not exited yet and the deadline, or `None` if all have exited.
    ///
    /// Also stops the containers that no other termination stops: native init containers,
    /// containers outside the pod's plan, and all containers of a pod without a plan. Leaves the
    /// sandbox to its caller.
    pub fn handle_stop(
        &mut self,
        now: Time,
        grace: Option<Duration>,
    ) -> Option<(Vec<String>, Time)> {
        self.now = now;
        let workload = |container: &&Container| {
            container.kind == ContainerKind::Workload && !container.state.is_exited()
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
            Some(termination) if !termination.is_over() => {
                // Without `grace` the request leaves the deadline as it is.
                let deadline = grace.map_or(termination.deadline(), |_| deadline);
                termination.decide(Cause::Stopped, deadline, now);
            }
            _ => self.terminate(Termination::new(Cause::Stopped, now, deadline, now)),
        }
        // Containers of the next run are stopped as well.
        self.move_next_run_to_current();
        let deadline = self.termination.as_ref().map(Termination::deadline);
        self.settle(now);
        Some((names, deadline.unwrap_or(now)))
    }

    /// Orders the execution of a container's program before its turn (`usher release`). An open
    /// Start is answered when the program runs. Returns the obstacles that the container waited
    /// for.
    ///
    /// # Errors
    ///
    /// If the container is unknown, is neither held nor waiting in its Start, is being deleted or
    /// checkpointed, or is a defer container, which runs only in a termination. Also if the pod
    /// terminates.
    pub fn handle_release(
        &mut self,
        now: Time,
        id: &ContainerId,
    ) -> Result<Vec<Obstacle>, Refusal> {
        self.now = now;
        let obstacles = self.on_call(id, Pod::overridden, |context, (waited_for, obstacles)| {
            let name = context.container.name.clone();
            context.out.report(Report::Overridden { name, waited_for });
            context.release();
            obstacles
        })?;
        self.settle(now);
        Ok(obstacles)
    }

    /// Checks that a person may release `container` now, and refuses the release otherwise. Returns
    /// the containers that it waits for, as names for the log and as [`Obstacle`]s for the answer.
    fn overridden(&self, container: &Container) -> Result<(Vec<String>, Vec<Obstacle>), Refusal> {
        let (name, state) = (container.name.clone(), &container.state);
        if container.defer_turn().is_some() {
            return Err(Refusal::TurnAtTheEnd { name });
        }
        if state.as_blocked().is_none() && !state.is_held() {
            let state = state.summary();
            return Err(Refusal::NotHeld { name, state });
        }
        if container.is_busy() {
            return Err(Refusal::Busy { name });
        }
        if let Some(termination) = &self.termination {
            let because = termination.cause().clone();
            return Err(Refusal::Terminating { name, because });
        }
        Ok((self.awaited_names(container), self.obstacles(container)))
    }
}
