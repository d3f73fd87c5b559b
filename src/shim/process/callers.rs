//! Accepts connections, and copes with a lack of file descriptors.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Sleep, sleep};

use crate::connections::{Connection, Connections};

/// Pause after a failed accept. The connection stays in the backlog, and an immediate retry would
/// use a whole processor.
const PAUSE: Duration = Duration::from_millis(100);

/// The stream of connections to a socket. The stream never ends, and after an error it goes on.
pub(super) struct Callers {
    socket: UnixListener,
    /// The timer of the current pause. The stream uses no other timer.
    pause: Option<Pin<Box<Sleep>>>,
    has_failed: bool,
}

/// The stream of connections to the task service. It counts each connection until that is closed.
pub(super) struct CountedCallers {
    callers: Callers,
    connections: Connections,
}

impl Callers {
    pub(super) fn new(socket: UnixListener) -> Callers {
        Callers {
            socket,
            pause: None,
            has_failed: false,
        }
    }

    pub(super) fn counted(self, connections: Connections) -> CountedCallers {
        CountedCallers {
            callers: self,
            connections,
        }
    }
}

impl Stream for CountedCallers {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let caller = ready!(Pin::new(&mut self.callers).poll_next(context));
        let connections = &self.connections;
        Poll::Ready(caller.map(|caller| caller.map(|stream| connections.open(stream))))
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
                    // Only the first of several failures is logged.
                    if !std::mem::replace(&mut self.has_failed, true) {
                        tracing::warn!(%error, "cannot accept connections; callers wait");
                    }
                    self.pause = Some(Box::pin(sleep(PAUSE)));
                }
            }
        }
    }
}
