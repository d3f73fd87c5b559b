use std::future::poll_fn;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::clock::Clock;

use super::super::meter::tests::{ManualClock, TWENTIETH, in_virtual_time as test};
use super::*;

struct Callers(mpsc::UnboundedReceiver<UnixStream>);

impl Stream for Callers {
    type Item = io::Result<UnixStream>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|stream| stream.map(Ok))
    }
}

/// Both control sockets, and the clients that connect to them.
struct Entrance {
    clock: Arc<ManualClock>,
    roots: mpsc::UnboundedSender<UnixStream>,
    shared: mpsc::UnboundedSender<UnixStream>,
    clients: Clients<Callers>,
    read_only: ReadOnlyClients,
}

impl Entrance {
    fn new() -> Entrance {
        let (roots, root_calls) = mpsc::unbounded_channel();
        let (shared, calls) = mpsc::unbounded_channel();
        let clock = Arc::new(ManualClock::default());
        let meter = Meter::new(clock.clone());
        let (clients, read_only) = Clients::new(Some(Callers(root_calls)), Callers(calls), meter);
        Entrance {
            clock,
            roots,
            shared,
            clients,
            read_only,
        }
    }

    /// The next client, whether it is root's or read-only.
    async fn next(&mut self) -> Client {
        // The group that runs the test decides whether the client is read-only.
        let client = poll_fn(
            |context| match Pin::new(&mut self.clients).poll_next(context) {
                Poll::Pending => Pin::new(&mut self.read_only).poll_next(context),
                client => client,
            },
        );
        client.await.unwrap().unwrap()
    }

    /// Both ends of a new connection to root's socket.
    async fn enter(&mut self) -> (Client, UnixStream) {
        let (theirs, ours) = UnixStream::pair().unwrap();
        self.roots.send(ours).unwrap();
        (self.next().await, theirs)
    }

    /// Both ends of a new client that is given a slot directly, without a connection to a socket.
    /// `None` if the client is rejected.
    async fn admit(&mut self, is_root: bool) -> Option<(Client, UnixStream)> {
        let (theirs, ours) = UnixStream::pair().unwrap();
        let client = match self.clients.admit(ours, is_root) {
            Some(client) => client,
            None => self.read_only.0.try_recv().ok()?,
        };
        Some((client, theirs))
    }

    /// Charges read-only clients twice the CPU time that they may use without a pause.
    async fn spend(&mut self) {
        self.clients.meter.begin_work();
        self.clock.spend(Duration::from_millis(100));
        tokio::task::yield_now().await;
    }
}

/// True if the client finds its connection closed: a read returns no bytes.
async fn is_over(theirs: &mut UnixStream) -> bool {
    let within = Duration::from_millis(1);
    let read = tokio::time::timeout(within, theirs.read(&mut [0; 8])).await;
    matches!(read, Ok(Ok(0)))
}

#[test]
fn a_client_without_a_whole_request_is_dropped_even_if_it_keeps_sending_bytes() {
    test(async {
        let mut entrance = Entrance::new();
        for every in [None, Some(Duration::from_secs(3))] {
            let begun = Instant::now();
            let (mut client, mut theirs) = entrance.enter().await;
            theirs.write_all(&[0]).await.unwrap();
            let sends = async {
                let Some(every) = every else { return };
                while theirs.write_all(&[0]).await.is_ok() {
                    sleep(every).await;
                }
            };
            let reads = async {
                let mut byte = [0];
                loop {
                    match client.read(&mut byte).await {
                        Ok(0) => panic!("the client has not hung up"),
                        Ok(_) => {}
                        Err(error) => break error,
                    }
                }
            };
            let error = tokio::select! {
                error = reads => error,
                () = async { sends.await; std::future::pending().await } => unreachable!(),
            };
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert_eq!(begun.elapsed().as_secs(), IDLE_TIMEOUT.as_secs());
        }
    });
}

#[test]
fn a_client_that_is_sent_something_now_and_then_stays() {
    test(async {
        let mut entrance = Entrance::new();
        let (client, _theirs) = entrance.enter().await;
        let (mut reader, mut writer) = tokio::io::split(client);
        let reading = tokio::spawn(async move { reader.read(&mut [0; 8]).await });
        for _ in 0..20 {
            sleep(Duration::from_secs(5)).await;
            writer.write_all(b"news").await.unwrap();
            assert!(!reading.is_finished());
        }
        let told = Instant::now();
        assert!(reading.await.unwrap().is_err());
        assert_eq!(told.elapsed().as_secs(), IDLE_TIMEOUT.as_secs());
    });
}

