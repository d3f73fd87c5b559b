//! The actor's answers to `usher`: the status of the pod, notices of changes, and the archived record.

use protobuf::MessageField;
use tokio::sync::watch;

use crate::events::timestamp;
use crate::record::What;
use crate::status::Status;
use usher_api as api;
use usher_core::lifecycle::Phase;

use super::{Actor, CallError, Kind, Reply};

/// The clients that watch the pod. They receive the number of changes in the pod's record.
#[derive(Debug, Default)]
pub(super) struct Watchers(watch::Sender<u64>);

impl Actor {
    /// Subscribes to changes of the pod.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.watchers.0.subscribe()
    }

    /// Notifies the watching clients if the record has changed.
    pub(super) fn tell_watchers(&mut self) {
        let changes = self.record.changes();
        if *self.watchers.0.borrow() == changes {
            return;
        }
        let now = self.now();
        let view = self.core.view(now);
        let is_ready = view.phase == Phase::Running && view.ready.0 == view.ready.1;
        let stages = view.stages.iter();
        let stages =
            stages.filter_map(|stage| Some((stage.names.first()?.as_str(), stage.is_done)));
        self.record.progress(now, stages, is_ready);
        self.watchers.0.send_replace(changes);
    }

    /// Answers with the status of the pod. The answer has the pod's events if `events` is true.
    pub fn status(&self, events: bool, reply: Reply<api::Pod>) {
        let answer = match self.tasks.is_empty() {
            true => Err(CallError::new(Kind::NotFound, "the pod has no container")),
            false => Ok(self.pod(events)),
        };
        let _ = reply.send(answer);
    }

    /// Archives the record of a pod whose last container is gone, and begins a new one.
    pub(super) fn keep_record(&mut self) {
        // The record of a long-lived pod may have dropped the Created event already.
        let has_been = self.record.forgotten() > 0
            || self
                .record
                .events()
                .any(|(_, event)| event.what == What::Created);
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
