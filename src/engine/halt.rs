//! Cancellation of work in progress.

use tokio_util::sync::CancellationToken;

/// A cancellation token: once it is called, the engine ends the work that it does under it, with
/// all processes started for that. Clones share one state. Work that has to be done in any case,
/// kills and deletions, takes none.
#[derive(Clone, Debug, Default)]
pub struct Halt(CancellationToken);

impl Halt {
    /// Makes a child token: it can be called alone, and is called with this one.
    pub fn part(&self) -> Halt {
        Halt(self.0.child_token())
    }

    /// Cancels the work, for good; new work needs a new token.
    pub fn call(&self) {
        self.0.cancel();
    }

    pub fn is_called(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Waits until it is called.
    pub async fn called(&self) {
        self.0.cancelled().await;
    }
}
