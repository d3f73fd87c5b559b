//! Those who ask about the pod: never so many, so loud or so slow that the pod would notice, or that
//! one who comes and asks is kept out.
//!
//! The socket is root's, and so is whoever gets this far. But root may give up every right and still be
//! root by number, as in the container that `kubectl usher` asks a node by: its group tells it from others,
//! and a process without rights cannot take another one. So who comes with another group than root's is
//! an onlooker.

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

/// How many are let in at once. Then whoever comes takes the place of the one that was told nothing
/// for the longest time.
const CLIENTS_AT_MOST: usize = 16;

/// How many there are with those that were sent away and have not gone yet; whoever comes then is
/// turned away.
const WITH_LEAVING_AT_MOST: usize = 32;

/// What one may say in all. A question has some dozen bytes, and a client few questions.
const SAYS_AT_MOST: usize = 64 * 1024;

/// How much of it is taken at once.
const CHUNK: usize = 1024;

/// How long a client may go without being told anything, and take to take it. A question is answered
/// at once, so whoever has not been told anything for that long has not asked, or not to the end;
/// who watches hears twice as often.
const PATIENCE: Duration = Duration::from_secs(10);

/// The clients of a socket who may tell the pod what to do.
pub struct Clients<C> {
    callers: C,
    seats: Vec<Weak<Seat>>,
    /// Where the others go. As many as there are seats for, all together.
    onlookers: mpsc::UnboundedSender<Client>,
}

/// Those who may only look.
pub struct Onlookers(mpsc::UnboundedReceiver<Client>);

/// A connection to one of them.
pub struct Client {
    seat: Arc<Seat>,
    may_say: usize,
    /// While it is told nothing.
    patience: Pin<Box<Sleep>>,
    /// While it does not take what it is told.
    deaf: Option<Pin<Box<Sleep>>>,
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
    /// The clients among those who call. They come as long as onlookers are heard.
    pub fn new(callers: C) -> (Clients<C>, Onlookers) {
        let (onlookers, others) = mpsc::unbounded_channel();
        let clients = Clients {
            callers,
            seats: Vec::new(),
            onlookers,
        };
        (clients, Onlookers(others))
    }

    /// A seat, if need be that of another; none if even those who were to leave are still here.
    fn seat(&mut self, stream: UnixStream) -> Option<Arc<Seat>> {
        self.seats.retain(|seat| seat.strong_count() > 0);
        if self.seats.len() >= WITH_LEAVING_AT_MOST {
            return None;
        }
        let seats = self.seats.iter().filter_map(Weak::upgrade);
        let staying: Vec<_> = seats.filter(|seat| !seat.heard().leaves).collect();
        if staying.len() >= CLIENTS_AT_MOST
            && let Some(seat) = staying.iter().min_by_key(|seat| seat.heard())
        {
            seat.send_away();
        }
        let seat = Arc::new(Seat::new(stream));
        self.seats.push(Arc::downgrade(&seat));
        Some(seat)
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
            let may_act = is_of_roots_group(&stream);
            let Some(seat) = self.seat(stream) else {
                continue;
            };
            let client = Client {
                seat,
                may_say: SAYS_AT_MOST,
                patience: Box::pin(sleep(PATIENCE)),
                deaf: None,
            };
            if may_act {
                return Poll::Ready(Some(Ok(client)));
            }
            // If nobody hears them any more all of it ends.
            let _ = self.onlookers.send(client);
        }
    }
}

/// Whether the one at the other end came with the group of root, as seen from here.
fn is_of_roots_group(stream: &UnixStream) -> bool {
    stream.peer_cred().is_ok_and(|peer| peer.gid() == 0)
}

impl Stream for Onlookers {
    type Item = io::Result<Client>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match ready!(self.0.poll_recv(context)) {
            Some(client) => Poll::Ready(Some(Ok(client))),
            // The others' server has been shut down first. Callers that end before their server is told to
            // stop make it panic (ttrpc 0.10, `stop_listen`).
            None => Poll::Pending,
        }
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
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    struct Callers(mpsc::UnboundedReceiver<UnixStream>);

    impl Stream for Callers {
        type Item = io::Result<UnixStream>;

        fn poll_next(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Self::Item>> {
            self.0.poll_recv(context).map(|stream| stream.map(Ok))
        }
    }

    /// A door, and those who come through it.
    struct Door {
        callers: mpsc::UnboundedSender<UnixStream>,
        clients: Clients<Callers>,
        onlookers: Onlookers,
    }

