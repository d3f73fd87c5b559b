//! The actor's answers to `usher`: the pod's status, notices of changes, and the archived record.

use protobuf::MessageField;
use tokio::sync::watch;

use crate::calls::{CallError, Kind, Reply};
use crate::events::timestamp;
use crate::status::Status;
use usher_api as api;

use super::Actor;

impl Actor {
    /// Subscribes a client to changes of the pod's record. The client receives the number of
    /// changes.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.watchers.subscribe()
    }

    /// Notifies the watching clients if the record has changed.
    pub(super) fn tell_watchers(&mut self) {
        if !self.watchers.are_up_to_date(&self.record) {
            let now = self.now();
            self.watchers.notify(&self.core, &mut self.record, now);
        }
    }

    /// Answers with the status of the pod. The answer has the pod's events if `events` is true.
    /// Fails if the pod has no container.
    pub fn status(&self, events: bool, reply: Reply<api::Pod>) {
        let answer = match self.tasks.is_empty() {
            true => Err(CallError::new(Kind::NotFound, "the pod has no container")),
            false => Ok(self.pod(events)),
        };
        let _ = reply.send(answer);
    }

    /// Archives the record of a pod whose last container is gone, and begins a new record. If all
    /// Creates in the record failed, drops the record instead.
    pub(super) fn keep_record(&mut self) {
        let has_been = self.record.has_container();
        let mut pod = self.pod(true);
        self.record.begin_anew();
        if has_been {
            pod.ended = MessageField::some(timestamp(self.node.clock.wall()));
            self.node.archive.keep(pod);
        }
    }

    fn pod(&self, events: bool) -> api::Pod {
        let pids = self.tasks.iter();
        let pids = pids.filter(|(id, _)| !self.core.has_exited(id));
        let pids = pids.map(|(id, task)| (id, task.init.pid)).collect();
        let now = (self.now(), self.node.clock.wall());
        Status::new(&self.core, &self.record, &self.meta, pids, now).message(events)
    }
}
