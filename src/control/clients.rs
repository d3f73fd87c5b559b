//! Those who ask about the pod: never so many, so loud or so slow that the pod would notice, or that
//! one who comes and asks is kept out.
//!
//! The sockets are root's, and so is whoever gets this far. But root may give up every right and still be
//! root by number, as in the container that `kubectl usher` asks a node by: its group tells it from others,
//! and a process without rights cannot take another one. So a client that comes with another group than
//! root's is read-only. It has a seat among those of read-only clients, is let in and heard as far as their
//! share of a core pays for it, and never takes the place of root.

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

use super::meter::{Meter, Turn};

/// The most clients of root, and read-only ones, that are let in at once. A further one takes the place of the
/// one of its kind that was told nothing for the longest time.
const CLIENTS_AT_MOST: usize = 16;
const READ_ONLY_AT_MOST: usize = 8;

/// What one may say in all. A question has some dozen bytes, and a client few questions.
const SAYS_AT_MOST: usize = 64 * 1024;

/// How much of it is taken at once.
const CHUNK: usize = 1024;

/// How long a client may go without being told anything, and take to take it. A question is answered
/// at once, so whoever has not been told anything for that long has not asked, or not to the end;
/// who watches hears twice as often.
const PATIENCE: Duration = Duration::from_secs(10);

/// The clients who may tell the pod what to do, by either socket.
pub struct Clients<C> {
    /// Callers at the socket for root alone, if there is one.
    roots: Option<C>,
    /// Callers at the socket for all.
    anyone: C,
    /// The turn of the next of those: nobody knows who it is before it is let in.
    turn: Turn,
    meter: Meter,
    seats: Seats,
    read_only_seats: Seats,
    /// The way to those who serve read-only clients: as many as there are seats for.
    read_only: mpsc::UnboundedSender<Client>,
}

/// Those who may only look.
pub struct ReadOnlyClients(mpsc::UnboundedReceiver<Client>);

/// A connection to one of them.
pub struct Client {
    seat: Arc<Seat>,
    may_say: usize,
    /// While it is told nothing.
    patience: Pin<Box<Sleep>>,
    /// While it does not take what it is told.
    deaf: Option<Pin<Box<Sleep>>>,
    /// The meter and the turn that a read-only client is heard by; `None` for root.
    metered: Option<(Meter, Turn)>,
}

/// The seats of clients of one kind.
struct Seats {
    at_most: usize,
    taken: Vec<Weak<Seat>>,
}

/// What a client and those who come after it know of it.
struct Seat {
    stream: UnixStream,
    heard: Mutex<Heard>,
}

/// When a client was told something for the last time, or came. In the order in which clients are
/// sent away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Heard {
    leaves: bool,
    /// It has asked something.
    anything: bool,
    at: Instant,
}

impl<C> Clients<C> {
    /// The clients among those who call at the socket for root alone, and at the one for all, of which `meter`
    /// pays for the read-only ones. Neither kind of callers ends before its server is shut down: callers that
    /// end before make a server panic when it is told to stop (ttrpc 0.10, `stop_listen`).
    pub fn new(roots: Option<C>, anyone: C, meter: Meter) -> (Clients<C>, ReadOnlyClients) {
        let (read_only, others) = mpsc::unbounded_channel();
        let clients = Clients {
            roots,
            anyone,
            turn: Turn::default(),
            meter,
            seats: Seats::new(CLIENTS_AT_MOST),
            read_only_seats: Seats::new(READ_ONLY_AT_MOST),
            read_only,
        };
        (clients, ReadOnlyClients(others))
    }

    /// Gives a caller a seat. Returns root's client; a read-only one goes to those who serve its kind.
    fn admit(&mut self, stream: UnixStream, is_root: bool) -> Option<Client> {
        let (seats, metered) = match is_root {
            true => (&mut self.seats, None),
            false => {
                let metered = (self.meter.clone(), Turn::default());
                (&mut self.read_only_seats, Some(metered))
            }
        };
        let client = Client {
            seat: seats.take(stream)?,
            may_say: SAYS_AT_MOST,
            patience: Box::pin(sleep(PATIENCE)),
            deaf: None,
            metered,
        };
        if is_root {
            return Some(client);
        }
        // If nobody hears them any more all of it ends.
        let _ = self.read_only.send(client);
        None
    }
}

impl<C: Stream<Item = io::Result<UnixStream>> + Unpin> Clients<C> {
    /// The next caller: at root's socket at once, at the other when its turn has come.
    fn poll_caller(&mut self, context: &mut Context<'_>) -> Poll<io::Result<UnixStream>> {
        if let Some(roots) = &mut self.roots
            && let Poll::Ready(Some(caller)) = Pin::new(roots).poll_next(context)
        {
            return Poll::Ready(caller);
        }
        ready!(self.meter.poll_turn(&mut self.turn, context));
        match Pin::new(&mut self.anyone).poll_next(context) {
            Poll::Ready(Some(caller)) => {
                self.meter.begin();
                Poll::Ready(caller)
            }
            _ => Poll::Pending,
        }
    }
}

