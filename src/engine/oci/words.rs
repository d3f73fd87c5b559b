//! What the shim says to the owner of a container, in order, while a disk may stall.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::engine::Work;
use crate::offload::Threads;
use crate::stdio::Rest;

/// Sayings of one container that may wait for its disk.
const WAITING_AT_MOST: usize = 16;

/// The sayings of one container that wait for a disk.
#[derive(Debug)]
pub(super) struct Words {
    thread: Threads,
    room: Arc<Semaphore>,
}

impl Words {
    /// Has `saying` done when all before it are done; lost if too many wait already. What is given back
    /// ends when it is done.
    pub fn say(&self, saying: Rest) -> Option<Work<()>> {
        let Ok(place) = Arc::clone(&self.room).try_acquire_owned() else {
            tracing::debug!("a saying is lost: too many wait for the disk");
            return None;
        };
        let thread = self.thread.clone();
        let said = tokio::spawn(async move {
            if let Err(error) = thread.run(saying).await {
                tracing::debug!(%error, "a saying is lost");
            }
            drop(place);
        });
        Some(Box::pin(async move { drop(said.await) }))
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
