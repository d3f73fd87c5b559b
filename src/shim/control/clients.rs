//! Clients of the control sockets, with limits on their number, on the size of their requests, and
//! on their time. However many clients connect, the pod does not suffer, and a new client takes the
//! place of an idle one.
//!
//! Only UID 0 can connect to the sockets. A client whose group is not root's is read-only. For
//! example, the container through which `kubectl usher` asks a node has UID 0, but another group.
//! This container cannot change its group, because it has no capabilities. Read-only clients have
//! their own slots, and never take the slot of a client of root. They share a small part of a CPU
//! core ([`Meter`]), and wait if they have used it up.

use std::io;
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep, sleep};

use super::meter::{Meter, Wait};

/// Maximum number of root's clients at a time. A further client evicts another client, in the order
/// of [`LastActivity`].
const MAX_CLIENTS: usize = 16;
/// Maximum number of read-only clients at a time. A further read-only client evicts another one, in
/// the order of [`LastActivity`].
const MAX_READ_ONLY_CLIENTS: usize = 8;

/// Maximum number of bytes that a client may send in all its requests together. A request has a few
/// dozen bytes, and a client makes few requests.
const MAX_REQUEST_BYTES: usize = 64 * 1024;

/// Maximum number of bytes taken by one read.
const MAX_READ_BYTES: usize = 1024;

/// The shim drops a client that has not read for this time, or to which the shim has sent nothing
/// for this time. A client that waits for an answer is safe, because the shim answers at once. A
/// watcher is safe, because the shim sends it at least two updates in this time.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// The stream of root's clients, from both sockets. These clients may give commands for the pod.
pub struct Clients<C> {
    /// Incoming connections of the socket that only root may use, if there is one.
    roots: Option<C>,
    /// Incoming connections of the socket that any process with UID 0 may use.
    shared: C,
    /// Wait before the next connection from `shared` is accepted. It applies to root too, because
    /// only an accepted connection shows the client's group.
    wait: Wait,
    meter: Meter,
    slots: Slots,
    read_only_slots: Slots,
    /// Queue of clients for [`ReadOnlyClients`]. The number of slots limits its length.
    read_only: mpsc::UnboundedSender<Client>,
}

/// The stream of clients that may look at the pod, but may give no commands.
pub struct ReadOnlyClients(mpsc::UnboundedReceiver<Client>);

/// The connection of a client.
pub struct Client {
    slot: Arc<Slot>,
    /// Bytes that the client may still send.
    may_send: usize,
    /// Timer that ends if nothing is sent to the client for [`IDLE_TIMEOUT`].
    idle: Pin<Box<Sleep>>,
    /// Timer that starts when a write to the client blocks.
    blocked: Option<Pin<Box<Sleep>>>,
    /// Meter for a read-only client, and the timer of its current wait; `None` for root.
    metered: Option<(Meter, Wait)>,
}

/// The slots for clients of one kind: for root's clients, or for read-only clients.
struct Slots {
    limit: usize,
    taken: Vec<Weak<Slot>>,
}

/// The part of a client that is needed to evict the client when another client connects.
struct Slot {
    stream: UnixStream,
    activity: Mutex<LastActivity>,
}

/// Activity of a client. Clients are evicted in the order of these values. First come the clients
/// that were never answered, the longest connected first. Then come the answered clients, the
/// longest idle first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct LastActivity {
    is_evicted: bool,
    was_answered: bool,
    at: Instant,
}

