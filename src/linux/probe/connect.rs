//! Connections in the network namespace of the container's init process.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use tokio::net::{TcpSocket, TcpStream};

use usher_core::plan::Host;

use super::error::ProbeError;
use super::{Target, address, netns};

/// The network namespace of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum Network<'a> {
    /// The network namespace of a container. The shim's thread enters the namespace to make each
    /// socket.
    Of(&'a Target),
    /// The network namespace of this process, which is a prober, and the namespace's global
    /// address. The address is found in advance, because a confined prober cannot ask the kernel
    /// for it.
    Own(Option<IpAddr>),
}

impl Network<'_> {
    fn visit<T>(self, visit: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        match self {
            Network::Of(target) => netns::visit(target.pid, &target.reaper, visit),
            Network::Own(_) => visit(),
        }
    }

    fn global_address(self) -> Option<IpAddr> {
        match self {
            Network::Of(_) => self.visit(|| Ok(address::global())).ok().flatten(),
            Network::Own(address) => address,
        }
    }
}

/// Connects to a port of the container; returns the connection and the address. Without `host` it
/// tries loopback first, and then the namespace's global address, because kubelet's default is the
/// pod's address.
///
/// # Errors
///
/// If there is no connection.
pub(super) async fn open(
    host: Option<Host>,
    port: u16,
    network: Network<'_>,
) -> Result<(TcpStream, SocketAddr), ProbeError> {
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    match host {
        Some(Host::Ip(address)) => connect(address, port, network).await,
        Some(Host::Localhost) => connect(loopback, port, network).await,
        None => match connect(loopback, port, network).await {
            Ok(connected) => Ok(connected),
            Err(error) => match network.global_address() {
                Some(address) => connect(address, port, network).await,
                None => Err(error),
            },
        },
    }
}

async fn connect(
    address: IpAddr,
    port: u16,
    network: Network<'_>,
) -> Result<(TcpStream, SocketAddr), ProbeError> {
    let address = SocketAddr::new(address, port);
    let connected = async {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::Inet,
            SocketAddr::V6(_) => AddressFamily::Inet6,
        };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = network.visit(|| Ok(socket(family, SockType::Stream, flags, None)?))?;
        TcpSocket::from_std_stream(std::net::TcpStream::from(socket))
            .connect(address)
            .await
    };
    match connected.await {
        Ok(stream) => Ok((stream, address)),
        Err(error) => Err(ProbeError::NotConnected { address, error }),
    }
}
