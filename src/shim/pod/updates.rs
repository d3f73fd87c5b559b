//! The Update call: changes a container's resources. The core decides when each Update begins.

use crate::calls::{CallError, PendingUpdate, Reply};
use usher_core::lifecycle::{ContainerId, Refusal, RequestId, Wanted};
use usher_engine::{EngineError, Resources};

use super::Actor;

impl Actor {
    /// Hands an Update to the core, which decides when the Update begins. The call stays open until
    /// then. `resources` is the OCI specification's `LinuxResources` as JSON.
    pub fn update(&mut self, id: &str, resources: Vec<u8>, reply: Reply<()>) {
        if let Err(error) = self.task(id) {
            return drop(reply.send(Err(error)));
        }
        let core = &mut self.core;
        self.callers
            .drop_abandoned_updates(|request| core.handle_update_abandoned(request));
        let (now, id, request) = (self.now(), ContainerId::from(id), self.callers.next());
        let change = Resources::parse(&resources).size_change();
        match self.core.handle_update(now, &id, request, change) {
            Err(refusal) => drop(reply.send(Err(refusal.into()))),
            Ok(()) => {
                let update = PendingUpdate { resources, reply };
                self.callers.add_update(request, update);
            }
        }
    }

    /// Carries out the waiting Update `request`, and answers its caller. `for_next_process` is true
    /// if the container is between two processes. The shim then only keeps the resources for the
    /// next process. If `for_next_process` is false, an Update whose caller has stopped waiting
    /// changes nothing.
    pub(super) fn begin_update(
        &mut self,
        id: &ContainerId,
        request: RequestId,
        for_next_process: bool,
    ) {
        // Raise the pod's limits before the container's.
        self.settle_size();
        let update = self.callers.take_update(request);
        let (Some(task), Some(update)) = (self.tasks.get_mut(id), update) else {
            return self.core.handle_updated(self.now(), id, false);
        };
        let PendingUpdate { resources, reply } = update;
        if for_next_process {
            task.carryover.keep_resources(&resources);
            return drop(reply.send(Ok(())));
        }
        let living = task.handles.init_and_cancel_token();
        let (init, token) = match living {
            Ok(living) if !reply.is_closed() => living,
            living => {
                let _ = reply.send(living.map(drop));
                return self.core.handle_updated(self.now(), id, false);
            }
        };
        let work = async move {
            let updated = init.update(&resources, &token).await;
            updated.map(|()| resources)
        };
        self.operate_for(
            id,
            Wanted::UntilDeleted,
            reply.into(),
            work,
            Actor::finish_update,
        );
    }

    fn finish_update(
        &mut self,
        id: &ContainerId,
        outcome: Result<Vec<u8>, EngineError>,
        reply: Reply<()>,
    ) {
        if let (Ok(resources), Some(task)) = (&outcome, self.tasks.get_mut(id))
            && task.carryover.first_pid().is_some()
        {
            task.carryover.keep_resources(resources);
        }
        self.core.handle_updated(self.now(), id, outcome.is_ok());
        self.settle_resize();
        let _ = reply.send(outcome.map(drop).map_err(CallError::unknown));
    }

    /// Answers a waiting Update with an error, because the core has refused it.
    pub(super) fn refuse_update(&mut self, request: RequestId, refusal: Refusal) {
        if let Some(update) = self.callers.take_update(request) {
            let _ = update.reply.send(Err(refusal.into()));
        }
    }
}
