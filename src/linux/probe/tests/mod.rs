//! Probes of servers in this process, on loopback. The integration tests probe servers in other
//! network namespaces.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

mod grpc;
mod http;
mod tls;

pub(super) use http::get as http_get;

/// Time limit: far longer than any test here takes, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Connects to a new server, which serves only this connection.
async fn connect<F: Future<Output: Send> + Send + 'static>(
    serve: impl FnOnce(TcpStream) -> F + Send + 'static,
) -> (TcpStream, SocketAddr, JoinHandle<F::Output>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
    let address = listener.local_addr().expect("its address");
    let server = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.expect("a connection");
        serve(stream).await
    });
    let stream = TcpStream::connect(address).await.expect("a connection");
    (stream, address, server)
}

async fn head_of_request(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("a whole head"));
    }
    String::from_utf8(head).expect("text")
}

/// Writes `bytes` again and again until the other side hangs up; returns the number of bytes
/// written.
async fn pour(stream: &mut TcpStream, bytes: &[u8]) -> usize {
    let mut written = 0;
    while stream.write_all(bytes).await.is_ok() {
        written += bytes.len();
    }
    written
}
