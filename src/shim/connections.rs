//! The open connections to the task service.

use std::collections::BTreeSet;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::watch;

/// The open connections to the task service. Each connection has a number, in the order in which
/// they were opened.
#[derive(Clone, Debug, Default)]
pub struct Connections(watch::Sender<Open>);

#[derive(Debug, Default)]
struct Open {
    numbers: BTreeSet<u64>,
    next: u64,
}

/// A connection to the task service. It counts as open until it is dropped.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    number: u64,
    connections: Connections,
}

impl Connections {
    /// Counts a new connection as open.
    pub(crate) fn open(&self, stream: UnixStream) -> Connection {
        let mut number = 0;
        self.0.send_modify(|open| {
            number = open.next;
            open.numbers.insert(number);
            open.next = number.saturating_add(1);
        });
        Connection {
            stream,
            number,
            connections: self.clone(),
        }
    }

    /// Waits until all connections that are open at the time of this call are closed. Connections
    /// that are opened later do not matter.
    pub fn closed(&self) -> impl Future<Output = ()> + Send + use<> {
        let later = self.0.borrow().next;
        let mut connections = self.0.subscribe();
        async move {
            let all_closed = |open: &Open| open.numbers.range(..later).next().is_none();
            // The only error is that all senders are dropped, so no connection is open.
            let _ = connections.wait_for(all_closed).await;
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.connections.0.send_modify(|open| {
            open.numbers.remove(&self.number);
        });
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    fn is_ready(future: Pin<&mut impl Future<Output = ()>>) -> bool {
        future
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_ready()
    }

    #[tokio::test]
    async fn only_connections_that_were_open_before_are_awaited() {
        let connections = Connections::default();
        let connect = || connections.open(UnixStream::pair().unwrap().0);
        let (one, other) = (connect(), connect());
        let mut closed = std::pin::pin!(connections.closed());
        let later = connect();
        assert!(!is_ready(closed.as_mut()));
        drop(other);
        assert!(!is_ready(closed.as_mut()));
        drop(one);
        assert!(is_ready(closed.as_mut()));
        let mut closed = std::pin::pin!(connections.closed());
        assert!(!is_ready(closed.as_mut()));
        drop(later);
        assert!(is_ready(closed.as_mut()));
    }

    #[tokio::test]
    async fn without_a_connection_there_is_no_wait() {
        let connections = Connections::default();
        drop(connections.open(UnixStream::pair().unwrap().0));
        let mut closed = std::pin::pin!(connections.closed());
        assert!(is_ready(closed.as_mut()));
    }
}