#[test]
fn a_new_client_evicts_the_one_that_was_sent_nothing_for_the_longest_time() {
    test(async {
        let mut entrance = Entrance::new();
        let mut inside = Vec::new();
        for number in 0..MAX_CLIENTS {
            let (mut client, theirs) = entrance.enter().await;
            // Only the first client is sent something.
            if number == 0 {
                client.write_all(b"news").await.unwrap();
            }
            inside.push((client, theirs));
            sleep(Duration::from_millis(1)).await;
        }
        let (_client, mut newest) = entrance.enter().await;
        let mut over = Vec::new();
        for (number, (_, theirs)) in inside.iter_mut().enumerate() {
            if is_over(theirs).await {
                over.push(number);
            }
        }
        assert_eq!(over, [1]);
        assert!(!is_over(&mut newest).await);
        // The shim's read also returns no bytes, so the server drops the client.
        let (client, _) = &mut inside[1];
        assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
    });
}

#[test]
fn the_stream_of_read_only_clients_never_ends() {
    test(async {
        let Entrance {
            clients,
            mut read_only,
            ..
        } = Entrance::new();
        drop(clients);
        let next = poll_fn(|context| {
            let polled = Pin::new(&mut read_only).poll_next(context);
            Poll::Ready(polled.is_pending())
        });
        assert!(next.await);
    });
}

#[test]
fn no_client_is_accepted_while_as_many_evicted_ones_as_slots_have_not_gone() {
    test(async {
        let mut entrance = Entrance::new();
        let mut inside = Vec::new();
        for _ in 0..2 * MAX_CLIENTS {
            inside.push(entrance.enter().await);
        }
        let within = Duration::from_secs(1);
        let more = tokio::time::timeout(within, entrance.enter()).await;
        assert!(more.is_err());
        inside.clear();
        entrance.enter().await;
    });
}

#[test]
fn neither_kind_of_client_takes_a_seat_of_the_other() {
    test(async {
        for is_root in [false, true] {
            let mut entrance = Entrance::new();
            let (_client, mut theirs) = entrance.admit(is_root).await.unwrap();
            let mut others = Vec::new();
            // More clients connect until one is rejected.
            while let Some(other) = entrance.admit(!is_root).await {
                others.push(other);
            }
            let most = [2 * MAX_CLIENTS, 2 * MAX_READ_ONLY_CLIENTS];
            assert_eq!(others.len(), most[usize::from(is_root)]);
            assert!(!is_over(&mut theirs).await);
            assert!(entrance.admit(is_root).await.is_some());
        }
    });
}

#[test]
fn root_is_accepted_and_read_at_once_while_read_only_clients_wait() {
    test(async {
        let mut entrance = Entrance::new();
        let (mut read_only, mut looker) = entrance.admit(false).await.unwrap();
        looker.write_all(b"status").await.unwrap();
        for _ in 0..100 {
            let (_theirs, ours) = UnixStream::pair().unwrap();
            entrance.shared.send(ours).unwrap();
        }
        entrance.spend().await;
        let begun = Instant::now();
        let (mut root, mut theirs) = entrance.enter().await;
        theirs.write_all(b"stop").await.unwrap();
        assert_eq!(root.read(&mut [0; 8]).await.unwrap(), 4);
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert_eq!(read_only.read(&mut [0; 8]).await.unwrap(), 6);
        assert!(begun.elapsed() > Duration::from_secs(1));
    });
}

#[test]
fn clients_that_connect_in_a_loop_cost_at_most_a_twentieth_of_a_core() {
    test(async {
        let mut entrance = Entrance::new();
        let clock = entrance.clock.clone();
        let begun = Instant::now();
        let mut accepted = 0_u32;
        while begun.elapsed() < Duration::from_secs(60) {
            let (_theirs, ours) = UnixStream::pair().unwrap();
            entrance.shared.send(ours).unwrap();
            entrance.next().await;
            clock.spend(Duration::from_micros(200));
            accepted += 1;
        }
        let (used, allowed) = (clock.cpu(), begun.elapsed() / TWENTIETH);
        assert!(used <= allowed, "{used:?} of {allowed:?}");
        assert!(accepted > 1000, "{accepted}");
    });
}

#[test]
fn clients_that_ask_in_a_loop_cost_at_most_a_twentieth_of_a_core_and_all_get_answers() {
    test(async {
        let mut entrance = Entrance::new();
        let clock = entrance.clock.clone();
        let begun = Instant::now();
        let end = begun + Duration::from_secs(60);
        let mut asking = Vec::new();
        for _ in 0..MAX_READ_ONLY_CLIENTS {
            let (client, theirs) = entrance.admit(false).await.unwrap();
            let clock = clock.clone();
            asking.push(tokio::spawn(async move {
                let (mut client, mut theirs) = (client, theirs);
                let mut answers = 0;
                while Instant::now() < end {
                    theirs.write_all(b"?").await.unwrap();
                    client.read_exact(&mut [0; 1]).await.unwrap();
                    clock.spend(Duration::from_millis(1));
                    client.write_all(b"!").await.unwrap();
                    theirs.read_exact(&mut [0; 1]).await.unwrap();
                    answers += 1;
                }
                answers
            }));
        }
        for client in asking {
            let answers = client.await.unwrap();
            assert!(answers > 100, "{answers}");
        }
        let (used, allowed) = (clock.cpu(), begun.elapsed() / TWENTIETH);
        assert!(used <= allowed, "{used:?} of {allowed:?}");
    });
}
