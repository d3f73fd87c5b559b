//! Delete: what is left of a container, or of an exec, goes away.

use containerd_shim_protos::events::task::TaskDelete;
use containerd_shim_protos::protobuf::MessageField;

use crate::caught::Panicked;
use crate::engine::{Deletion, EngineError};
use crate::lifecycle::ContainerId;
use crate::stdio;

use super::life::Call;
use super::process::{Deleted, Exit};
use super::{Actor, CallError, Kind, Reply};

impl Actor {
    /// Deletes a task that has ended, or was never started, or an exec.
    pub fn delete(&mut self, id: &str, exec_id: &str, reply: Reply<Deleted>) {
        if !exec_id.is_empty() {
            return self.delete_exec(id, exec_id, reply);
        }
        let Some(reply) = self.delete_once_created(id, reply) else {
            return;
        };
        let task = match self.task_mut(id) {
            Ok(task) => task,
            Err(error) => return drop(reply.send(Err(error))),
        };
        if let Err(error) = task.life.allows(Call::Delete, id) {
            return drop(reply.send(Err(error)));
        }
        let Some(reply) = self.delete_unborn(id, reply) else {
            return;
        };
        let id = ContainerId::from(id);
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        if task.life.published().is_some() {
            return self.begin_delete(&id, reply);
        }
        let is_reported = task.life.unpublished().is_some();
        task.life.is_to_go(reply);
        if is_reported {
            return self.publish_exit_if_due(&id);
        }
        // It was never started. Its end is published before its deletion, as for any other.
        task.life.halt().call();
        task.end_init();
    }

    /// A task that is being created is deleted when that is over: containerd does so when it has given up
    /// its Create, and removes the bundle as soon as it has its answer. Gives the reply back if there is
    /// no such task, or somebody waits already.
    fn delete_once_created(&mut self, id: &str, reply: Reply<Deleted>) -> Option<Reply<Deleted>> {
        let task = self.tasks.get_mut(&ContainerId::from(id));
        match task.filter(|task| !task.life.is_known() && !task.life.has_deleter()) {
            Some(task) => {
                task.life.is_to_go(reply);
                None
            }
            None => Some(reply),
        }
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
        task.life.forgetting_begins();
        let (container, id) = (task.container.clone(), id.clone());
        self.job(
            async move { container.forget().await },
            move |actor, outcome| actor.cleared_away(&id, outcome),
        );
    }

    fn cleared_away(&mut self, id: &ContainerId, outcome: Result<(), EngineError>) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        let is_forgotten = outcome.is_ok();
        if let Err(error) = outcome {
            // Its deletion will try again, and say so. Who waits for that already has waited for as long
            // as it could.
            tracing::warn!(container = %id, %error, "not cleared away");
            if error.is_cut_short()
                && let Some(reply) = task.life.take_deleter()
            {
                let _ = reply.send(Err(CallError::unknown(error)));
            }
        }
        self.forgetting_is_over(id, is_forgotten);
    }

    /// The engine has forgotten a container, or could not: what has waited for that goes on, be it its next
    /// life or its deletion.
    pub(super) fn forgetting_is_over(&mut self, id: &ContainerId, is_forgotten: bool) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        if task.life.forgetting_is_over(is_forgotten) {
            return self.restart(id);
        }
        if task.life.published().is_some()
            && let Some(reply) = task.life.take_deleter()
        {
            self.begin_delete(id, reply);
        }
    }

    pub(super) fn begin_delete(&mut self, id: &ContainerId, reply: Reply<Deleted>) {
        let Some(task) = self.tasks.get_mut(id) else {
            return drop(reply.send(Err(CallError::not_found(id.as_str(), ""))));
        };
        let Some(exit) = task.life.published() else {
            return;
        };
        if task.life.is_being_forgotten() {
            return task.life.is_to_go(reply);
        }
        let how = match task.life.is_forgotten() {
            true => Deletion::Rest,
            false => Deletion::Usual,
        };
        let deleted = Deleted {
            pid: task.init.pid,
            exit,
        };
        self.delete_now(id, how, deleted, reply);
    }

    /// Deletes a container, and tells who wants that what has become of it.
    pub(super) fn delete_now(
        &mut self,
        id: &ContainerId,
        how: Deletion,
        deleted: Deleted,
        reply: Reply<Deleted>,
    ) {
        let container = id.clone();
        self.remove(id, how, move |actor, outcome| match outcome {
            Ok(()) => actor.deleted(&container, deleted, reply),
            Err(error) => {
                // It can be tried again.
                if let Some(task) = actor.tasks.get_mut(&container) {
                    task.life.stays();
                }
                let _ = reply.send(Err(error.into()));
            }
        });
    }

    /// Removes what the engine knows of a container, and does then what follows from it.
    pub(super) fn remove(
        &mut self,
        id: &ContainerId,
        how: Deletion,
        then: impl FnOnce(&mut Actor, Result<(), EngineError>) + Send + 'static,
    ) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        task.life.goes();
        let execs = task.execs.values_mut();
        let execs = execs.filter_map(|exec| exec.process.streams.take());
        let streams: Vec<_> = task.init.streams.take().into_iter().chain(execs).collect();
        let container = task.container.clone();
        self.job(async move { container.delete(how, streams).await }, then);
    }

    pub(super) fn deleted(&mut self, id: &ContainerId, deleted: Deleted, reply: Reply<Deleted>) {
        self.forget(id);
        let Deleted { pid, exit } = deleted;
        self.node.publish(TaskDelete {
            container_id: id.to_string(),
            pid: u32::try_from(pid).unwrap_or_default(),
            exit_status: exit.code,
            exited_at: MessageField::some(crate::events::timestamp(exit.at)),
            ..TaskDelete::new()
        });
        let _ = reply.send(Ok(deleted));
    }

    fn delete_exec(&mut self, id: &str, exec_id: &str, reply: Reply<Deleted>) {
        let task = match self.task_mut(id) {
            Ok(task) => task,
            Err(error) => return drop(reply.send(Err(error))),
        };
        let Some(exec) = task.execs.get(exec_id) else {
            return drop(reply.send(Err(CallError::not_found(id, exec_id))));
        };
        if exec.process.is_running() {
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
            Some((_, halt)) => {
                halt.call();
                exec.process.never_ran(&CallError::not_found(id, exec_id));
            }
            None => exec.process.ended(exit),
        }
        let streams = exec.process.streams.take();
        let drain = async move {
            stdio::drain(streams).await;
            Ok::<_, Panicked>(())
        };
        self.job(drain, move |_, _| {
            let _ = reply.send(Ok(deleted));
        });
    }
}
