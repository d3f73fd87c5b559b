//! Cancellation of work in progress.

use tokio_util::sync::CancellationToken;

/// A cancellation token. Once the token is canceled, the engine ends the work that was begun with
/// it, and all processes that were started for this work. Clones share one state. Kills and
/// deletions take no token, because they have to be done in any case.
#[derive(Clone, Debug, Default)]
pub struct CancelToken(CancellationToken);

impl CancelToken {
    /// Makes a child token, which is canceled with this token, and can also be canceled alone.
    pub fn child(&self) -> CancelToken {
        CancelToken(self.0.child_token())
    }

    /// Cancels the work. A canceled token stays canceled, so new work needs a new token.
    pub fn cancel(&self) {
        self.0.cancel();
    }

    /// True if this token or a parent of it is canceled.
    pub fn is_canceled(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Waits until the work is canceled.
    pub async fn canceled(&self) {
        self.0.cancelled().await;
    }
}