impl<C: Stream<Item = io::Result<UnixStream>> + Unpin> Stream for Clients<C> {
    type Item = io::Result<Client>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let stream = match ready!(self.poll_caller(context)) {
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

/// True if the process at the other end came with the group of root, as seen from here.
fn has_roots_group(stream: &UnixStream) -> bool {
    stream.peer_cred().is_ok_and(|peer| peer.gid() == 0)
}

impl Stream for ReadOnlyClients {
    type Item = io::Result<Client>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match ready!(self.0.poll_recv(context)) {
            Some(client) => Poll::Ready(Some(Ok(client))),
            // The others' server has been shut down first.
            None => Poll::Pending,
        }
    }
}

// === impl Seats ===

impl Seats {
    fn new(at_most: usize) -> Seats {
        Seats {
            at_most,
            taken: Vec::new(),
        }
    }

    /// A seat, if need be that of another client. None while as many as there are seats were sent away and
    /// have not gone.
    fn take(&mut self, stream: UnixStream) -> Option<Arc<Seat>> {
        self.taken.retain(|seat| seat.strong_count() > 0);
        if self.taken.len() >= self.at_most.saturating_mul(2) {
            return None;
        }
        let seats = self.taken.iter().filter_map(Weak::upgrade);
        let staying: Vec<_> = seats.filter(|seat| !seat.heard().leaves).collect();
        if staying.len() >= self.at_most
            && let Some(seat) = staying.iter().min_by_key(|seat| seat.heard())
        {
            seat.send_away();
        }
        let seat = Arc::new(Seat::new(stream));
        self.taken.push(Arc::downgrade(&seat));
        Some(seat)
    }
}

// === impl Seat ===

impl Seat {
    fn new(stream: UnixStream) -> Seat {
        let heard = Heard {
            leaves: false,
            anything: false,
            at: Instant::now(),
        };
        Seat {
            stream,
            heard: Mutex::new(heard),
        }
    }

    fn heard(&self) -> Heard {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hears(&self) {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.anything = true;
        heard.at = Instant::now();
    }

    /// As if it had hung up: its connection is over for both ends.
    fn send_away(&self) {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.leaves = true;
        self.shut(Shutdown::Both);
    }

    fn shut(&self, what: Shutdown) {
        let how = match what {
            Shutdown::Write => nix::sys::socket::Shutdown::Write,
            Shutdown::Read | Shutdown::Both => nix::sys::socket::Shutdown::Both,
        };
        // It fails if the other end has gone already.
        let _ = nix::sys::socket::shutdown(self.stream.as_raw_fd(), how);
    }
}

// === impl Client ===

impl Client {
    /// When a client that is told nothing has been here for too long.
    fn poll_patience(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.patience.as_mut().poll(context));
            // It may have been told something meanwhile.
            match self.seat.heard().at.checked_add(PATIENCE) {
                Some(end) if end > Instant::now() => self.patience.as_mut().reset(end),
                _ => return Poll::Ready(()),
            }
        }
    }

    /// Ready when the bytes of a client may be read.
    fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some((meter, turn)) = &mut self.metered {
            ready!(meter.poll_turn(turn, context));
            meter.begin();
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
        if self.may_say == 0 {
            // As if it had hung up.
            return Poll::Ready(Ok(()));
        }
        // Also while it says something, byte by byte.
        if self.poll_patience(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let mut chunk = [0; CHUNK];
        let room = buffer.remaining().min(self.may_say).min(CHUNK);
        let chunk = chunk.get_mut(..room).unwrap_or_default();
        let said = loop {
            ready!(self.seat.stream.poll_read_ready(context))?;
            ready!(self.poll_turn(context));
            match self.seat.stream.try_read(chunk) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => break outcome?,
            }
        };
        buffer.put_slice(chunk.get(..said).unwrap_or_default());
        self.may_say = self.may_say.saturating_sub(said);
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
            meter.begin();
        }
        loop {
            if self.seat.stream.poll_write_ready(context)?.is_pending() {
                let deaf = self.deaf.get_or_insert_with(|| Box::pin(sleep(PATIENCE)));
                ready!(deaf.as_mut().poll(context));
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            match self.seat.stream.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => {
                    self.deaf = None;
                    self.seat.hears();
                    return Poll::Ready(outcome);
                }
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.seat.shut(Shutdown::Write);
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests;
