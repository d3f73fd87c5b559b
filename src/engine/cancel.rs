//! Cancellation of work in progress.

use tokio_util::sync::CancellationToken;

/// A cancellation token: once it is canceled, the engine ends the work that it does under it, with
/// all processes started for that. Clones share one state. Work that has to be done in any case,
/// kills and deletions, takes none.
#[derive(Clone, Debug, Default)]
pub struct CancelToken(CancellationToken);

impl CancelToken {
    /// Makes a child token: it can be canceled alone, and is canceled with this one.
    pub fn child(&self) -> CancelToken {
        CancelToken(self.0.child_token())
    }

    /// Cancels the work, for good; new work needs a new token.
    pub fn cancel(&self) {
        self.0.cancel();
    }

    pub fn is_canceled(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Waits until the work is canceled.
    pub async fn canceled(&self) {
        self.0.cancelled().await;
    }
}
