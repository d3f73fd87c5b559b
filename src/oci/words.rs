//! The shim's messages to the owner of a container. A thread writes them in order, because a disk
//! may stall a write.

use std::sync::Arc;

use tokio::sync::Semaphore;

use usher_engine::Work;
use usher_linux::offload::Threads;
use usher_linux::stdio::Rest;

/// Maximum number of a container's messages that are queued for the disk.
const WAITING_AT_MOST: usize = 16;

#[derive(Debug)]
pub(super) struct Words {
    thread: Threads,
    room: Arc<Semaphore>,
}

impl Words {
    /// Queues a message; `write` is the work that writes the message. The returned work ends when
    /// `write` has ended. If the queue is full, drops the message and returns `None`.
    pub fn enqueue(&self, write: Rest) -> Option<Work<()>> {
        let Ok(place) = Arc::clone(&self.room).try_acquire_owned() else {
            tracing::debug!("message to the container's owner dropped: too many wait for the disk");
            return None;
        };
        let thread = self.thread.clone();
        let written = tokio::spawn(async move {
            if let Err(error) = thread.run(write).await {
                tracing::debug!(%error, "message to the container's owner not written");
            }
            drop(place);
        });
        Some(Box::pin(async move { drop(written.await) }))
    }
}

impl Default for Words {
    fn default() -> Words {
        Words {
            thread: Threads::one_at_a_time(),
            room: Arc::new(Semaphore::new(WAITING_AT_MOST)),
        }
    }
}
