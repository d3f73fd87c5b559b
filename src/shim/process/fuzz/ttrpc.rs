//! Sends any bytes to a ttrpc socket, with the real server and the real services. The pod's actor
//! has ended, so calls are parsed but not executed.

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

use crate::clock::SystemClock;
use crate::control::{self, Clients, Meter};
use crate::events::Publisher;
use crate::pod::{Actor, Pod};
use crate::process::serve::this_node;
use crate::task;
use usher_api::create_control;
use usher_engine::EngineKind;
use usher_linux::reaper::Reaper;
use usher_oci::Oci;

use usher_fuzz::cost;

/// Bytes of a frame's header: payload length, stream, type, flags.
const HEADER: usize = 10;

/// Maximum number of bytes that the ttrpc library reserves for a frame before its payload arrives,
/// whatever length the header announces. The memory is not touched before the payload arrives.
const FRAME: usize = 4 << 20;

/// Memory in bytes that a connection may take, whatever the size of the input.
const ANYWAY: usize = 2 * FRAME + cost::RESERVED_FOR_A_MESSAGE;
/// Memory in bytes that a connection may take for each byte of input. It is added to [`ANYWAY`].
const EACH: usize = 2048;

/// CPU time that a connection may take, whatever the size of the input.
const TIME_ANYWAY: Duration = Duration::from_micros(200);
/// CPU time that a connection may take for each byte of input. It is added to [`TIME_ANYWAY`]. Each
/// call has a header of ten bytes, so each call may take at least ten times this time.
const TIME_EACH: Duration = Duration::from_micros(1);

/// Time limit for an answer, generous even for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A server that runs as long as its thread.
struct Peer<S> {
    runtime: Runtime,
    callers: mpsc::UnboundedSender<S>,
    _server: Server,
}

/// A listener whose connections come from a queue.
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
            let node = this_node(Oci.engine("", Reaper::default()), publisher);
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

    /// Sends the input on a new connection, hangs up, and checks the answers.
    fn exchange<O: AsyncRead + AsyncWrite>(&self, input: &[u8], connect: impl Fn() -> (O, S)) {
        let answers = cost::assert_quick(input.len(), TIME_EACH, TIME_ANYWAY, || {
            self.exchange_once(input, &connect)
        });
        assert_frames(&answers);
    }

    fn exchange_once<O: AsyncRead + AsyncWrite>(
        &self,
        input: &[u8],
        connect: &impl Fn() -> (O, S),
    ) -> Vec<u8> {
        cost::assert_bounded(input.len(), EACH, ANYWAY, || {
            self.runtime.block_on(async {
                let (ours, theirs) = connect();
                assert!(self.callers.send(theirs).is_ok(), "the server has ended");
                let (mut read, mut write) = tokio::io::split(ours);
                let send = async {
                    // The write fails if the server has closed the connection.
                    let _ = write.write_all(input).await;
                    let _ = write.shutdown().await;
                };
                let receive = async {
                    let mut answers = Vec::new();
                    let end = read.read_to_end(&mut answers);
                    let end = tokio::time::timeout(TIMEOUT, end).await;
                    let _ = end.expect("the server hangs up");
                    answers
                };
                tokio::join!(send, receive).1
            })
        })
    }
}

/// Asserts that the answers are complete frames.
fn assert_frames(mut answers: &[u8]) {
    while !answers.is_empty() {
        let header = answers.first_chunk::<HEADER>().expect("a whole header");
        let [a, b, c, d, ..] = *header;
        let length = u32::from_be_bytes([a, b, c, d]);
        let length = usize::try_from(length).expect("a length");
        answers = &answers[HEADER + length..];
    }
}

/// Fuzzes the Task service, whose clients have no limits.
pub(crate) fn task(input: &[u8]) {
    thread_local! {
        static PEER: Peer<tokio::io::DuplexStream> = Peer::new(|callers, pod| {
            let service = Arc::new(task::Service::new(pod));
            Server::new()
                .add_listener(Listener::new(callers))
                .register_service(create_task(service))
        });
    }
    PEER.with(|peer| peer.exchange(input, || tokio::io::duplex(1 << 16)));
}

/// Fuzzes the Control service, whose clients have the limits of [`Clients`].
pub(crate) fn control(input: &[u8]) {
    thread_local! {
        static PEER: Peer<UnixStream> = Peer::new(|callers, pod| {
            let service = Arc::new(control::Service::new(pod));
            // If the test does not run with root's group, connections become read-only clients.
            // Their input is read in the same way, but they may have to wait.
            let (_, callers_receiver) = mpsc::unbounded_channel();
            let meter = Meter::new(Arc::new(SystemClock));
            let (clients, _) = Clients::new(Some(callers), Callers(callers_receiver), meter);
            Server::new()
                .add_listener(Listener::new(clients))
                .register_service(create_control(service))
        });
    }
    PEER.with(|peer| {
        peer.exchange(input, || UnixStream::pair().expect("a pair of sockets"));
    });
}
