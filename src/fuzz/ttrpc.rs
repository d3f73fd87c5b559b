//! Any bytes at a socket that speaks ttrpc: the server is the real one, behind it the real services.
//! The pod's actor is gone, so that no call gets further than to be understood.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use containerd_shim_protos::shim_async::create_task;
use futures_core::Stream;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use ttrpc::r#async::Server;
use ttrpc::r#async::transport::Listener;

use crate::api::create_control;
use crate::clock::SystemClock;
use crate::control::{self, Clients, Meter};
use crate::events::Publisher;
use crate::pod::{Actor, Pod};
use crate::reaper::Reaper;
use crate::shim::serve::this_node;
use crate::task;

use super::cost;

/// A frame's header: the length of what follows, a stream, a kind, flags.
const HEADER: usize = 10;

/// The most that the library takes for one frame, in bytes, and with it for whoever says that so much
/// will come. It is not touched before it does.
const FRAME: usize = 4 << 20;

/// What a connection takes for itself, and a call, in bytes.
const ANYWAY: usize = 2 * FRAME + cost::RESERVED_FOR_A_MESSAGE;
const EACH: usize = 2048;

/// The same in CPU time. The shortest message is a header, so each of its bytes pays for a tenth of a call.
const TIME_ANYWAY: Duration = Duration::from_micros(200);
const TIME_EACH: Duration = Duration::from_micros(1);

/// Far more than an answer takes, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server that lives as long as its thread.
struct Peer<S> {
    runtime: Runtime,
    callers: mpsc::UnboundedSender<S>,
    _server: Server,
}

/// Callers as they come.
struct Callers<S>(mpsc::UnboundedReceiver<S>);

impl<S> Stream for Callers<S> {
    type Item = io::Result<S>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|caller| caller.map(Ok))
    }
}

impl<S: Send + 'static> Peer<S> {
    fn new(listen: impl FnOnce(Callers<S>, Pod) -> Server) -> Peer<S> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let (callers, calls) = mpsc::unbounded_channel();
        let server = runtime.block_on(async {
            let publisher = Publisher::new("", "");
            let node = this_node("", publisher, Reaper::default());
            let (_, pod) = Actor::new("", node);
            let mut server = listen(Callers(calls), pod);
            server.start().await.expect("a server");
            server
        });
        Peer {
            runtime,
            callers,
            _server: server,
        }
    }

    /// Says it all by a new connection, hangs up, and hears what is answered.
    fn hear<O: AsyncRead + AsyncWrite>(&self, input: &[u8], connect: impl Fn() -> (O, S)) {
        let answers = cost::assert_quick(input.len(), TIME_EACH, TIME_ANYWAY, || {
            self.hear_once(input, &connect)
        });
        assert_frames(&answers);
    }

    fn hear_once<O: AsyncRead + AsyncWrite>(
        &self,
        input: &[u8],
        connect: &impl Fn() -> (O, S),
    ) -> Vec<u8> {
        cost::assert_bounded(input.len(), EACH, ANYWAY, || {
            self.runtime.block_on(async {
                let (ours, theirs) = connect();
                assert!(self.callers.send(theirs).is_ok(), "the server has ended");
                let (mut read, mut write) = tokio::io::split(ours);
                let say = async {
                    // Whoever is no client any more hears no more.
                    let _ = write.write_all(input).await;
                    let _ = write.shutdown().await;
                };
                let hear = async {
                    let mut answers = Vec::new();
                    let heard = read.read_to_end(&mut answers);
                    let heard = tokio::time::timeout(PATIENCE, heard).await;
                    let _ = heard.expect("the server hangs up");
                    answers
                };
                tokio::join!(say, hear).1
            })
        })
    }
}

/// Frames, all of them whole.
fn assert_frames(mut answers: &[u8]) {
    while !answers.is_empty() {
        let header = answers.first_chunk::<HEADER>().expect("a whole header");
        let [a, b, c, d, ..] = *header;
        let length = u32::from_be_bytes([a, b, c, d]);
        let length = usize::try_from(length).expect("a length");
        answers = &answers[HEADER + length..];
    }
}

/// The Task service, for a caller who may say whatever it likes for as long as it likes.
pub(super) fn task(input: &[u8]) {
    thread_local! {
        static PEER: Peer<tokio::io::DuplexStream> = Peer::new(|callers, pod| {
            let service = Arc::new(task::Service::new(pod));
            Server::new()
                .add_listener(Listener::new(callers))
                .register_service(create_task(service))
        });
    }
    PEER.with(|peer| peer.hear(input, || tokio::io::duplex(1 << 16)));
}

/// The Control service, as [`Clients`] lets callers in.
pub(super) fn control(input: &[u8]) {
    thread_local! {
        static PEER: Peer<UnixStream> = Peer::new(|callers, pod| {
            let service = Arc::new(control::Service::new(pod));
            // Read-only clients are heard in the same way, but for the time they wait; whoever runs this as
            // another than root is one.
            let (_, nobody) = mpsc::unbounded_channel();
            let meter = Meter::new(Arc::new(SystemClock));
            let (clients, _) = Clients::new(Some(callers), Callers(nobody), meter);
            Server::new()
                .add_listener(Listener::new(clients))
                .register_service(create_control(service))
        });
    }
    PEER.with(|peer| {
        peer.hear(input, || UnixStream::pair().expect("a pair of sockets"));
    });
}
