//! Calls for a sandbox without a pause container (see [`crate::sandbox`]).
//!
//! The shim deletes the sandbox's task as soon as its exit is published, just as containerd deletes
//! the task of a pause container. But containerd asks for the sandbox's state until the pod is
//! removed, so the actor keeps the exit.

use tokio::sync::oneshot;

use crate::calls::{Exit, Kind, Reply, SandboxState};
use crate::sandbox::EndedSandbox;
use usher_core::lifecycle::{ContainerId, TaskStatus};
use usher_engine::{Panicked, Sandbox};

use super::Actor;

impl Actor {
    /// Answers with the state of a sandbox. After the sandbox's task is deleted, the answer is the
    /// exit. Fails if this shim has never had a sandbox `id`.
    pub fn sandbox_state(&mut self, id: &str, reply: Reply<SandboxState>) {
        let answer = match (self.task(id), self.ended_sandbox(id)) {
            (Ok(task), _) => Ok(SandboxState {
                status: self.status_of(&ContainerId::from(id), "", &task.init),
                pid: task.init.pid,
                created_at: task.created_at,
            }),
            (Err(_), Some(ended)) => Ok(ended.state()),
            (Err(error), None) => Err(error),
        };
        let _ = reply.send(answer);
    }

    /// Answers with the exit of a sandbox as soon as the exit is published. An exit that was
    /// published before is answered at once, even after the deletion of the sandbox's task.
    pub fn wait_sandbox(&mut self, id: &str, reply: Reply<Exit>) {
        match self.ended_sandbox(id) {
            Some(ended) if self.task(id).is_err() => drop(reply.send(Ok(ended.exit))),
            _ => self.wait(id, "", reply),
        }
    }

    /// Answers when the sandbox is deleted, or at once if there is no task with this id. The caller
    /// has already killed the sandbox. Deletes the sandbox if it has exited or if its Create is
    /// unanswered, unless a deletion is under way.
    pub fn await_sandbox_deletion(&mut self, id: &str, reply: Reply<()>) {
        let id = ContainerId::from(id);
        if !self.tasks.contains_key(&id) {
            return drop(reply.send(Ok(())));
        }
        let is_going = self.core.is_deletion_wanted(&id);
        // A sandbox that still runs is deleted when its exit is published.
        let status = self.core.task_status(&id);
        let can_go = status == Some(TaskStatus::Stopped) || !self.core.is_known(&id);
        self.sandbox_end.add_waiting(reply);
        if can_go && !is_going {
            self.delete_sandbox(&id);
        }
    }

    /// Sizes the pod's cgroup again, because kubelet resizes the pod: the values that kubelet writes
    /// are the new upper bounds of the shim's values. Fails if this shim has never had a sandbox
    /// `id`.
    pub fn sandbox_resized(&mut self, id: &str, reply: Reply<()>) {
        let answer = match (self.task(id), self.ended_sandbox(id)) {
            (Err(error), None) => Err(error),
            _ => Ok(()),
        };
        if answer.is_ok() {
            tracing::info!(sandbox = id, "the pod is resized");
            self.settle_resize();
        }
        let _ = reply.send(answer);
    }

    /// Answers with the sandbox, whose namespaces the pod's containers share. The answer is empty
    /// if there is no sandbox yet.
    pub fn shared(&mut self, reply: Reply<Sandbox>) {
        let _ = reply.send(Ok(self.meta.sandbox().cloned().unwrap_or_default()));
    }

    /// Stores the exit of a sandbox without a pause container for later calls, and begins to delete
    /// the sandbox's task. Does nothing for any other container. Called when the exit of container
    /// `id` was published and its open Waits were answered.
    pub(super) fn finish_sandbox(&mut self, id: &ContainerId, exit: Exit) {
        if !self.core.is_sandbox(id) || !self.meta.has_own_sandbox() {
            return;
        }
        let Some(task) = self.tasks.get(id) else {
            return;
        };
        self.sandbox_end.set(EndedSandbox {
            id: id.clone(),
            created_at: task.created_at,
            exit,
        });
        // containerd usually asks right after this to remove the sandbox, so the shim must not end
        // yet.
        self.shim_end.announce(id.clone());
        self.delete_sandbox(id);
    }

    fn delete_sandbox(&mut self, id: &ContainerId) {
        let (reply, answer) = oneshot::channel();
        self.delete(id.as_str(), "", reply);
        let deleted = async move { answer.await.unwrap_or_else(|_| Err(Panicked.into())) };
        self.spawn(deleted, |actor, outcome| {
            let outcome = match outcome {
                Err(error) if error.kind != Kind::NotFound => {
                    tracing::warn!(error = error.message, "cannot delete the sandbox");
                    Err(error)
                }
                _ => Ok(()),
            };
            actor.sandbox_end.answer(&outcome);
        });
    }

    fn ended_sandbox(&self, id: &str) -> Option<&EndedSandbox> {
        let last = self.sandbox_end.last();
        last.filter(|ended| ended.id.as_str() == id)
    }
}
