//! Delete: what is left of a container, or of an exec, goes away.

use std::{iter, mem};

use containerd_shim_protos::events::task::TaskDelete;
use containerd_shim_protos::protobuf::MessageField;

use crate::caught::Panicked;
use crate::engine::{Deletion, EngineError};
use crate::lifecycle::{ContainerId, Wanted};
use crate::stdio;

use super::life::{Call, Forgetting};
use super::process::{Deleted, Exit};
use super::{Actor, CallError, Kind, Reply};

impl Actor {
    /// Deletes a task that has ended, or was never started, or an exec. Joins a deletion of the task that is
    /// under way.
    pub fn delete(&mut self, id: &str, exec_id: &str, reply: Reply<Deleted>) {
        if !exec_id.is_empty() {
            return self.delete_exec(id, exec_id, reply);
        }
        let key = ContainerId::from(id);
        let Some(task) = self.tasks.get_mut(&key) else {
            return drop(reply.send(Err(CallError::not_found(id, ""))));
        };
        // A task that is being created is deleted when that is over: containerd does so when it has given up
        // its Create, and removes the bundle as soon as it has its answer.
        if !task.life.is_known() {
            return task.life.is_to_go(reply);
        }
        if let Err(error) = task.life.allows(Call::Delete, id) {
            return drop(reply.send(Err(error)));
        }
        let is_under_way = task.life.is_going() || task.life.has_deleter();
        task.life.is_to_go(reply);
        if !is_under_way {
            self.begin_to_delete(&key);
        }
    }

