//! A connection in the network namespace of the container's own init.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use tokio::io::{AsyncReadExt, Join, Take, join};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpSocket, TcpStream};

use crate::plan::{Host, Port};

use super::Target;
use super::netns;

/// What is taken from a server in one attempt, in bytes, TLS included; behind it the connection
/// reads as closed. Whatever a container sends, and however long its probe's timeout is, an attempt
/// costs the shim no more than this.
pub(super) const MAX_RECEIVED: u64 = 128 * 1024;

/// A connection that gives at most [`MAX_RECEIVED`].
pub(super) type Connection = Join<Take<OwnedReadHalf>, OwnedWriteHalf>;

/// Connects to a port of the container, and tells to which of its addresses. Without a host that
/// is loopback, then the namespace's first global address: kubelet's default is the pod's address.
///
/// # Errors
///
/// Why no connection came about, in one sentence.
pub(super) async fn open(
    host: Option<Host>,
    port: u16,
    target: &Target,
) -> Result<(Connection, SocketAddr), String> {
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let connected = match host {
        Some(Host::Ip(address)) => connect(address, port, target).await,
        Some(Host::Localhost) => connect(loopback, port, target).await,
        None => match connect(loopback, port, target).await {
            Ok(connected) => Ok(connected),
            Err(error) => match netns::visit(target.pid, &target.reaper, global_address) {
                Ok(Some(address)) => connect(address, port, target).await,
                Ok(None) | Err(_) => Err(error),
            },
        },
    };
    connected.map(|(stream, address)| (limit(stream), address))
}

/// The number of a port, which may be one of the container's by name.
///
/// # Errors
///
/// If the container has no port of that name.
pub(super) fn port_number(port: &Port, target: &Target) -> Result<u16, String> {
    match port {
        Port::Number(port) => Ok(port.get()),
        Port::Name(name) => target
            .ports
            .get(name)
            .copied()
            .ok_or_else(|| format!("port {name:?} is none of the container's named ports")),
    }
}

pub(super) fn limit(stream: TcpStream) -> Connection {
    let (read, write) = stream.into_split();
    join(read.take(MAX_RECEIVED), write)
}

async fn connect(
    address: IpAddr,
    port: u16,
    target: &Target,
) -> Result<(TcpStream, SocketAddr), String> {
    let address = SocketAddr::new(address, port);
    let connected = async {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::Inet,
            SocketAddr::V6(_) => AddressFamily::Inet6,
        };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = netns::visit(target.pid, &target.reaper, || {
            Ok(socket(family, SockType::Stream, flags, None)?)
        })?;
        TcpSocket::from_std_stream(std::net::TcpStream::from(socket))
            .connect(address)
            .await
    };
    match connected.await {
        Ok(stream) => Ok((stream, address)),
        Err(error) => Err(format!("connection to {address}: {error}")),
    }
}

/// The first address of the current network namespace that is not only its own.
fn global_address() -> io::Result<Option<IpAddr>> {
    let mut interfaces = getifaddrs()?.filter(|interface| {
        interface.flags.contains(InterfaceFlags::IFF_UP)
            && !interface.flags.contains(InterfaceFlags::IFF_LOOPBACK)
    });
    Ok(interfaces.find_map(|interface| {
        let address = interface.address?;
        let v4 = address
            .as_sockaddr_in()
            .map(|address| IpAddr::V4(address.ip()));
        let v6 = || {
            address
                .as_sockaddr_in6()
                .map(|address| IpAddr::V6(address.ip()))
        };
        v4.or_else(v6).filter(|address| match address {
            IpAddr::V4(address) => !address.is_link_local(),
            IpAddr::V6(address) => !address.is_unicast_link_local(),
        })
    }))
}
