//! Those who ask about the pod: never so many, so loud or so slow that the pod would notice.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::time::{Sleep, sleep};

/// How many are let in at once; whoever comes then is turned away.
const CLIENTS_AT_MOST: usize = 16;

/// What one may say in all. A question has some dozen bytes, and a client few questions.
const SAYS_AT_MOST: usize = 64 * 1024;

/// How much of it is taken at once.
const CHUNK: usize = 1024;

/// How long a client may take to say anything, and to take what it is told.
const PATIENCE: Duration = Duration::from_secs(10);

/// The clients of a socket.
pub struct Clients<C> {
    callers: C,
    /// One reference for each of them, and this one.
    inside: Arc<()>,
}

/// A connection to one of them.
pub struct Client {
    stream: UnixStream,
    may_say: usize,
    /// Until it has said something.
    silent: Option<Pin<Box<Sleep>>>,
    /// While it does not take what it is told.
    deaf: Option<Pin<Box<Sleep>>>,
    _inside: Arc<()>,
}

impl<C> Clients<C> {
    /// The clients among those who call.
    pub fn new(callers: C) -> Clients<C> {
        Clients {
            callers,
            inside: Arc::default(),
        }
    }
}

impl<C: Stream<Item = io::Result<UnixStream>> + Unpin> Stream for Clients<C> {
    type Item = io::Result<Client>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let stream = match ready!(Pin::new(&mut self.callers).poll_next(context)) {
                Some(Ok(stream)) => stream,
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            };
            if Arc::strong_count(&self.inside) > CLIENTS_AT_MOST {
                drop(stream);
                continue;
            }
            return Poll::Ready(Some(Ok(Client {
                stream,
                may_say: SAYS_AT_MOST,
                silent: Some(Box::pin(sleep(PATIENCE))),
                deaf: None,
                _inside: Arc::clone(&self.inside),
            })));
        }
    }
}

impl AsyncRead for Client {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.may_say == 0 {
            // As if it had hung up.
            return Poll::Ready(Ok(()));
        }
        let mut chunk = [0; CHUNK];
        let room = buffer.remaining().min(self.may_say).min(CHUNK);
        let mut some = ReadBuf::new(chunk.get_mut(..room).unwrap_or_default());
        match Pin::new(&mut self.stream).poll_read(context, &mut some) {
            Poll::Ready(outcome) => {
                let said = some.filled();
                buffer.put_slice(said);
                self.silent = None;
                self.may_say = self.may_say.saturating_sub(said.len());
                Poll::Ready(outcome)
            }
            Poll::Pending => match &mut self.silent {
                None => Poll::Pending,
                Some(silent) => {
                    ready!(silent.as_mut().poll(context));
                    Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
                }
            },
        }
    }
}

impl AsyncWrite for Client {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write(context, bytes) {
            Poll::Ready(outcome) => {
                self.deaf = None;
                Poll::Ready(outcome)
            }
            Poll::Pending => {
                let deaf = self.deaf.get_or_insert_with(|| Box::pin(sleep(PATIENCE)));
                ready!(deaf.as_mut().poll(context));
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
