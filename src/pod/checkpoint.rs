//! Checkpoint and restore: a running container written to files, and one that is made from such
//! files in place of its program being executed.

use std::mem;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use containerd_shim_protos::protobuf::Message;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::shim::oci::CheckpointOptions;

use crate::engine::{Born, Checkpoint, Deletion, EngineError, Init};
use crate::lifecycle::{ContainerId, Wanted};
use crate::plan::Signal;
use crate::process::ExitStatus;
use crate::record::What;
use crate::stdio::Streams;

use super::life::Call;
use super::process::{Deleted, Exit};
use super::signals::SignalOrder;
use super::{Actor, CallError, CheckpointCall, Kind, Reply};

/// A container that runs again, with its streams if they come from a terminal.
type Restored = (Born, Option<Streams>);

impl Actor {
    /// Writes a running container to files, with which it ends if that is asked for.
    pub fn checkpoint(&mut self, call: CheckpointCall, reply: Reply<()>) {
        let (init, checkpoint) = match self.begin_checkpoint(&call) {
            Ok(begun) => begun,
            Err(error) => return drop(reply.send(Err(error))),
        };
        let id = ContainerId::from(call.id.as_str());
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        // The engine removes what it knows of the container by itself.
        let forgetting = checkpoint.exit.then(|| task.life.begin_forgetting());
        let halt = task.life.halt().clone();
        let work = async move { init.checkpoint(&checkpoint, &halt).await };
        let then =
            |actor: &mut Actor, id: &ContainerId, outcome: Result<(), EngineError>, reply| {
                if let Some(forgetting) = forgetting {
                    // Some runtimes leave something to its deletion, and those that do not say so then.
                    actor.forgetting_is_over(id, forgetting, false);
                }
                let _ = Reply::send(reply, outcome.map_err(CallError::unknown));
            };
        self.operate_for(&id, Wanted::UntilDeleted, reply.into(), work, then);
    }

    fn begin_checkpoint(
        &self,
        call: &CheckpointCall,
    ) -> Result<(Arc<dyn Init>, Checkpoint), CallError> {
        let invalid = |error: String| CallError::new(Kind::InvalidArgument, error);
        let task = self.task(&call.id)?;
        task.life.allows(Call::Checkpoint, &call.id)?;
        let (init, _) = task.life.init_and_halt()?;
        let options = options(call.options.as_ref()).map_err(invalid)?;
        Ok((init, checkpoint(call.path.clone(), options)))
    }

    /// Restores a container whose turn has come.
    pub(super) fn restore(&mut self, id: &ContainerId) {
        let now = self.now();
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        let Some(restoration) = task.life.restores() else {
            let reason = "it could not be restored before".to_owned();
            return self.core.handle_released(now, id, Err(reason));
        };
        let (halt, has_terminal) = (task.life.halt().clone(), task.init.paths.terminal);
        // A terminal comes with the process.
        let mut streams = has_terminal.then(|| mem::take(&mut task.init.streams));
        let work = async move {
            let born = restoration.restore(streams.as_mut(), &halt).await?;
            Ok::<_, EngineError>((born, streams))
        };
        self.operate(id, Wanted::UntilDeleted, work, Actor::restored);
    }

    fn restored(&mut self, id: &ContainerId, outcome: Result<Restored, EngineError>) {
        let now = self.now();
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        let pending = task.life.restored();
        match outcome {
            Ok((born, streams)) => {
                if let Some(streams) = streams {
                    task.init.take_streams(streams);
                    task.init.connect_stdin();
                }
                self.born(id, born);
                self.record.note(now, id, What::Executed);
                self.core.handle_released(now, id, Ok(()));
            }
            Err(error) => {
                self.core.handle_released(now, id, Err(error.to_string()));
            }
        }
        for order in pending {
            self.signal(id, order);
        }
    }

    /// A signal for a container that has no process yet. False if it has one.
    pub(super) fn signal_unborn(&mut self, id: &ContainerId, order: SignalOrder) -> bool {
        let SignalOrder {
            signal, request, ..
        } = order;
        let Some(task) = self.tasks.get_mut(id) else {
            return false;
        };
        if !task.life.is_unborn() {
            return false;
        }
        if task.life.keeps_for_later(order) {
            if signal == Signal::KILL {
                task.life.halt().call();
            }
            return true;
        }
        match request {
            Some(_) => {
                let message = format!("task {id} has no process: it is still to be restored");
                let error = CallError::new(Kind::NotFound, message);
                self.signalled(id, order, Err(error));
            }
            None if signal == Signal::KILL => {
                // There is nothing to kill: this is its end.
                self.init_ended(id, ExitStatus::Signal(signal.number()));
            }
            None => {}
        }
        true
    }

    /// Deletes a container that has no process yet: nothing has ended.
    pub(super) fn delete_unborn(&mut self, id: &ContainerId) {
        let deleted = Deleted {
            pid: 0,
            // containerd takes it for unknown.
            exit: Exit {
                code: 0,
                at: UNIX_EPOCH,
            },
        };
        self.delete_now(id, Deletion::Usual, deleted);
    }
}

pub(super) fn options(options: Option<&Any>) -> Result<CheckpointOptions, String> {
    let Some(any) = options.filter(|any| !any.type_url.is_empty()) else {
        return Ok(CheckpointOptions::default());
    };
    if any.type_url.rsplit('/').next() != Some("containerd.runc.v1.CheckpointOptions") {
        return Err(format!(
            "checkpoint options are of type {:?}, expected containerd.runc.v1.CheckpointOptions",
            any.type_url
        ));
    }
    CheckpointOptions::parse_from_bytes(&any.value)
        .map_err(|error| format!("checkpoint options cannot be decoded: {error}"))
}

/// The path is the caller's: containerd has put the one of the options, if any, there.
fn checkpoint(path: String, options: CheckpointOptions) -> Checkpoint {
    let given = |path: String| (!path.is_empty()).then(|| PathBuf::from(path));
    Checkpoint {
        image: PathBuf::from(path),
        work: given(options.work_path),
        exit: options.exit,
        open_tcp: options.open_tcp,
        external_unix_sockets: options.external_unix_sockets,
        terminal: options.terminal,
        file_locks: options.file_locks,
        empty_namespaces: options.empty_namespaces,
        cgroups_mode: options.cgroups_mode,
    }
}
