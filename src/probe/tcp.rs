//! The `tcpSocket` probe: a connection in the container's network namespace.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use tokio::net::TcpSocket;

use crate::plan::{Host, Port};

use super::Target;
use super::netns;

/// Opens a connection and closes it. Without a host it goes to loopback, then to the namespace's
/// first global address: kubelet's default is the pod's address.
///
/// # Errors
///
/// Why no connection came about, in one sentence.
pub(super) async fn attempt(
    host: Option<Host>,
    port: &Port,
    target: &Target,
) -> Result<(), String> {
    let port = match port {
        Port::Number(port) => port.get(),
        Port::Name(name) => *target
            .ports
            .get(name)
            .ok_or_else(|| format!("port {name:?} is none of the container's named ports"))?,
    };
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    match host {
        Some(Host::Ip(address)) => connect(address, port, target).await,
        Some(Host::Localhost) => connect(loopback, port, target).await,
        None => {
            let Err(error) = connect(loopback, port, target).await else {
                return Ok(());
            };
            match netns::visit(target.pid, &target.reaper, global_address) {
                Ok(Some(address)) => connect(address, port, target).await,
                Ok(None) | Err(_) => Err(error),
            }
        }
    }
}

async fn connect(address: IpAddr, port: u16, target: &Target) -> Result<(), String> {
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
        TcpSocket::from_std_stream(TcpStream::from(socket))
            .connect(address)
            .await
    };
    match connected.await {
        Ok(_connection) => Ok(()),
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
