//! The actor that owns one pod.
//!
//! The actor alone holds the [lifecycle core](usher_core::lifecycle) and the table of tasks and their
//! processes. A handler of the Task service sends the actor a message and awaits the answer. If
//! ttrpc drops the handler, the actor's work goes on. The actor itself never waits: work that takes
//! time is a numbered operation (`operations`), which sends the actor a message at its end.

mod actor;
mod alarm;
mod attempts;
mod carryover;
mod cgroup;
mod checkpoint;
mod create;
mod delete;
mod error;
mod exec;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod handles;
mod manual;
mod messages;
mod node;
mod operations;
mod post_start;
mod probe_cpu;
mod process;
mod restart;
mod sandbox;
mod scores;
mod signals;
#[cfg(test)]
pub(crate) mod sim;
mod sizes;
mod start;
mod status;
pub(crate) mod stop;
mod updates;

use std::time::Duration;

use containerd_shim_protos::protobuf::well_known_types::any::Any;
use tokio::sync::{mpsc, oneshot};

use usher_engine::Order;
use usher_linux::stdio::Paths;

pub use actor::Actor;
pub use cgroup::{Figures, Members};
pub use error::{CallError, Kind};
pub use node::Node;
pub use process::{Deleted, Exit, StateAnswer, Status};
pub use sandbox::SandboxState;

/// Maximum number of messages that wait for the actor. The actor handles each in microseconds;
/// senders wait while the mailbox is full.
const MAILBOX: usize = 64;

/// The channel over which the actor answers a call.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, CallError>>;

/// A request for the actor.
type Message = Box<dyn FnOnce(&mut Actor) + Send>;

/// A handle to a pod's actor. Clones lead to the same actor.
#[derive(Clone, Debug)]
pub struct Pod {
    mailbox: mpsc::Sender<Message>,
}

/// The parameters of a Create call.
#[derive(Debug)]
pub struct CreateCall {
    pub order: Order,
    /// Time that the caller waits for the answer.
    pub patience: Option<Duration>,
}

/// The parameters of a Checkpoint call.
#[derive(Debug)]
pub struct CheckpointCall {
    pub id: String,
    /// The directory into which the container is written.
    pub path: String,
    pub options: Option<Any>,
}

/// The parameters of an Exec call.
#[derive(Debug)]
pub struct ExecCall {
    pub id: String,
    pub exec_id: String,
    pub paths: Paths,
    /// The JSON of a process in the OCI specification.
    pub spec: Vec<u8>,
    pub has_deadline: bool,
}

/// The parameters of a Kill call.
#[derive(Debug)]
pub struct KillCall {
    pub id: String,
    pub exec_id: String,
    pub signal: u32,
    pub all: bool,
    /// Time that the caller waits for the answer.
    pub patience: Option<Duration>,
}

impl Pod {
    /// Sends the actor a request, and awaits the answer.
    ///
    /// # Errors
    ///
    /// The actor's error; [`Kind::Unknown`] if the actor is gone, or lost the request in a panic.
    pub async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Actor, Reply<T>) + Send + 'static,
    ) -> Result<T, CallError> {
        let gone = || CallError::unknown("the pod's actor did not answer");
        let (reply, answer) = oneshot::channel();
        let message: Message = Box::new(move |actor| question(actor, reply));
        self.mailbox.send(message).await.map_err(|_| gone())?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }
}
