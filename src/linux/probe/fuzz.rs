//! Fuzz targets: servers that answer with any bytes.

use std::fmt::Display;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::{Builder, Runtime};

use usher_core::plan::{HttpGet, Port, Scheme};
use usher_fuzz::cost::assert_bounded;

use super::{grpc, http, tls};

/// Bytes that may be allocated at once for each byte of the answer. `ANYWAY` bytes are allowed in
/// addition, for the client's buffers and the state of its connection.
const EACH: usize = 64;
const ANYWAY: usize = 256 * 1024;

/// Limit of an error message about an answer, in characters.
const SENTENCE_AT_MOST: usize = 4_000;

const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 80);

/// A server that sends `says` in pieces of `at_once` bytes, and then hangs up. It accepts
/// everything that the client sends.
struct Server<'a> {
    says: &'a [u8],
    at_once: usize,
}

impl Server<'_> {
    /// The first byte of the input is the size of each piece that the server sends.
    fn new(input: &[u8]) -> Server<'_> {
        let (at_once, says) = match input.split_first() {
            Some((0, says)) => (usize::MAX, says),
            Some((at_once, says)) => (usize::from(*at_once), says),
            None => (1, input),
        };
        Server { says, at_once }
    }
}

impl AsyncRead for Server<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let at_once = self.at_once.min(buffer.remaining()).min(self.says.len());
        let (now, later) = self.says.split_at(at_once);
        buffer.put_slice(now);
        self.says = later;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Server<'_> {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

pub(crate) fn http(input: &[u8]) {
    let get = HttpGet {
        scheme: Scheme::Http,
        host: None,
        port: Port::Number(NonZeroU16::MIN),
        path: "/healthz".to_owned(),
        headers: Vec::new(),
    };
    judge(input, http::get_over(Server::new(input), ADDRESS, &get));
}

pub(crate) fn grpc(input: &[u8]) {
    let check = grpc::check_over(Server::new(input), ADDRESS, "web");
    judge(input, check);
}

pub(crate) fn tls(input: &[u8]) {
    let handshake = tls::handshake(Server::new(input), None, ADDRESS.ip());
    judge(input, async { handshake.await.map(drop) });
}

/// Runs an attempt until it ends. The attempt has to end by itself, because the runtime here has
/// neither timers nor other tasks.
fn judge<E: Display>(input: &[u8], attempt: impl Future<Output = Result<(), E>>) {
    thread_local! {
        static RUNTIME: Runtime = Builder::new_current_thread().build().expect("a runtime");
    }
    let attempt = || RUNTIME.with(|runtime| runtime.block_on(attempt));
    if let Err(error) = assert_bounded(input.len(), EACH, ANYWAY, attempt) {
        let sentence = error.to_string();
        let is_short = sentence.chars().count() < SENTENCE_AT_MOST;
        let is_plain = !sentence.chars().any(char::is_control);
        assert!(is_short && is_plain, "{sentence:?}");
    }
}