impl<C> Clients<C> {
    /// Turns the connections to both sockets into clients. On both sockets, a peer with root's
    /// group becomes one of root's clients, and any other peer a read-only client. `meter` is
    /// charged for the CPU time of read-only clients.
    ///
    /// Any process with UID 0 can connect to `shared`. Only a process with `CAP_DAC_OVERRIDE` can
    /// connect to `roots`. The container of `kubectl usher` lacks this capability, so it never
    /// delays root's connections to `roots`. `roots` is `None` if its socket could not be made.
    ///
    /// Neither stream of clients ends before its server is shut down: with ttrpc 0.10, a server
    /// whose listener has ended panics in `stop_listen`.
    pub fn new(roots: Option<C>, shared: C, meter: Meter) -> (Clients<C>, ReadOnlyClients) {
        let (read_only, others) = mpsc::unbounded_channel();
        let clients = Clients {
            roots,
            shared,
            wait: Wait::default(),
            meter,
            slots: Slots::new(MAX_CLIENTS),
            read_only_slots: Slots::new(MAX_READ_ONLY_CLIENTS),
            read_only,
        };
        (clients, ReadOnlyClients(others))
    }

    /// Gives a connection a slot. If all slots are taken, [evicts a client](Slots::take), even a
    /// busy one. Closes the connection if too many evicted clients are not dropped yet.
    ///
    /// Returns the client if its peer has root's group (`is_root`). Sends a read-only client to
    /// [`ReadOnlyClients`], and returns `None`. Also returns `None` if the connection was closed.
    fn admit(&mut self, stream: UnixStream, is_root: bool) -> Option<Client> {
        let (slots, metered) = match is_root {
            true => (&mut self.slots, None),
            false => {
                let metered = (self.meter.clone(), Wait::default());
                (&mut self.read_only_slots, Some(metered))
            }
        };
        let client = Client {
            slot: slots.take(stream)?,
            may_send: MAX_REQUEST_BYTES,
            idle: Box::pin(sleep(IDLE_TIMEOUT)),
            blocked: None,
            metered,
        };
        if is_root {
            return Some(client);
        }
        // If ReadOnlyClients is gone, the shim is shutting down.
        let _ = self.read_only.send(client);
        None
    }
}

impl<C: Stream<Item = io::Result<UnixStream>> + Unpin> Clients<C> {
    /// Accepts the next connection: from `roots` at once, from `shared` when the meter allows it.
    /// Never ready if both have ended.
    fn poll_connection(&mut self, context: &mut Context<'_>) -> Poll<io::Result<UnixStream>> {
        if let Some(roots) = &mut self.roots
            && let Poll::Ready(Some(connection)) = Pin::new(roots).poll_next(context)
        {
            return Poll::Ready(connection);
        }
        ready!(self.meter.poll_ready(&mut self.wait, context));
        match Pin::new(&mut self.shared).poll_next(context) {
            Poll::Ready(Some(connection)) => {
                self.meter.begin_work();
                Poll::Ready(connection)
            }
            _ => Poll::Pending,
        }
    }
}

impl<C: Stream<Item = io::Result<UnixStream>> + Unpin> Stream for Clients<C> {
    type Item = io::Result<Client>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let stream = match ready!(self.poll_connection(context)) {
                Ok(stream) => stream,
                Err(error) => return Poll::Ready(Some(Err(error))),
            };
            let is_root = has_roots_group(&stream);
            if let Some(client) = self.admit(stream, is_root) {
                return Poll::Ready(Some(Ok(client)));
            }
        }
    }
}

/// True if the peer had root's group, in the shim's user namespace, when it connected. False if the
/// kernel does not tell the group.
fn has_roots_group(stream: &UnixStream) -> bool {
    stream.peer_cred().is_ok_and(|peer| peer.gid() == 0)
}

impl Stream for ReadOnlyClients {
    type Item = io::Result<Client>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match ready!(self.0.poll_recv(context)) {
            Some(client) => Poll::Ready(Some(Ok(client))),
            // The channel has ended, because the server of `Clients` was shut down. This stream
            // must not end before its own server is shut down too (see `Clients::new`).
            None => Poll::Pending,
        }
    }
}

impl Slots {
    fn new(limit: usize) -> Slots {
        Slots {
            limit,
            taken: Vec::new(),
        }
    }

