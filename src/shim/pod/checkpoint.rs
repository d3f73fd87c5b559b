//! Checkpoint and restore: writes a running container to files, and creates a container from such
//! files instead of executing its program.

use std::mem;
use std::sync::Arc;

use crate::calls::{CallError, CheckpointCall, Reply};
use crate::record::What;
use usher_core::lifecycle::{ActionError, Call, ContainerId, Wanted};
use usher_engine::{Checkpoint, EngineError, Init, NewInit};
use usher_linux::stdio::Streams;

use super::Actor;

/// The init process of a restored container, and its streams if the container has a terminal.
type Restored = (NewInit, Option<Streams>);

impl Actor {
    /// Writes a running or frozen container to files, and stops the container if the options say
    /// so. Answers when this is done or has failed.
    pub fn checkpoint(&mut self, call: CheckpointCall, reply: Reply<()>) {
        let (init, checkpoint) = match self.begin_checkpoint(&call) {
            Ok(begun) => begun,
            Err(error) => return drop(reply.send(Err(error))),
        };
        let id = ContainerId::from(call.id.as_str());
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        let (token, exits) = (task.handles.cancel_token().clone(), checkpoint.exit);
        let work = async move { init.checkpoint(&checkpoint, &token).await };
        let then = move |actor: &mut Actor, id: &ContainerId, outcome: Result<_, _>, reply| {
            if exits {
                actor.core.handle_checkpointed(actor.now(), id);
            }
            let outcome = outcome.map_err(|error: EngineError| CallError::unknown(error));
            let _ = Reply::send(reply, outcome);
        };
        self.operate_for(&id, Wanted::UntilDeleted, reply.into(), work, then);
    }

    fn begin_checkpoint(
        &mut self,
        call: &CheckpointCall,
    ) -> Result<(Arc<dyn Init>, Checkpoint), CallError> {
        let task = self.task(&call.id)?;
        let id = ContainerId::from(call.id.as_str());
        self.core.allows(&id, Call::Checkpoint)?;
        let (init, _) = task.handles.init_and_cancel_token()?;
        let checkpoint = call.checkpoint()?;
        self.core.handle_checkpoint(&id, checkpoint.exit)?;
        Ok((init, checkpoint))
    }

    /// Restores a container from its checkpoint, when the core releases the container for the first
    /// time. After a failed restore, each later release fails at once.
    pub(super) fn restore(&mut self, id: &ContainerId) {
        let now = self.now();
        let is_first = self.core.handle_restore_begun(id);
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        let restoration = task.handles.take_restoration().filter(|_| is_first);
        let Some(restoration) = restoration else {
            let reason = Err(ActionError::RestoreFailedBefore);
            return self.core.handle_released(now, id, reason);
        };
        let (token, has_terminal) = (
            task.handles.cancel_token().clone(),
            task.init.paths.terminal,
        );
        // Pass the streams to the engine, because the OCI runtime makes the terminal together with
        // the restored process.
        let mut streams = has_terminal.then(|| mem::take(&mut task.init.streams));
        let work = async move {
            let new_init = restoration.restore(streams.as_mut(), &token).await?;
            Ok::<_, EngineError>((new_init, streams))
        };
        self.operate(id, Wanted::UntilDeleted, work, Actor::finish_restore);
    }

    fn finish_restore(&mut self, id: &ContainerId, outcome: Result<Restored, EngineError>) {
        let now = self.now();
        let outcome = outcome.map(|(new_init, streams)| {
            if let (Some(streams), Some(task)) = (streams, self.tasks.get_mut(id)) {
                task.init.set_streams(streams);
                task.init.connect_stdin();
            }
            self.take_init(id, new_init);
            self.watch_cgroup(id);
            self.record.note(now, id, What::Executed);
        });
        self.core
            .handle_restored(now, id, outcome.map_err(ActionError::reported));
    }
}
