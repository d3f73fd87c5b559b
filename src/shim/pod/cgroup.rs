//! The calls Stats and Pids, and the watch for OOM kills.

use crate::calls::{Figures, Members, Reply};
use crate::events;
use crate::record::What;
use usher_core::lifecycle::{Call, ContainerId};

use super::Actor;
use super::actor::Message;

impl Actor {
    /// Watches a container for OOM kills until its init process exits. Publishes each kill as
    /// TaskOOM, and records it. Called for each new init process, and when the container's cgroup
    /// is found later.
    pub(super) fn watch_cgroup(&mut self, id: &ContainerId) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        let (node, id) = (self.node.clone(), id.clone());
        let mailbox = self.mailbox.clone();
        let tell = move || {
            tracing::info!(container = %id, "out of memory: the kernel killed a process");
            node.publish(events::task::oom(&id));
            let killed = id.clone();
            let note: Message = Box::new(move |actor| {
                actor.record.note(actor.now(), &killed, What::OomKilled);
            });
            // If the mailbox is full, this message is dropped, and `usher` does not show the OOM
            // kill.
            let _ = mailbox.try_send(note);
        };
        task.handles.watch_memory(Box::new(tell));
    }

    /// Answers Stats with the task's cgroup, or with the last metrics if a cleanup has removed the
    /// cgroup. The handler of the call reads the metrics from the cgroup, so that the actor does
    /// not wait. Fails if the task's cgroup is unknown.
    pub fn figures(&mut self, id: &str, reply: Reply<Figures>) {
        self.find_cgroup(id);
        let answer = self.task(id).and_then(|task| task.figures(id));
        let _ = reply.send(answer);
    }

    /// Looks for a task's cgroup again if it was not found at creation because file descriptors had
    /// run out. If the cgroup is found now, watches it for OOM kills.
    fn find_cgroup(&mut self, id: &str) {
        let id = ContainerId::from(id);
        let task = self.tasks.get_mut(&id);
        if task.is_some_and(|task| task.handles.find_cgroup()) {
            self.watch_cgroup(&id);
        }
    }

    /// Answers Pids. The answer depends on the init process:
    ///
    /// - While a container waits to be restored from a checkpoint: an error.
    /// - While the process exists, even before Start: the task's cgroup and the process ids of its
    ///   execs, or an error if the cgroup is unknown.
    /// - After the process has exited, until a restart in place makes the next one: an answer
    ///   without a cgroup.
    /// - After the exit is published: an error.
    pub fn members(&mut self, id: &str, reply: Reply<Members>) {
        self.find_cgroup(id);
        let answer = self.task(id).and_then(|task| {
            let key = ContainerId::from(id);
            self.core.allows(&key, Call::Pids)?;
            let is_between = self.core.is_between_processes(&key);
            if is_between || self.core.is_exit_pending(&key) {
                let first = task.carryover.first_pid().filter(|_| is_between);
                return Ok(Members {
                    known_pid: first.or(task.init.known_pid()),
                    ..Members::default()
                });
            }
            task.members(id)
        });
        let _ = reply.send(answer);
    }
}