    /// Takes a slot for a new client. If all slots are taken, evicts a client, which still counts
    /// until the server has dropped it. Returns `None` if there are already twice as many clients
    /// as slots. The new connection is then closed.
    fn take(&mut self, stream: UnixStream) -> Option<Arc<Slot>> {
        self.taken.retain(|slot| slot.strong_count() > 0);
        if self.taken.len() >= self.limit.saturating_mul(2) {
            return None;
        }
        let slots = self.taken.iter().filter_map(Weak::upgrade);
        let staying: Vec<_> = slots.filter(|slot| !slot.activity().is_evicted).collect();
        if staying.len() >= self.limit
            && let Some(slot) = staying.iter().min_by_key(|slot| slot.activity())
        {
            slot.evict();
        }
        let slot = Arc::new(Slot::new(stream));
        self.taken.push(Arc::downgrade(&slot));
        Some(slot)
    }
}

impl Slot {
    fn new(stream: UnixStream) -> Slot {
        let activity = LastActivity {
            is_evicted: false,
            was_answered: false,
            at: Instant::now(),
        };
        Slot {
            stream,
            activity: Mutex::new(activity),
        }
    }

    fn activity(&self) -> LastActivity {
        *self.activity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record_write(&self) {
        let mut activity = self.activity.lock().unwrap_or_else(PoisonError::into_inner);
        activity.was_answered = true;
        activity.at = Instant::now();
    }

    /// Marks the client as evicted, and shuts the connection down for both ends, as if the client
    /// had hung up. The server then drops the client, and so frees the slot.
    fn evict(&self) {
        let mut activity = self.activity.lock().unwrap_or_else(PoisonError::into_inner);
        activity.is_evicted = true;
        self.shut(Shutdown::Both);
    }

    fn shut(&self, what: Shutdown) {
        let how = match what {
            Shutdown::Write => nix::sys::socket::Shutdown::Write,
            Shutdown::Read | Shutdown::Both => nix::sys::socket::Shutdown::Both,
        };
        // The call fails if the client has already closed the connection.
        let _ = nix::sys::socket::shutdown(self.stream.as_raw_fd(), how);
    }
}

impl Client {
    /// Ready when nothing was sent to the client for [`IDLE_TIMEOUT`].
    fn poll_idle(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.idle.as_mut().poll(context));
            // The shim may have sent something to the client after the timer was set.
            match self.slot.activity().at.checked_add(IDLE_TIMEOUT) {
                Some(end) if end > Instant::now() => self.idle.as_mut().reset(end),
                _ => return Poll::Ready(()),
            }
        }
    }

    /// Ready when the shim may read from the client: for root at once, for a read-only client when
    /// the meter allows it. The meter then begins to charge the work.
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some((meter, wait)) = &mut self.metered {
            ready!(meter.poll_ready(wait, context));
            meter.begin_work();
        }
        Poll::Ready(())
    }
}

impl AsyncRead for Client {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.may_send == 0 {
            // Report the end of the stream, as if the client had hung up.
            return Poll::Ready(Ok(()));
        }
        // The timer is checked at each read, so that a client cannot stay connected by sending
        // single bytes.
        if self.poll_idle(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let mut chunk = [0; MAX_READ_BYTES];
        let room = buffer.remaining().min(self.may_send).min(MAX_READ_BYTES);
        let chunk = chunk.get_mut(..room).unwrap_or_default();
        let count = loop {
            ready!(self.slot.stream.poll_read_ready(context))?;
            ready!(self.poll_ready(context));
            match self.slot.stream.try_read(chunk) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => break outcome?,
            }
        };
        buffer.put_slice(chunk.get(..count).unwrap_or_default());
        self.may_send = self.may_send.saturating_sub(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Client {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Some((meter, _)) = &self.metered {
            meter.begin_work();
        }
        loop {
            if self.slot.stream.poll_write_ready(context)?.is_pending() {
                let blocked = self
                    .blocked
                    .get_or_insert_with(|| Box::pin(sleep(IDLE_TIMEOUT)));
                ready!(blocked.as_mut().poll(context));
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            match self.slot.stream.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => {
                    self.blocked = None;
                    self.slot.record_write();
                    return Poll::Ready(outcome);
                }
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.slot.shut(Shutdown::Write);
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests;
