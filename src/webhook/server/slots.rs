//! Limits on the connections of a listener and on the bytes of their requests.
//!
//! A new connection always gets a slot. If all slots are taken, another connection is evicted.
//! Evicted first is a connection that has not sent a whole request within [`REQUEST_TIMEOUT`]. Next
//! are connections of an address with many connections, connections that have sent no request yet,
//! and the connection that has been idle the longest. Connections whose clients have shown a
//! certificate come last.
//!
//! The bytes of a request count against the limit as they arrive. When there is no room for more,
//! the connection with the largest unfinished request is evicted.

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

/// Time after which a connection with an unfinished request is evicted before any other.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum time that a request waits until there is room for its bytes.
const ROOM_TIMEOUT: Duration = Duration::from_secs(4);

/// Number of connections that one address may have without a disadvantage. The more connections an
/// address has above this number, the earlier they are evicted. An API server has only a few.
const USUAL_PER_ADDRESS: usize = 32;

/// Limits for all connections of a listener together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) connections: usize,
    /// Maximum number of bytes of all unanswered requests together.
    pub(super) bytes: usize,
    /// Size in bytes up to which a request is small.
    pub(super) small: usize,
    /// Part of `bytes` that only small requests may use.
    pub(super) for_small: usize,
}

/// The slots of a listener; clones share them.
#[derive(Clone)]
pub(super) struct Slots {
    table: Arc<Mutex<Table>>,
    /// Wakes the requests that wait for room.
    room: Arc<Notify>,
}

struct Table {
    limits: Limits,
    next: u64,
    connections: BTreeMap<u64, Connection>,
    evictions: u64,
}

struct Connection {
    address: IpAddr,
    is_known: bool,
    phase: Phase,
    since: Instant,
    bytes: usize,
    evict: Arc<Notify>,
}

/// The state of a connection, in the order in which connections are evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// The first request is not complete.
    New,
    /// A later request has begun and is not complete.
    Receiving,
    /// All requests are answered.
    Idle,
    /// A complete request is not answered yet.
    Processing,
}

/// The outcome of counting a request's bytes against the listener's limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Count {
    Counted,
    Full,
    /// The connection has been evicted.
    Evicted,
}

/// A connection's slot, which is freed on drop.
pub(super) struct Slot {
    slots: Slots,
    number: u64,
    evict: Arc<Notify>,
}

