//! The connections to a listener: a new one always finds a seat, if need be that of another.
//!
//! The first to go is a connection that has sent no whole request within [`WHOLE_WITHIN`]; then one of an
//! address that has many; then one that has asked nothing yet, or for the longest time. A connection whose
//! client is known by its certificate goes last. Bytes of a request count when they have come, and the
//! largest request that is not whole gives way.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

/// A connection that has not sent a whole request by then gives way to any other.
const WHOLE_WITHIN: Duration = Duration::from_secs(1);

/// For so long a request whose bytes have no room waits for some.
const ROOM_WITHIN: Duration = Duration::from_secs(4);

/// Connections that an address may have before it counts that they are many. API servers have a few.
const USUAL: usize = 32;

/// Limits for all connections of a listener together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) connections: usize,
    /// Bytes of requests that are under way.
    pub(super) bytes: usize,
    /// A request is small up to so many bytes; larger ones leave `for_small` to those.
    pub(super) small: usize,
    pub(super) for_small: usize,
}

/// The seats of a listener; clones share them.
#[derive(Clone)]
pub(super) struct Seats {
    table: Arc<Mutex<Table>>,
    /// Wakes the requests that wait for room.
    room: Arc<Notify>,
}

struct Table {
    bounds: Bounds,
    next: u64,
    taken: BTreeMap<u64, Taken>,
    sent_away: u64,
}

/// A connection.
struct Taken {
    address: IpAddr,
    is_known: bool,
    phase: Phase,
    since: Instant,
    bytes: usize,
    leave: Arc<Notify>,
}

/// The state of a connection, in the order in which connections give way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// The first request is not whole.
    New,
    /// A later request has begun and is not whole.
    Asking,
    /// All requests are answered.
    Idle,
    /// A whole request is not answered yet.
    Answered,
}

/// The outcome of counting bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Count {
    Counted,
    /// There is no room now.
    Full,
    /// The connection has to leave.
    Gone,
}

/// A connection's seat, until it is dropped.
pub(super) struct Seat {
    seats: Seats,
    number: u64,
    leave: Arc<Notify>,
}

// === impl Seats ===

