//! What a person asks of the pod, past its caller: `usher stop` and `usher release`.

use std::time::Duration;

use crate::plan::{ContainerKind, USUAL_GRACE_PERIOD};

use super::action::{Cause, ContainerId, Refusal};
use super::container::Container;
use super::report::Report;
use super::rules::Deed;
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
        self.now = now;
        let workload = |container: &&Container| {
            container.kind == ContainerKind::Workload && !container.life.is_exited()
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
                // Without a grace period of its own the request changes nothing of the time.
                let deadline = grace.map_or(termination.deadline(), |_| deadline);
                termination.decide(Cause::Stopped, deadline, now);
            }
            _ => self.terminate(Termination::new(Cause::Stopped, now, deadline, now)),
        }
        // Also what would have come after the end that is under way.
        self.begin_next_run();
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
        self.now = now;
        let Some(container) = self.containers.get(id) else {
            return Err(Refusal::NotFound { id: id.clone() });
        };
        let name = container.name.clone();
        if container.defer_turn().is_some() {
            return Err(Refusal::TurnAtTheEnd { name });
        }
        let life = &container.life;
        if life.as_blocked().is_none() && !life.is_held() {
            let state = life.state();
            return Err(Refusal::NotHeld { name, state });
        }
        if let Some(termination) = &self.termination {
            let because = termination.cause().clone();
            return Err(Refusal::Terminating { name, because });
        }
        let obstacles = self.obstacles(container);
        let waited_for = self.missing(container);
        self.out.report(Report::Overridden { name, waited_for });
        self.do_to(id, Deed::Release);
        self.settle(now);
        Ok(obstacles)
    }
}
