use std::future::poll_fn;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::clock::Clock;

use super::super::meter::tests::{TWENTIETH, TurnedClock, in_virtual_time as test};
use super::*;

struct Callers(mpsc::UnboundedReceiver<UnixStream>);

impl Stream for Callers {
    type Item = io::Result<UnixStream>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|stream| stream.map(Ok))
    }
}

/// Both sockets, and the clients that come by them.
struct Door {
    clock: Arc<TurnedClock>,
    roots: mpsc::UnboundedSender<UnixStream>,
    anyone: mpsc::UnboundedSender<UnixStream>,
    clients: Clients<Callers>,
    read_only: ReadOnlyClients,
}

impl Door {
    fn new() -> Door {
        let (roots, root_calls) = mpsc::unbounded_channel();
        let (anyone, calls) = mpsc::unbounded_channel();
        let clock = Arc::new(TurnedClock::default());
        let meter = Meter::new(clock.clone());
        let (clients, read_only) = Clients::new(Some(Callers(root_calls)), Callers(calls), meter);
        Door {
            clock,
            roots,
            anyone,
            clients,
            read_only,
        }
    }

    /// The client that comes next, and whose end `theirs` is.
    async fn next(&mut self) -> Client {
        // Which of both depends on who runs this.
        let client = poll_fn(
            |context| match Pin::new(&mut self.clients).poll_next(context) {
                Poll::Pending => Pin::new(&mut self.read_only).poll_next(context),
                client => client,
            },
        );
        client.await.unwrap().unwrap()
    }

    /// Ours and the end of one who calls at root's socket.
    async fn enter(&mut self) -> (Client, UnixStream) {
        let (theirs, ours) = UnixStream::pair().unwrap();
        self.roots.send(ours).unwrap();
        (self.next().await, theirs)
    }

    /// The same of a client of root, or of a read-only one, that has got past the sockets.
    async fn admit(&mut self, is_root: bool) -> Option<(Client, UnixStream)> {
        let (theirs, ours) = UnixStream::pair().unwrap();
        let client = match self.clients.admit(ours, is_root) {
            Some(client) => client,
            None => self.read_only.0.try_recv().ok()?,
        };
        Some((client, theirs))
    }

    /// Spends all that read-only clients may spend ahead, and as much again.
    async fn spend(&mut self) {
        self.clients.meter.begin();
        self.clock.spend(Duration::from_millis(100));
        tokio::task::yield_now().await;
    }
}

/// True if the connection is over, as its other end sees it.
async fn is_over(theirs: &mut UnixStream) -> bool {
    let within = Duration::from_millis(1);
    let read = tokio::time::timeout(within, theirs.read(&mut [0; 8])).await;
    matches!(read, Ok(Ok(0)))
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
fn read_only_clients_do_not_end_when_nobody_is_let_in_any_more() {
    test(async {
        let Door {
            clients,
            mut read_only,
            ..
        } = Door::new();
        drop(clients);
        let next = poll_fn(|context| {
            let polled = Pin::new(&mut read_only).poll_next(context);
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
        for _ in 0..2 * CLIENTS_AT_MOST {
            inside.push(door.enter().await);
        }
        let within = Duration::from_secs(1);
        let more = tokio::time::timeout(within, door.enter()).await;
        assert!(more.is_err());
        inside.clear();
        door.enter().await;
    });
}

#[test]
fn neither_kind_of_client_takes_a_seat_of_the_other() {
    test(async {
        for is_root in [false, true] {
            let mut door = Door::new();
            let (_client, mut theirs) = door.admit(is_root).await.unwrap();
            let mut others = Vec::new();
            // They come until they are turned away.
            while let Some(other) = door.admit(!is_root).await {
                others.push(other);
            }
            let most = [2 * CLIENTS_AT_MOST, 2 * READ_ONLY_AT_MOST];
            assert_eq!(others.len(), most[usize::from(is_root)]);
            assert!(!is_over(&mut theirs).await);
            assert!(door.admit(is_root).await.is_some());
        }
    });
}

#[test]
fn root_is_let_in_and_heard_at_once_while_read_only_clients_wait() {
    test(async {
        let mut door = Door::new();
        let (mut read_only, mut looker) = door.admit(false).await.unwrap();
        looker.write_all(b"status").await.unwrap();
        for _ in 0..100 {
            let (_theirs, ours) = UnixStream::pair().unwrap();
            door.anyone.send(ours).unwrap();
        }
        door.spend().await;
        let begun = Instant::now();
        let (mut root, mut theirs) = door.enter().await;
        theirs.write_all(b"stop").await.unwrap();
        assert_eq!(root.read(&mut [0; 8]).await.unwrap(), 4);
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert_eq!(read_only.read(&mut [0; 8]).await.unwrap(), 6);
        assert!(begun.elapsed() > Duration::from_secs(1));
    });
}

#[test]
fn clients_that_come_in_a_loop_cost_a_twentieth_of_a_core() {
    test(async {
        let mut door = Door::new();
        let clock = door.clock.clone();
        let begun = Instant::now();
        let mut let_in = 0_u32;
        while begun.elapsed() < Duration::from_secs(60) {
            let (_theirs, ours) = UnixStream::pair().unwrap();
            door.anyone.send(ours).unwrap();
            door.next().await;
            clock.spend(Duration::from_micros(200));
            let_in += 1;
        }
        let (used, allowed) = (clock.cpu(), begun.elapsed() / TWENTIETH);
        assert!(used <= allowed, "{used:?} of {allowed:?}");
        assert!(let_in > 1000, "{let_in}");
    });
}

#[test]
fn a_client_that_asks_in_a_loop_costs_a_twentieth_of_a_core_and_keeps_no_other_from_asking() {
    test(async {
        let mut door = Door::new();
        let clock = door.clock.clone();
        let begun = Instant::now();
        let end = begun + Duration::from_secs(60);
        let mut asking = Vec::new();
        for _ in 0..READ_ONLY_AT_MOST {
            let (client, theirs) = door.admit(false).await.unwrap();
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
