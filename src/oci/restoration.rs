//! A container that is restored from a checkpoint.

use std::sync::Arc;

use async_trait::async_trait;

use usher_engine::{CancelToken, EngineError, NewInit, Restoration};
use usher_linux::stdio::{ProcessStdio, Streams};

use super::checkpoint::Restore;
use super::container::OciContainer;
use super::init::OciInit;

/// A container, its checkpoint, and the streams for its process.
#[derive(Debug)]
pub(super) struct OciRestoration {
    container: Arc<OciContainer>,
    from: Restore,
    stdio: ProcessStdio,
}

impl OciRestoration {
    pub fn new(container: Arc<OciContainer>, from: Restore, stdio: ProcessStdio) -> OciRestoration {
        OciRestoration {
            container,
            from,
            stdio,
        }
    }
}

#[async_trait]
impl Restoration for OciRestoration {
    async fn restore(
        self: Box<Self>,
        terminal: Option<&mut Streams>,
        token: &CancelToken,
    ) -> Result<NewInit, EngineError> {
        let container = self.container;
        let runtime = container.runtime.under(token);
        let restored = runtime.restore(&container.id, &self.from, self.stdio);
        let child = restored.await?;
        let has_stdin = !container.paths.stdin.is_empty();
        if let Some(streams) = terminal
            && let Err(error) = streams.take_over(has_stdin).await
        {
            tracing::warn!(id = container.id, %error, "its terminal is not connected");
        }
        Ok(OciInit::new_init(&container, child))
    }
}
