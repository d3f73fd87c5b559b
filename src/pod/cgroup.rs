//! What the actor wants of the containers' cgroups.

use std::sync::Arc;

use containerd_shim_protos::events::task::TaskOOM;
use containerd_shim_protos::protobuf::well_known_types::any::Any;

use crate::engine::Cgroup;
use crate::lifecycle::{Call, ContainerId};
use crate::record::What;

use super::{Actor, CallError, Kind, Message, Reply};

/// The processes of a task.
#[derive(Debug)]
pub enum Members {
    /// Those in its cgroup; of its execs the process ids and names.
    Of(Arc<dyn Cgroup>, Vec<(i32, String)>),
    /// None runs just now, and the task lives on, or its exit is about to be told. containerd, when it is started again, deletes a
    /// task without a process (from 1.7 on), so there is the one that has ended and is not collected.
    Ended(Option<i32>),
}

/// Where the figures of a task are.
#[derive(Debug)]
pub enum Figures {
    /// To be read.
    Of(Arc<dyn Cgroup>),
    /// Those of a task that has ended.
    Last(Any),
}

impl Actor {
    /// Tells of kills for want of memory in a container that was just created, until it ends.
    pub(super) fn watch_cgroup(&mut self, id: &ContainerId) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        let (node, id) = (self.node.clone(), id.clone());
        let mailbox = self.mailbox.clone();
        let tell = move || {
            tracing::info!(container = %id, "memory ran out: the kernel has killed a process");
            node.publish(TaskOOM {
                container_id: id.to_string(),
                ..TaskOOM::new()
            });
            let killed = id.clone();
            let note: Message = Box::new(move |actor| {
                let now = actor.now();
                actor.record.note(now, &killed, What::OomKilled);
            });
            // One that does not get through is missing in what people see, nowhere else.
            let _ = mailbox.try_send(note);
        };
        task.handles.watch_memory(Box::new(tell));
    }

    /// Where the figures of a task are.
    pub fn figures(&mut self, id: &str, reply: Reply<Figures>) {
        self.find_cgroup(id);
        let answer = self.task(id).and_then(|task| {
            task.handles.figures().ok_or_else(|| {
                let message = format!("task {id} has no figures: its cgroup is not known");
                CallError::new(Kind::NotFound, message)
            })
        });
        let _ = reply.send(answer);
    }

    /// Looks for a task's cgroup again, where it could not be found out at its creation for want of
    /// a descriptor.
    fn find_cgroup(&mut self, id: &str) {
        let id = ContainerId::from(id);
        let task = self.tasks.get_mut(&id);
        if task.is_some_and(|task| task.handles.find_cgroup()) {
            self.watch_cgroup(&id);
        }
    }

    /// The cgroup of a running task, and the process ids of its execs.
    pub fn members(&mut self, id: &str, reply: Reply<Members>) {
        self.find_cgroup(id);
        let answer = self.task(id).and_then(|task| {
            let key = ContainerId::from(id);
            self.core.allows(&key, Call::Pids)?;
            if self.core.is_exit_pending(&key) {
                return Ok(Members::Ended(Some(task.init.pid).filter(|pid| *pid > 0)));
            }
            if self.core.is_between_processes(&key) {
                return Ok(Members::Ended(task.lives.first_pid()));
            }
            let cgroup = task.handles.cgroup().cloned().ok_or_else(|| {
                let message = format!("task {id} has no processes: its cgroup is not known");
                CallError::new(Kind::FailedPrecondition, message)
            })?;
            let execs = task.execs.iter();
            let execs = execs.map(|(id, exec)| (exec.process.pid, id.clone()));
            Ok(Members::Of(cgroup, execs.collect()))
        });
        let _ = reply.send(answer);
    }
}
