//! Commands that a person gives a pod through `usher`, not through containerd.

use std::time::Duration;

use crate::calls::{CallError, Kind, Reply};
use crate::events::timestamp;
use usher_api as api;
use usher_core::lifecycle::ContainerId;

use super::Actor;

impl Actor {
    /// Handles `usher stop`: begins the termination of the pod, and answers at once with the
    /// containers that are to stop and the deadline. The answer is empty if all have exited.
    /// `grace` replaces the pod's own grace period. During a termination, `grace` can only bring
    /// the deadline forward.
    pub fn stop(&mut self, grace: Option<Duration>, reply: Reply<api::StopResponse>) {
        let now = self.now();
        let mut response = api::StopResponse::new();
        if let Some((names, deadline)) = self.core.handle_stop(now, grace) {
            let at = self.node.clock.wall().checked_add(deadline.since(now));
            response.containers = names;
            response.deadline = at.map(timestamp).into();
        }
        let _ = reply.send(Ok(response));
    }

    /// Handles `usher release`: releases a held container before its turn comes, and answers with
    /// the obstacles that the container waited for. `container` is the name or id. Fails for a
    /// defer container, for a container that is not held, and while the pod terminates.
    pub fn release_by_hand(&mut self, container: &str, reply: Reply<api::ReleaseResponse>) {
        let by_id = ContainerId::from(container);
        let id = Some(by_id).filter(|id| self.tasks.contains_key(id));
        let id = id.or_else(|| self.record.container_named(container).cloned());
        let now = self.now();
        let answer = match id {
            None => {
                let pod = &self.meta.identity().name;
                let message = format!("there is no container {container} in pod {pod}");
                Err(CallError::new(Kind::NotFound, message))
            }
            Some(id) => self.core.handle_release(now, &id).map_err(CallError::from),
        };
        let answer = answer.map(|overridden| api::ReleaseResponse {
            overridden: overridden.iter().map(api::Obstacle::from).collect(),
            ..api::ReleaseResponse::new()
        });
        let _ = reply.send(answer);
    }
}
