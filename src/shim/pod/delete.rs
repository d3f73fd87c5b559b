//! The Delete call: removes a container or an exec.

use std::mem;

use crate::calls::{CallError, Deleted, Exit, Reply};
use crate::events;
use crate::task_table::Exec;
use usher_core::lifecycle::{CleanupOutcome, ContainerId, Deletion, Wanted};
use usher_engine::EngineError;
use usher_linux::stdio;

use super::Actor;
use super::operations::infallible;

impl Actor {
    /// Deletes an exec or a task that was never started, or whose exit is published. Fails if the
    /// exec or task is in another state. If a deletion of the task is under way, the call gets the
    /// answer of that deletion. The call waits while the task is being created, because containerd
    /// calls Delete when it has given up its Create, and removes the bundle as soon as Delete is
    /// answered.
    pub fn delete(&mut self, id: &str, exec_id: &str, reply: Reply<Deleted>) {
        if !exec_id.is_empty() {
            return self.delete_exec(id, exec_id, reply);
        }
        let (now, key) = (self.now(), ContainerId::from(id));
        let Some(task) = self.tasks.get_mut(&key) else {
            return drop(reply.send(Err(CallError::not_found(id, ""))));
        };
        match self.core.handle_delete(now, &key) {
            Ok(()) => task.deleters.add(reply),
            Err(refusal) => drop(reply.send(Err(refusal.into()))),
        }
    }

    /// Kills the init process of a container that is to be deleted before its program was executed.
    /// Cancels the work that is under way for the container. As for any other container, the exit
    /// is published before the deletion.
    pub(super) fn kill_parked(&mut self, id: &ContainerId) {
        if let Some(task) = self.tasks.get(id) {
            task.handles.cancel_token().cancel();
            task.handles.kill_init();
        }
    }

    /// Cleans up the runtime state of a container that has exited, before the caller deletes the
    /// container. The root file system stays.
    pub(super) fn clean_up(&mut self, id: &ContainerId) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        task.handles.keep_figures();
        let container = task.container.clone();
        let forget = async move { container.forget().await };
        self.operate(id, Wanted::UntilDeleted, forget, Actor::cleaned_up);
    }

    fn cleaned_up(&mut self, id: &ContainerId, outcome: Result<(), EngineError>) {
        let outcome = match outcome {
            Ok(()) => CleanupOutcome::Done,
            Err(error) => {
                tracing::warn!(container = %id, %error, "cleanup before the deletion failed");
                let is_cut_short = error.is_cut_short();
                let task = self.tasks.get_mut(id).filter(|_| is_cut_short);
                if let Some(task) = task {
                    // Answer the callers of Delete now: the cleanup has taken as long as a deletion
                    // may take.
                    task.deleters.answer(&Err(CallError::unknown(error)));
                }
                match is_cut_short {
                    true => CleanupOutcome::TimedOut,
                    false => CleanupOutcome::Failed,
                }
            }
        };
        self.core.handle_cleaned_up(self.now(), id, outcome);
    }

    /// Begins the deletion of a container. The engine removes the container, and passes on the rest
    /// of the output of the container and its execs. [`Deletion::Forced`] undoes a creation. After
    /// any other deletion, the shim answers the callers of Delete.
    pub(super) fn begin_deletion(&mut self, id: &ContainerId, how: Deletion) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        task.handles.cancel_token().cancel();
        let (container, streams) = (task.container.clone(), task.take_streams());
        let delete = async move { container.delete(how, streams).await };
        let then = move |actor: &mut Actor, id: &ContainerId, outcome| match how {
            Deletion::Forced => actor.finish_undo(id, outcome),
            Deletion::Usual | Deletion::RootfsOnly => actor.finish_delete(id, outcome),
        };
        self.operate(id, Wanted::UntilDeleted, delete, then);
    }

    fn finish_undo(&mut self, id: &ContainerId, outcome: Result<(), EngineError>) {
        if let Err(error) = outcome {
            tracing::error!(container = %id, %error, "not removed");
            // Kill the container's init process, which waits to execute the program. Nothing else
            // ends this process.
            if let Some(task) = self.tasks.get(id) {
                task.handles.kill_init();
            }
        }
        self.remove_failed_creation(id);
    }

    fn finish_delete(&mut self, id: &ContainerId, outcome: Result<(), EngineError>) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        if let Err(error) = outcome {
            task.deleters.answer(&Err(error.into()));
            return self.core.handle_not_deleted(self.now(), id);
        }
        let (pid, exit) = (task.init.pid, task.init.exit().unwrap_or(Exit::UNKNOWN));
        let mut deleters = mem::take(&mut task.deleters);
        self.remove_task(id);
        self.node.publish(events::task::deleted(id, pid, exit));
        deleters.answer(&Ok(Deleted { pid, exit }));
    }

    fn delete_exec(&mut self, id: &str, exec_id: &str, reply: Reply<Deleted>) {
        let mut exec = match self.remove_exec(id, exec_id) {
            Ok(exec) => exec,
            Err(error) => return drop(reply.send(Err(error))),
        };
        let exit = exec.process.exit().unwrap_or(Exit::UNKNOWN);
        let deleted = Deleted {
            pid: exec.process.pid,
            exit,
        };
        let answer = match exec.starting.take() {
            Some((operation, token)) => {
                self.operations.cancel(operation);
                token.cancel();
                Err(CallError::not_found(id, exec_id))
            }
            None => Ok(exit),
        };
        exec.process.answer_waits(answer);
        let drain = infallible(stdio::drain([exec.process.streams]));
        self.spawn(drain, move |_, _| {
            let _ = reply.send(Ok(deleted));
        });
    }

    fn remove_exec(&mut self, id: &str, exec_id: &str) -> Result<Exec, CallError> {
        self.task(id)?;
        let (now, key) = (self.now(), ContainerId::from(id));
        self.core.handle_exec_delete(now, &key, exec_id)?;
        let exec = self.task_mut(id)?.execs.remove(exec_id);
        exec.ok_or_else(|| CallError::not_found(id, exec_id))
    }
}