impl Seats {
    pub(super) fn new(bounds: Bounds) -> Seats {
        let table = Table {
            bounds,
            next: 0,
            taken: BTreeMap::new(),
            sent_away: 0,
        };
        Seats {
            table: Arc::new(Mutex::new(table)),
            room: Arc::default(),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A seat for a connection of this address. If all are taken, another connection is told to leave.
    pub(super) fn take(&self, address: IpAddr) -> Seat {
        let mut table = self.table();
        if table.taken.len() >= table.bounds.connections {
            table.send_first_away(Instant::now());
        }
        let number = table.next;
        table.next = table.next.wrapping_add(1);
        let leave = Arc::new(Notify::new());
        let taken = Taken {
            address,
            is_known: false,
            phase: Phase::New,
            since: Instant::now(),
            bytes: 0,
            leave: Arc::clone(&leave),
        };
        table.taken.insert(number, taken);
        Seat {
            seats: self.clone(),
            number,
            leave,
        }
    }

    /// Connections that had to leave so far.
    pub(super) fn sent_away(&self) -> u64 {
        self.table().sent_away
    }
}

// === impl Table ===

impl Table {
    fn send_first_away(&mut self, now: Instant) {
        let mut of_address: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for taken in self.taken.values() {
            let count = of_address.entry(taken.address).or_default();
            *count = count.saturating_add(1);
        }
        let rank = |taken: &Taken| {
            let excess = of_address.get(&taken.address).copied().unwrap_or_default();
            (
                taken.is_known,
                !taken.is_overdue(now),
                taken.phase == Phase::Answered,
                Reverse(excess.saturating_sub(USUAL)),
                taken.phase,
                taken.since,
            )
        };
        let first = self.taken.iter().min_by_key(|(_, taken)| rank(taken));
        if let Some(number) = first.map(|(number, _)| *number) {
            self.send_away(number);
        }
    }

    fn send_away(&mut self, number: u64) {
        if let Some(taken) = self.taken.remove(&number) {
            self.sent_away = self.sent_away.saturating_add(1);
            // Also if it does not listen yet.
            taken.leave.notify_one();
        }
    }

    fn bytes(&self) -> usize {
        let bytes = self.taken.values().map(|taken| taken.bytes);
        bytes.fold(0, usize::saturating_add)
    }

    /// Counts more bytes of a request. If there is no room, a larger request that is not whole gives way.
    fn count(&mut self, number: u64, more: usize) -> Count {
        loop {
            let Some(own) = self.taken.get(&number).map(|taken| taken.bytes) else {
                return Count::Gone;
            };
            let wanted = own.saturating_add(more);
            let limit = match wanted > self.bounds.small {
                true => self.bounds.bytes.saturating_sub(self.bounds.for_small),
                false => self.bounds.bytes,
            };
            if self.bytes().saturating_add(more) <= limit {
                if let Some(taken) = self.taken.get_mut(&number) {
                    taken.bytes = wanted;
                }
                return Count::Counted;
            }
            let unfinished = self.taken.iter();
            let unfinished = unfinished.filter(|(_, taken)| taken.phase < Phase::Idle);
            let largest = unfinished.max_by_key(|(other, taken)| match **other == number {
                true => (!taken.is_known, wanted),
                false => (!taken.is_known, taken.bytes),
            });
            match largest.map(|(other, taken)| (*other, taken.bytes)) {
                Some((other, bytes)) if other != number && bytes > 0 => self.send_away(other),
                _ => return Count::Full,
            }
        }
    }
}

// === impl Taken ===

impl Taken {
    fn is_overdue(&self, now: Instant) -> bool {
        self.phase < Phase::Idle && now.saturating_duration_since(self.since) > WHOLE_WITHIN
    }
}

// === impl Seat ===

impl Seat {
    /// Returns once the connection has to leave.
    pub(super) async fn sent_away(&self) {
        self.leave.notified().await;
    }

    fn change(&self, change: impl FnOnce(&mut Taken)) {
        if let Some(taken) = self.seats.table().taken.get_mut(&self.number) {
            change(taken);
        }
    }

    /// Notes that the client has shown a certificate.
    pub(super) fn mark_known(&self) {
        self.change(|taken| taken.is_known = true);
    }

    /// Notes that bytes have come: where nothing is asked, a request begins.
    fn note_bytes(&self) {
        self.change(|taken| {
            if taken.phase == Phase::Idle {
                taken.phase = Phase::Asking;
                taken.since = Instant::now();
            }
        });
    }

    /// Counts bytes of a request's body, and waits for room if there is none: a refusal would only have a
    /// stranger begin again.
    ///
    /// # Errors
    ///
    /// If no room comes within [`ROOM_WITHIN`], or if this connection has to leave.
    pub(super) async fn count(&self, bytes: usize) -> Result<(), Crowded> {
        let counted = async {
            loop {
                let mut room = pin!(self.seats.room.notified());
                // Room that comes from here on is not missed.
                room.as_mut().enable();
                match self.seats.table().count(self.number, bytes) {
                    Count::Counted => return Ok(()),
                    Count::Gone => return Err(Crowded),
                    Count::Full => {}
                }
                room.await;
            }
        };
        timeout(ROOM_WITHIN, counted).await.unwrap_or(Err(Crowded))
    }

    /// Notes that all of a request has come.
    pub(super) fn mark_whole(&self) {
        self.change(|taken| taken.phase = Phase::Answered);
    }

    /// Notes that the request is answered, or refused; its bytes are gone.
    pub(super) fn mark_answered(&self) {
        self.change(|taken| {
            taken.bytes = 0;
            // A request that was never whole is no merit.
            if taken.phase != Phase::New {
                taken.phase = Phase::Idle;
                taken.since = Instant::now();
            }
        });
        self.seats.room.notify_waiters();
    }

    /// True if the connection has never sent a whole request.
    pub(super) fn is_new(&self) -> bool {
        let table = self.seats.table();
        let taken = table.taken.get(&self.number);
        taken.is_none_or(|taken| taken.phase == Phase::New)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.table().taken.remove(&self.number);
        self.seats.room.notify_waiters();
    }
}

/// There is no room for more bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Crowded;

/// A stream whose seat is told when bytes come.
pub(super) struct Heard<S> {
    stream: S,
    seat: Arc<Seat>,
}

// === impl Heard ===

impl<S> Heard<S> {
    pub(super) fn new(stream: S, seat: Arc<Seat>) -> Heard<S> {
        Heard { stream, seat }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Heard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.seat.note_bytes();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Heard<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    const STRANGER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

    fn seats(connections: usize) -> Seats {
        Seats::new(Bounds {
            connections,
            bytes: 100,
            small: 10,
            for_small: 40,
        })
    }

    /// True if it has been told to leave.
    fn has_to_leave(seat: &Seat) -> bool {
        !seat.seats.table().taken.contains_key(&seat.number)
    }

    fn asked(seats: &Seats, address: IpAddr) -> Seat {
        let seat = seats.take(address);
        seat.mark_whole();
        seat.mark_answered();
        seat
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_whole_request_within_a_second_goes_first() {
        let seats = seats(3);
        let idle = asked(&seats, SERVER);
        let begun = asked(&seats, SERVER);
        tokio::time::advance(Duration::from_millis(10)).await;
        begun.note_bytes();
        tokio::time::advance(Duration::from_millis(1500)).await;
        let young = seats.take(STRANGER);
        let newest = seats.take(STRANGER);
        assert!(has_to_leave(&begun), "overdue");
        let last = seats.take(STRANGER);
        assert!(has_to_leave(&young), "it has asked nothing");
        assert!(!has_to_leave(&idle) && !has_to_leave(&newest) && !has_to_leave(&last));
        young.sent_away().await;
        assert_eq!(seats.sent_away(), 2);
    }

    #[tokio::test]
    async fn an_address_with_many_connections_gives_way_to_others() {
        let seats = seats(USUAL + 10);
        let strangers: Vec<Seat> = (0..USUAL + 9).map(|_| asked(&seats, STRANGER)).collect();
        let server = seats.take(SERVER);
        for _ in 0..5 {
            seats.take(SERVER);
        }
        assert!(!has_to_leave(&server));
        let gone = strangers.iter().filter(|it| has_to_leave(it)).count();
        assert_eq!(gone, 1);
        assert!(has_to_leave(&strangers[0]), "idle for the longest time");
    }

    #[tokio::test]
    async fn a_known_client_goes_last() {
        let seats = seats(2);
        let known = seats.take(STRANGER);
        known.mark_known();
        let others = [0; 5].map(|_| asked(&seats, SERVER));
        assert!(!has_to_leave(&known));
        assert!(has_to_leave(&others[0]) && !has_to_leave(&others[4]));
    }

    #[tokio::test(start_paused = true)]
    async fn the_largest_request_gives_way_to_small_ones() {
        let seats = seats(30);
        let [large, larger] = [0; 2].map(|_| seats.take(STRANGER));
        assert_eq!(large.count(25).await, Ok(()));
        assert_eq!(larger.count(35).await, Ok(()));
        // What is left is for small ones.
        assert_eq!(larger.count(1).await, Err(Crowded));
        let small: Vec<Seat> = (0..5).map(|_| seats.take(SERVER)).collect();
        for seat in &small {
            assert_eq!(seat.count(10).await, Ok(()));
        }
        assert!(has_to_leave(&larger) && !has_to_leave(&large));
        // A request that is whole is answered.
        large.mark_whole();
        assert!(!has_to_leave(&large));
        drop(large);
        assert_eq!(seats.table().bytes(), 50);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_without_room_waits_until_another_is_answered() {
        let seats = seats(30);
        let [first, second] = [0; 2].map(|_| seats.take(STRANGER));
        assert_eq!(first.count(50).await, Ok(()));
        first.mark_whole();
        let begin = Instant::now();
        let answer = async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            first.mark_answered();
        };
        let (counted, ()) = tokio::join!(second.count(20), answer);
        assert_eq!(counted, Ok(()));
        assert_eq!(begin.elapsed(), Duration::from_secs(2));
    }
}