    impl Door {
        fn new() -> Door {
            let (callers, called) = mpsc::unbounded_channel();
            let (clients, onlookers) = Clients::new(Callers(called));
            Door {
                callers,
                clients,
                onlookers,
            }
        }

        /// Our end, and theirs.
        async fn enter(&mut self) -> (Client, UnixStream) {
            let (theirs, ours) = UnixStream::pair().unwrap();
            self.callers.send(ours).unwrap();
            // Which of both depends on who runs this.
            let client = poll_fn(
                |context| match Pin::new(&mut self.clients).poll_next(context) {
                    Poll::Pending => Pin::new(&mut self.onlookers).poll_next(context),
                    client => client,
                },
            );
            (client.await.unwrap().unwrap(), theirs)
        }
    }

    fn test(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(test);
    }

    #[test]
    fn who_says_nothing_or_not_all_is_sent_away_however_often_it_says_some_of_it() {
        test(async {
            let mut door = Door::new();
            for every in [None, Some(Duration::from_secs(3))] {
                let begun = Instant::now();
                let (mut client, mut theirs) = door.enter().await;
                theirs.write_all(&[0]).await.unwrap();
                let says = async {
                    let Some(every) = every else { return };
                    while theirs.write_all(&[0]).await.is_ok() {
                        sleep(every).await;
                    }
                };
                let heard = async {
                    let mut byte = [0];
                    loop {
                        match client.read(&mut byte).await {
                            Ok(0) => panic!("it is here"),
                            Ok(_) => {}
                            Err(error) => break error,
                        }
                    }
                };
                let error = tokio::select! {
                    error = heard => error,
                    () = async { says.await; std::future::pending().await } => unreachable!(),
                };
                assert_eq!(error.kind(), io::ErrorKind::TimedOut);
                assert_eq!(begun.elapsed().as_secs(), PATIENCE.as_secs());
            }
        });
    }

    #[test]
    fn who_is_told_something_stays() {
        test(async {
            let mut door = Door::new();
            let (client, _theirs) = door.enter().await;
            let (mut reader, mut writer) = tokio::io::split(client);
            let reading = tokio::spawn(async move { reader.read(&mut [0; 8]).await });
            for _ in 0..20 {
                sleep(Duration::from_secs(5)).await;
                writer.write_all(b"news").await.unwrap();
                assert!(!reading.is_finished());
            }
            let told = Instant::now();
            assert!(reading.await.unwrap().is_err());
            assert_eq!(told.elapsed().as_secs(), PATIENCE.as_secs());
        });
    }

    #[test]
    fn whoever_comes_takes_the_place_of_the_one_that_was_told_nothing_for_the_longest_time() {
        test(async {
            let mut door = Door::new();
            let mut inside = Vec::new();
            for number in 0..CLIENTS_AT_MOST {
                let (mut client, theirs) = door.enter().await;
                // The first one watches.
                if number == 0 {
                    client.write_all(b"news").await.unwrap();
                }
                inside.push((client, theirs));
                sleep(Duration::from_millis(1)).await;
            }
            let (_client, mut newest) = door.enter().await;
            let is_over = async |theirs: &mut UnixStream| {
                let within = Duration::from_millis(100);
                let read = async { theirs.read(&mut [0; 8]).await };
                let read = tokio::time::timeout(within, read).await;
                matches!(read, Ok(Ok(0)))
            };
            let mut over = Vec::new();
            for (number, (_, theirs)) in inside.iter_mut().enumerate() {
                if is_over(theirs).await {
                    over.push(number);
                }
            }
            assert_eq!(over, [1]);
            assert!(!is_over(&mut newest).await);
            // Ours sees it too, and makes room.
            let (client, _) = &mut inside[1];
            assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
        });
    }

    #[test]
    fn onlookers_do_not_end_when_nobody_is_let_in_any_more() {
        test(async {
            let Door {
                clients,
                mut onlookers,
                ..
            } = Door::new();
            drop(clients);
            let next = poll_fn(|context| {
                let polled = Pin::new(&mut onlookers).poll_next(context);
                Poll::Ready(polled.is_pending())
            });
            assert!(next.await);
        });
    }

    #[test]
    fn there_are_never_more_than_twice_as_many_though_those_sent_away_do_not_go() {
        test(async {
            let mut door = Door::new();
            let mut inside = Vec::new();
            for _ in 0..WITH_LEAVING_AT_MOST {
                inside.push(door.enter().await);
            }
            let within = Duration::from_secs(1);
            let more = tokio::time::timeout(within, door.enter()).await;
            assert!(more.is_err());
            inside.clear();
            door.enter().await;
        });
    }
}