impl Slots {
    pub(super) fn new(limits: Limits) -> Slots {
        let table = Table {
            limits,
            next: 0,
            connections: BTreeMap::new(),
            evictions: 0,
        };
        Slots {
            table: Arc::new(Mutex::new(table)),
            room: Arc::default(),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a slot for a connection from this address. If all are taken, evicts another
    /// connection.
    pub(super) fn take(&self, address: IpAddr) -> Slot {
        let mut table = self.table();
        if table.connections.len() >= table.limits.connections {
            table.evict_one(Instant::now());
        }
        let number = table.next;
        table.next = table.next.wrapping_add(1);
        let evict = Arc::new(Notify::new());
        let connection = Connection {
            address,
            is_known: false,
            phase: Phase::New,
            since: Instant::now(),
            bytes: 0,
            evict: Arc::clone(&evict),
        };
        table.connections.insert(number, connection);
        Slot {
            slots: self.clone(),
            number,
            evict,
        }
    }

    /// Number of connections that were evicted so far.
    pub(super) fn evictions(&self) -> u64 {
        self.table().evictions
    }
}

impl Table {
    fn evict_one(&mut self, now: Instant) {
        let mut of_address: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for connection in self.connections.values() {
            let count = of_address.entry(connection.address).or_default();
            *count = count.saturating_add(1);
        }
        let rank = |connection: &Connection| {
            let excess = of_address
                .get(&connection.address)
                .copied()
                .unwrap_or_default();
            (
                connection.is_known,
                !connection.is_overdue(now),
                connection.phase == Phase::Processing,
                Reverse(excess.saturating_sub(USUAL_PER_ADDRESS)),
                connection.phase,
                connection.since,
            )
        };
        let first = self
            .connections
            .iter()
            .min_by_key(|(_, connection)| rank(connection));
        if let Some(number) = first.map(|(number, _)| *number) {
            self.evict(number);
        }
    }

    fn evict(&mut self, number: u64) {
        if let Some(connection) = self.connections.remove(&number) {
            self.evictions = self.evictions.saturating_add(1);
            // If the connection does not wait yet, `notify_one` wakes its next wait.
            connection.evict.notify_one();
        }
    }

    fn bytes(&self) -> usize {
        let bytes = self.connections.values().map(|connection| connection.bytes);
        bytes.fold(0, usize::saturating_add)
    }

    /// Counts more bytes of a request. While there is no room, evicts the connection with the
    /// largest unfinished request, unless that is this connection.
    fn count(&mut self, number: u64, more: usize) -> Count {
        loop {
            let Some(own) = self
                .connections
                .get(&number)
                .map(|connection| connection.bytes)
            else {
                return Count::Evicted;
            };
            let wanted = own.saturating_add(more);
            let limit = match wanted > self.limits.small {
                true => self.limits.bytes.saturating_sub(self.limits.for_small),
                false => self.limits.bytes,
            };
            if self.bytes().saturating_add(more) <= limit {
                if let Some(connection) = self.connections.get_mut(&number) {
                    connection.bytes = wanted;
                }
                return Count::Counted;
            }
            let unfinished = self.connections.iter();
            let unfinished = unfinished.filter(|(_, connection)| connection.phase < Phase::Idle);
            let largest = unfinished.max_by_key(|(other, connection)| match **other == number {
                true => (!connection.is_known, wanted),
                false => (!connection.is_known, connection.bytes),
            });
            match largest.map(|(other, connection)| (*other, connection.bytes)) {
                Some((other, bytes)) if other != number && bytes > 0 => self.evict(other),
                _ => return Count::Full,
            }
        }
    }
}

impl Connection {
    fn is_overdue(&self, now: Instant) -> bool {
        self.phase < Phase::Idle && now.saturating_duration_since(self.since) > REQUEST_TIMEOUT
    }
}

impl Slot {
    /// Returns once the connection is evicted.
    pub(super) async fn evicted(&self) {
        self.evict.notified().await;
    }

    fn change(&self, change: impl FnOnce(&mut Connection)) {
        if let Some(connection) = self.slots.table().connections.get_mut(&self.number) {
            change(connection);
        }
    }

    /// Records that the client has shown a certificate.
    pub(super) fn mark_known(&self) {
        self.change(|connection| connection.is_known = true);
    }

    /// Records that bytes have arrived. On an idle connection they begin a request.
    fn note_bytes(&self) {
        self.change(|connection| {
            if connection.phase == Phase::Idle {
                connection.phase = Phase::Receiving;
                connection.since = Instant::now();
            }
        });
    }

    /// Counts bytes of a request's body, and waits while there is no room. Waiting slows an
    /// attacker down; after an immediate refusal the attacker would only start again.
    ///
    /// # Errors
    ///
    /// If there is no room within [`ROOM_TIMEOUT`], or if this connection is evicted.
    pub(super) async fn count(&self, bytes: usize) -> Result<(), NoRoom> {
        let counted = async {
            loop {
                let mut room = pin!(self.slots.room.notified());
                // Listens for notifications before the bytes are counted, so that no notification
                // is missed.
                room.as_mut().enable();
                match self.slots.table().count(self.number, bytes) {
                    Count::Counted => return Ok(()),
                    Count::Evicted => return Err(NoRoom),
                    Count::Full => {}
                }
                room.await;
            }
        };
        timeout(ROOM_TIMEOUT, counted).await.unwrap_or(Err(NoRoom))
    }

    /// Records that the request is complete.
    pub(super) fn mark_received(&self) {
        self.change(|connection| connection.phase = Phase::Processing);
    }

    /// Records that the request is answered or refused, so that its bytes are free.
    pub(super) fn mark_answered(&self) {
        self.change(|connection| {
            connection.bytes = 0;
            // The connection stays `New` if its first request was refused before it was complete.
            if connection.phase != Phase::New {
                connection.phase = Phase::Idle;
                connection.since = Instant::now();
            }
        });
        self.slots.room.notify_waiters();
    }

    /// True if the connection has never sent a complete request.
    pub(super) fn is_new(&self) -> bool {
        let table = self.slots.table();
        let connection = table.connections.get(&self.number);
        connection.is_none_or(|connection| connection.phase == Phase::New)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.table().connections.remove(&self.number);
        self.slots.room.notify_waiters();
    }
}

/// No room for more bytes of requests, or the connection is evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NoRoom;

/// A stream that tells its slot when bytes arrive.
pub(super) struct MonitoredStream<S> {
    stream: S,
    slot: Arc<Slot>,
}

impl<S> MonitoredStream<S> {
    pub(super) fn new(stream: S, slot: Arc<Slot>) -> MonitoredStream<S> {
        MonitoredStream { stream, slot }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for MonitoredStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.slot.note_bytes();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for MonitoredStream<S> {
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

    fn slots(connections: usize) -> Slots {
        Slots::new(Limits {
            connections,
            bytes: 100,
            small: 10,
            for_small: 40,
        })
    }

    fn is_evicted(slot: &Slot) -> bool {
        !slot.slots.table().connections.contains_key(&slot.number)
    }

    /// A slot whose one request has been answered.
    fn idle(slots: &Slots, address: IpAddr) -> Slot {
        let slot = slots.take(address);
        slot.mark_received();
        slot.mark_answered();
        slot
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_complete_request_within_a_second_is_evicted_first() {
        let slots = slots(3);
        let waiting = idle(&slots, SERVER);
        let begun = idle(&slots, SERVER);
        tokio::time::advance(Duration::from_millis(10)).await;
        begun.note_bytes();
        tokio::time::advance(Duration::from_millis(1500)).await;
        let young = slots.take(STRANGER);
        let newest = slots.take(STRANGER);
        assert!(is_evicted(&begun), "its request is overdue");
        let last = slots.take(STRANGER);
        assert!(is_evicted(&young), "it has sent no request");
        assert!(!is_evicted(&waiting) && !is_evicted(&newest) && !is_evicted(&last));
        young.evicted().await;
        assert_eq!(slots.evictions(), 2);
    }

    #[tokio::test]
    async fn a_connection_of_an_address_with_many_is_evicted_before_others() {
        let slots = slots(USUAL_PER_ADDRESS + 10);
        let strangers: Vec<Slot> = (0..USUAL_PER_ADDRESS + 9)
            .map(|_| idle(&slots, STRANGER))
            .collect();
        let server = slots.take(SERVER);
        for _ in 0..5 {
            slots.take(SERVER);
        }
        assert!(!is_evicted(&server));
        let gone = strangers.iter().filter(|it| is_evicted(it)).count();
        assert_eq!(gone, 1);
        assert!(is_evicted(&strangers[0]), "it was idle the longest");
    }

    #[tokio::test]
    async fn a_client_with_a_certificate_is_evicted_last() {
        let slots = slots(2);
        let known = slots.take(STRANGER);
        known.mark_known();
        let others = [0; 5].map(|_| idle(&slots, SERVER));
        assert!(!is_evicted(&known));
        assert!(is_evicted(&others[0]) && !is_evicted(&others[4]));
    }

    #[tokio::test(start_paused = true)]
    async fn the_largest_unfinished_request_is_evicted_for_small_ones() {
        let slots = slots(30);
        let [large, larger] = [0; 2].map(|_| slots.take(STRANGER));
        assert_eq!(large.count(25).await, Ok(()));
        assert_eq!(larger.count(35).await, Ok(()));
        // The remaining bytes are reserved for small requests.
        assert_eq!(larger.count(1).await, Err(NoRoom));
        let small: Vec<Slot> = (0..5).map(|_| slots.take(SERVER)).collect();
        for slot in &small {
            assert_eq!(slot.count(10).await, Ok(()));
        }
        assert!(is_evicted(&larger) && !is_evicted(&large));
        // A connection is not evicted for the size of a complete request.
        large.mark_received();
        assert!(!is_evicted(&large));
        drop(large);
        assert_eq!(slots.table().bytes(), 50);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_without_room_waits_until_another_is_answered() {
        let slots = slots(30);
        let [first, second] = [0; 2].map(|_| slots.take(STRANGER));
        assert_eq!(first.count(50).await, Ok(()));
        first.mark_received();
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
