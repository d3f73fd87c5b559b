//! Letting callers in, also when there is no descriptor for one more.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Sleep, sleep};

/// How long nobody is let in after that has failed. The caller that could not be let in stays where
/// it is, and asking the kernel for it again at once would take all there is of a processor.
const PAUSE: Duration = Duration::from_millis(100);

/// The callers of a socket. It never ends, and never fails for good.
pub(super) struct Callers {
    socket: UnixListener,
    /// While nobody is let in; nothing else needs a timer.
    pause: Option<Pin<Box<Sleep>>>,
    has_failed: bool,
}

impl Callers {
    pub(super) fn new(socket: UnixListener) -> Callers {
        Callers {
            socket,
            pause: None,
            has_failed: false,
        }
    }
}

impl Stream for Callers {
    type Item = io::Result<UnixStream>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(context));
                self.pause = None;
            }
            match ready!(self.socket.poll_accept(context)) {
                Ok((caller, _)) => {
                    self.has_failed = false;
                    return Poll::Ready(Some(Ok(caller)));
                }
                Err(error) => {
                    // Once for all that follow.
                    if !std::mem::replace(&mut self.has_failed, true) {
                        tracing::warn!(%error, "callers have to wait");
                    }
                    self.pause = Some(Box::pin(sleep(PAUSE)));
                }
            }
        }
    }
}
