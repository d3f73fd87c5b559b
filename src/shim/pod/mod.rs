//! The actor that owns one pod.
//!
//! The actor alone holds the [lifecycle core](usher_core::lifecycle) and the table of tasks and their
//! processes. A handler of the Task service sends the actor a message and awaits the answer. If
//! ttrpc drops the handler, the actor's work goes on. The actor itself never waits: work that takes
//! time is a numbered operation (`operations`), which sends the actor a message at its end.

mod actor;
mod attempts;
mod cgroup;
mod checkpoint;
mod create;
mod delete;
mod exec;
mod manual;
mod messages;
mod operations;
mod post_start;
mod restart;
mod sandbox;
mod scores;
mod signals;
#[cfg(test)]
pub(crate) mod sim;
mod sizes;
mod start;
mod status;
mod stop;
mod updates;

use tokio::sync::{mpsc, oneshot};

use crate::calls::{CallError, Reply};

pub use actor::Actor;

/// Maximum number of messages that wait for the actor. The actor handles each in microseconds;
/// senders wait while the mailbox is full.
const MAILBOX: usize = 64;

/// A request for the actor.
type Message = Box<dyn FnOnce(&mut Actor) + Send>;

/// A handle to a pod's actor. Clones lead to the same actor.
#[derive(Clone, Debug)]
pub struct Pod {
    mailbox: mpsc::Sender<Message>,
}

impl Pod {
    /// Sends the actor a request, and awaits the answer.
    ///
    /// # Errors
    ///
    /// The actor's error; [`CallError::unknown`] if the actor is gone, or lost the request in a panic.
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
