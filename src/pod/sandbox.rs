//! What only a sandbox is asked that is no container (see [`crate::sandbox`]).
//!
//! Its task goes as soon as its exit is told, as containerd deletes that of a pause container at its exit.
//! But containerd asks of a sandbox until the pod is removed: so how it has ended is remembered.

use std::time::SystemTime;

use tokio::sync::oneshot;

use crate::caught::Panicked;
use crate::engine::Sandbox;
use crate::lifecycle::{ContainerId, TaskStatus};

use super::process::{Exit, Status, Task};
use super::{Actor, CallError, Kind, Reply};

/// What is told of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SandboxState {
    pub status: Status,
    /// Zero as long as it has no process.
    pub pid: i32,
    pub created_at: SystemTime,
}

/// The end of the pod's sandbox.
#[derive(Debug, Default)]
pub(super) struct SandboxEnd {
    /// What is told of the last one that has ended.
    last: Option<Ended>,
    /// Who waits until it is gone.
    waiting: Vec<Reply<()>>,
}

#[derive(Debug)]
struct Ended {
    id: ContainerId,
    created_at: SystemTime,
    exit: Exit,
}

impl Actor {
    /// Whether a sandbox is there, or how it has ended.
    pub fn sandbox_state(&mut self, id: &str, reply: Reply<SandboxState>) {
        let state = |task: &Task| SandboxState {
            status: self.status_of(&ContainerId::from(id), "", &task.init),
            pid: task.init.pid,
            created_at: task.created_at,
        };
        let answer = match (self.task(id), self.ended_sandbox(id)) {
            (Ok(task), _) => Ok(state(task)),
            (Err(_), Some(ended)) => Ok(SandboxState {
                status: Status::Stopped(ended.exit),
                pid: 0,
                created_at: ended.created_at,
            }),
            (Err(error), None) => Err(error),
        };
        let _ = reply.send(answer);
    }

    /// Answers when a sandbox has ended.
    pub fn wait_sandbox(&mut self, id: &str, reply: Reply<Exit>) {
        match self.ended_sandbox(id) {
            Some(ended) if self.task(id).is_err() => drop(reply.send(Ok(ended.exit))),
            _ => self.wait(id, "", reply),
        }
    }

    /// Answers when nothing is left of a sandbox that was killed.
    pub fn sandbox_gone(&mut self, id: &str, reply: Reply<()>) {
        let id = ContainerId::from(id);
        if !self.tasks.contains_key(&id) {
            return drop(reply.send(Ok(())));
        }
        let is_going = self.core.is_deletion_wanted(&id);
        // One that lives goes when its exit is published.
        let status = self.core.task_status(&id);
        let can_go = status == Some(TaskStatus::Stopped) || !self.core.is_known(&id);
        let waiting = &mut self.sandbox_end.waiting;
        // Callers that have given up are not kept.
        waiting.retain(|waiting| !waiting.is_closed());
        waiting.push(reply);
        if can_go && !is_going {
            self.delete_sandbox(&id);
        }
    }

    /// Reads what the pod's cgroup has now: kubelet has resized the pod.
    pub fn sandbox_resized(&mut self, id: &str, reply: Reply<()>) {
        let answer = match (self.task(id), self.ended_sandbox(id)) {
            (Err(error), None) => Err(error),
            _ => Ok(()),
        };
        if answer.is_ok() {
            tracing::info!(sandbox = id, "the pod was resized");
            self.settle_size_now(true);
        }
        let _ = reply.send(answer);
    }

    /// Refuses a second sandbox: containerd has one of a shim, also when that has ended.
    ///
    /// # Errors
    ///
    /// [`Kind::AlreadyExists`], which names the first.
    pub(super) fn refuse_second_sandbox(&self, id: &str) -> Result<(), CallError> {
        let living = self.tasks.keys().find(|id| self.core.is_sandbox(id));
        let ended = self.sandbox_end.last.as_ref().map(|ended| &ended.id);
        match living.or(ended) {
            None => Ok(()),
            Some(first) => Err(CallError::new(
                Kind::AlreadyExists,
                format!(
                    "sandbox {id} cannot be created: this shim has sandbox {first}, expected one"
                ),
            )),
        }
    }

    /// What the pod's containers share.
    pub fn shared(&mut self, reply: Reply<Sandbox>) {
        let _ = reply.send(Ok(self.who.sandbox().cloned().unwrap_or_default()));
    }

    /// The exit of a container was told. If it is a sandbox that the shim has made, it goes now.
    pub(super) fn sandbox_ended(&mut self, id: &ContainerId, exit: Exit) {
        if !self.core.is_sandbox(id) || !self.who.has_own_sandbox() {
            return;
        }
        let Some(task) = self.tasks.get(id) else {
            return;
        };
        self.sandbox_end.last = Some(Ended {
            id: id.clone(),
            created_at: task.created_at,
            exit,
        });
        // As a rule containerd asks for its removal at once.
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
                    tracing::warn!(error = error.message, "the sandbox is not gone");
                    Err(error)
                }
                _ => Ok(()),
            };
            for reply in actor.sandbox_end.waiting.drain(..) {
                // Who has gone away need not be told.
                let _ = reply.send(outcome.clone());
            }
        });
    }

    fn ended_sandbox(&self, id: &str) -> Option<&Ended> {
        let last = self.sandbox_end.last.as_ref();
        last.filter(|ended| ended.id.as_str() == id)
    }
}
