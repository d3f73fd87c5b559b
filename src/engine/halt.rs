//! Ending what is under way.

use tokio_util::sync::CancellationToken;

/// Says that what is under way is of no use any more: what the engine does under it ends, with all that
/// it has begun. Clones are the same one. What must be done in any case, kills and deletions, is done
/// under none.
#[derive(Clone, Debug, Default)]
pub struct Halt(CancellationToken);

impl Halt {
    /// One for a part of what is done under this one: it can be called alone, and is with this one.
    pub fn part(&self) -> Halt {
        Halt(self.0.child_token())
    }

    /// Calls it. There is no way back; what begins anew does so under another.
    pub fn call(&self) {
        self.0.cancel();
    }

    /// Whether it was called.
    pub fn is_called(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Waits until it is called.
    pub async fn called(&self) {
        self.0.cancelled().await;
    }
}
