//! What only a sandbox is asked that is no container (see [`crate::sandbox`]).

use std::time::{Duration, SystemTime};

use crate::caught::Panicked;
use crate::engine::Sandbox;
use crate::lifecycle::ContainerId;

use super::{Actor, CallError, Reply};

/// How long a sandbox that was stopped is still told of. As a rule containerd has it removed at once, and
/// with it the shim; where the pod is kept, as that of a finished Job, it asks nothing of it any more, and
/// takes one that is not there for one that was stopped.
const KEPT_FOR: Duration = Duration::from_secs(30);

impl Actor {
    /// When a sandbox was created.
    pub fn began(&mut self, id: &str, reply: Reply<SystemTime>) {
        let began = self.task(id).map(|task| task.created_at);
        let _ = reply.send(began);
    }

    /// What the pod's containers share.
    pub fn shared(&mut self, reply: Reply<Sandbox>) {
        let _ = reply.send(Ok(self.who.sandbox().cloned().unwrap_or_default()));
    }

    /// A sandbox that was stopped goes by itself after a while, and its shim with it, if nothing else is
    /// left of its pod.
    pub fn retire_later(&mut self, id: &str, reply: Reply<()>) {
        let _ = reply.send(Ok(()));
        let id = ContainerId::from(id);
        let Some(created_at) = self.tasks.get(&id).map(|task| task.created_at) else {
            return;
        };
        let wait = async {
            tokio::time::sleep(KEPT_FOR).await;
            Ok::<_, Panicked>(())
        };
        self.job(wait, move |actor, _| {
            let is_it = actor
                .tasks
                .get(&id)
                .is_some_and(|task| task.created_at == created_at && task.life.has_ended());
            if is_it && actor.tasks.len() == 1 {
                actor.retire(&id);
            }
        });
    }

    fn retire(&mut self, id: &ContainerId) {
        tracing::info!(sandbox = %id, "stopped long ago");
        let (reply, answer) = tokio::sync::oneshot::channel();
        self.delete(id.as_str(), "", reply);
        let name = id.clone();
        let deleted = async move { answer.await.unwrap_or_else(|_| Err(Panicked.into())) };
        self.job(deleted, move |actor, _: Result<_, CallError>| {
            let (reply, _) = tokio::sync::oneshot::channel();
            actor.shutdown(name.as_str(), reply);
        });
    }
}