    /// Begins the deletion of a task, or what comes before it.
    fn begin_to_delete(&mut self, id: &ContainerId) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        if task.life.is_unborn() {
            return self.delete_unborn(id);
        }
        if task.life.published().is_some() {
            return self.begin_delete(id);
        }
        if task.life.unpublished().is_some() {
            return self.publish_exit_if_due(id);
        }
        // It was never started. Its end is published before its deletion, as for any other.
        task.life.halt().call();
        task.end_init();
    }

    /// Has the engine forget a container that has ended, while the news of its end are still on
    /// their way to whoever will ask for its deletion. Nothing of it is needed any more: what is
    /// known of an ended container is known here. Hooks that run at its deletion wait for that.
    pub(super) fn clear_away(&mut self, id: &ContainerId) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        // An exec that is being started may still be in the cgroup.
        let life = &task.life;
        let is_leaving = life.is_being_forgotten() || life.is_going();
        let is_busy = is_leaving || !life.is_known() || task.has_live_execs();
        if is_busy || task.facts.has_poststop_hooks {
            return;
        }
        let forgetting = task.life.begin_forgetting();
        let container = task.container.clone();
        let forget = async move { container.forget().await };
        self.operate(id, Wanted::UntilDeleted, forget, |actor, id, outcome| {
            actor.cleared_away(id, forgetting, outcome);
        });
    }

    fn cleared_away(
        &mut self,
        id: &ContainerId,
        forgetting: Forgetting,
        outcome: Result<(), EngineError>,
    ) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        let is_forgotten = outcome.is_ok();
        if let Err(error) = outcome {
            // Its deletion will try again, and say so. Who waits for that already has waited for as long
            // as it could.
            tracing::warn!(container = %id, %error, "not cleared away");
            if error.is_cut_short() {
                answer(task.life.take_deleters(), &Err(CallError::unknown(error)));
            }
        }
        self.forgetting_is_over(id, forgetting, is_forgotten);
    }

    /// The engine has forgotten a container, or could not: what has waited for that goes on, be it its next
    /// life or its deletion.
    pub(super) fn forgetting_is_over(
        &mut self,
        id: &ContainerId,
        forgetting: Forgetting,
        is_forgotten: bool,
    ) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        if task.life.end_forgetting(forgetting, is_forgotten) {
            return self.restart(id);
        }
        if task.life.published().is_some() && task.life.has_deleter() {
            self.begin_delete(id);
        }
    }

    /// Deletes a container whose exit is published, as soon as the engine does nothing else with it.
    pub(super) fn begin_delete(&mut self, id: &ContainerId) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        let Some(exit) = task.life.published() else {
            return;
        };
        if task.life.is_being_forgotten() || task.life.is_going() {
            return;
        }
        let how = match task.life.is_forgotten() {
            true => Deletion::Rest,
            false => Deletion::Usual,
        };
        let deleted = Deleted {
            pid: task.init.pid,
            exit,
        };
        self.delete_now(id, how, deleted);
    }

    /// Deletes a container, and tells the callers that want it what has become of it.
    pub(super) fn delete_now(&mut self, id: &ContainerId, how: Deletion, deleted: Deleted) {
        self.remove(id, how, move |actor, id, outcome| {
            let Some(task) = actor.tasks.get_mut(id) else {
                return;
            };
            let deleters = task.life.take_deleters();
            match outcome {
                Ok(()) => actor.deleted(id, deleted, deleters),
                Err(error) => {
                    // It can be tried again.
                    task.life.stays();
                    answer(deleters, &Err(error.into()));
                }
            }
        });
    }

    /// Removes what the engine knows of a container, and does then what follows from it.
    pub(super) fn remove(
        &mut self,
        id: &ContainerId,
        how: Deletion,
        then: impl FnOnce(&mut Actor, &ContainerId, Result<(), EngineError>) + Send + 'static,
    ) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        task.life.goes();
        let execs = task.execs.values_mut().map(|exec| &mut exec.process);
        let processes = iter::once(&mut task.init).chain(execs);
        let streams = processes.map(|process| mem::take(&mut process.streams));
        let streams: Vec<_> = streams.collect();
        let container = task.container.clone();
        let delete = async move { container.delete(how, streams).await };
        self.operate(id, Wanted::UntilDeleted, delete, then);
    }

    fn deleted(&mut self, id: &ContainerId, deleted: Deleted, deleters: Vec<Reply<Deleted>>) {
        self.forget(id);
        let Deleted { pid, exit } = deleted;
        self.node.publish(TaskDelete {
            container_id: id.to_string(),
            pid: u32::try_from(pid).unwrap_or_default(),
            exit_status: exit.code,
            exited_at: MessageField::some(crate::events::timestamp(exit.at)),
            ..TaskDelete::new()
        });
        answer(deleters, &Ok(deleted));
    }

    fn delete_exec(&mut self, id: &str, exec_id: &str, reply: Reply<Deleted>) {
        let task = match self.task_mut(id) {
            Ok(task) => task,
            Err(error) => return drop(reply.send(Err(error))),
        };
        let Some(exec) = task.execs.get(exec_id) else {
            return drop(reply.send(Err(CallError::not_found(id, exec_id))));
        };
        if exec.process.reads_running() {
            let message = format!(
                "cannot delete process {exec_id} of task {id}: it is running, expected stopped or created"
            );
            return drop(reply.send(Err(CallError::new(Kind::FailedPrecondition, message))));
        }
        let Some(mut exec) = task.execs.remove(exec_id) else {
            return;
        };
        let container = ContainerId::from(id);
        self.exec_over(&container, exec_id, None);
        self.publish_exit_if_due(&container);
        // An exec that never ran has no exit; containerd takes 0 for unknown.
        let exit = exec.process.exit.unwrap_or(Exit {
            code: 0,
            at: std::time::UNIX_EPOCH,
        });
        let deleted = Deleted {
            pid: exec.process.pid,
            exit,
        };
        match exec.starting.take() {
            Some((operation, halt)) => {
                self.operations.cancel(operation);
                halt.call();
                exec.process.never_ran(&CallError::not_found(id, exec_id));
            }
            None => exec.process.ended(exit),
        }
        let drain = async move {
            stdio::drain([exec.process.streams]).await;
            Ok::<_, Panicked>(())
        };
        self.spawn(drain, move |_, _| {
            let _ = reply.send(Ok(deleted));
        });
    }
}

/// Tells all callers that have waited for a deletion what has become of it.
pub(super) fn answer(deleters: Vec<Reply<Deleted>>, answer: &Result<Deleted, CallError>) {
    for deleter in deleters {
        let _ = deleter.send(answer.clone());
    }
}
