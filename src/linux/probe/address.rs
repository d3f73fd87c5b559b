//! Finds the global address of a network namespace, such as that of a pod.
//!
//! A container that makes its own network namespace can put any number of addresses and routes into
//! it. So the shim does not read the kernel's list to its end. Instead, the shim asks the kernel
//! which source address the kernel would use.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType};
use nix::sys::socket::{recv, send, socket};

/// Documentation addresses (RFC 5737, RFC 3849), which no host has: packets to them take the
/// default route.
const ELSEWHERE: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];

/// Size in bytes of one read of the kernel's list of addresses, and the maximum number of reads.
/// Both together are enough for some hundreds of addresses. The list is read only if the default
/// route yields no global address.
const PART_BYTES: usize = 8 * 1024;
const LIST_PARTS: usize = 4;
/// Maximum number of listed addresses whose interfaces are checked. An address is not used if its
/// interface is down.
const LOOKED_AT: usize = 8;

/// Returns the global address of the calling thread's network namespace: the source address of its
/// default route, or else the first global address in the kernel's list. Sends nothing, and takes a
/// few microseconds, however many addresses the namespace has.
pub(super) fn global() -> Option<IpAddr> {
    let routed = ELSEWHERE.iter().find_map(|elsewhere| source(*elsewhere));
    routed.or_else(|| {
        let listed = listed().unwrap_or_default().into_iter();
        let mut looked_at = listed.take(LOOKED_AT);
        let (_, address) = looked_at.find(|(interface, _)| is_up(*interface) == Some(true))?;
        Some(address)
    })
}

/// The address from which the kernel would send to `destination`, if that address is global.
fn source(destination: IpAddr) -> Option<IpAddr> {
    let any = match destination {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    // On a datagram socket `connect` sends nothing: the kernel notes the destination and chooses
    // the source address.
    socket.connect((destination, 9)).ok()?;
    let source = socket.local_addr().ok()?.ip();
    is_global(source).then_some(source)
}

fn is_global(address: IpAddr) -> bool {
    let is_link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !is_link_local && !address.is_loopback() && !address.is_unspecified()
}

/// The first addresses in the kernel's list (`rtnetlink(7)`, RTM_GETADDR), each with the number of
/// its interface.
fn listed() -> io::Result<Vec<(u32, IpAddr)>> {
    // Zeros in the request mean addresses of any family, prefix and scope.
    let netlink = ask(GET_ADDRESS, REQUEST | DUMP, &[0; ADDRESS_HEAD])?;
    let mut addresses = Vec::new();
    for _ in 0..LIST_PARTS {
        let Ok(messages) = next_part(&netlink) else {
            break;
        };
        let is_last = read_messages(&messages, &mut addresses).is_none();
        if is_last || addresses.len() >= LOOKED_AT {
            break;
        }
    }
    Ok(addresses)
}

/// True if an interface is up (RTM_GETLINK).
fn is_up(interface: u32) -> Option<bool> {
    /// `IFF_UP`.
    const UP: u32 = 1;
    // `ifinfomsg`: the family and type (both 0), the interface's number, its flags and their mask.
    let mut which = [0; 4].to_vec();
    which.extend(interface.to_ne_bytes());
    which.extend([0; 8]);
    let message = next_part(&ask(GET_LINK, REQUEST, &which).ok()?).ok()?;
    if u16_at(&message, 4)? != NEW_LINK {
        return None;
    }
    Some(u32_at(&message, HEAD.checked_add(8)?)? & UP != 0)
}

/// The message types `RTM_NEWLINK` to `RTM_GETADDR`.
const NEW_LINK: u16 = 16;
const GET_LINK: u16 = 18;
const NEW_ADDRESS: u16 = 20;
const GET_ADDRESS: u16 = 22;
/// `NLM_F_REQUEST`, and `NLM_F_DUMP`, which asks for the whole list.
const REQUEST: u16 = 0x1;
const DUMP: u16 = 0x300;
/// Sizes of a message's header (`nlmsghdr`) and of the `ifaddrmsg` after it. Both are multiples of
/// four bytes, to which all parts of a message are aligned.
const HEAD: usize = 16;
const ADDRESS_HEAD: usize = 8;
/// `IFA_ADDRESS` and `IFA_LOCAL`. On a point-to-point interface the first is the peer's address,
/// and the second is the interface's own.
const ADDRESS: u16 = 1;
const LOCAL: u16 = 2;
/// The number that `lo` has in every network namespace.
const LOOPBACK: u32 = 1;

fn ask(kind: u16, flags: u16, about: &[u8]) -> io::Result<OwnedFd> {
    let socket_flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let protocol = SockProtocol::NetlinkRoute;
    let netlink = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        socket_flags,
        protocol,
    )?;
    let length = u32::try_from(HEAD.saturating_add(about.len())).map_err(io::Error::other)?;
    let mut question = length.to_ne_bytes().to_vec();
    question.extend(kind.to_ne_bytes());
    question.extend(flags.to_ne_bytes());
    // The sequence number and the port, both 0.
    question.extend([0; 8]);
    question.extend(about);
    send(netlink.as_raw_fd(), &question, MsgFlags::empty())?;
    Ok(netlink)
}

/// Reads the next part of the answer, cut to `PART_BYTES`. Never waits, because the kernel has
/// answered at once.
fn next_part(netlink: &OwnedFd) -> io::Result<Vec<u8>> {
    let mut part = vec![0; PART_BYTES];
    let length = recv(netlink.as_raw_fd(), &mut part, MsgFlags::empty())?;
    part.truncate(length);
    Ok(part)
}

/// Adds the global addresses in `messages` to `addresses`. Returns `None` at the end of the
/// kernel's list.
fn read_messages(mut messages: &[u8], addresses: &mut Vec<(u32, IpAddr)>) -> Option<()> {
    while !messages.is_empty() {
        let length = usize::try_from(u32_at(messages, 0)?).ok()?;
        let message = messages.get(..length)?;
        if u16_at(message, 4)? != NEW_ADDRESS {
            return None;
        }
        let interface = u32_at(message, HEAD.checked_add(4)?)?;
        let attributes = message.get(HEAD.checked_add(ADDRESS_HEAD)?..)?;
        if let Some(address) = own_address(attributes)
            && interface != LOOPBACK
            && is_global(address)
        {
            addresses.push((interface, address));
        }
        messages = messages.get(aligned(length)?..).unwrap_or_default();
    }
    Some(())
}

fn own_address(mut attributes: &[u8]) -> Option<IpAddr> {
    let mut found = None;
    while attributes.len() >= 4 {
        let length = usize::from(u16_at(attributes, 0)?);
        let value = attributes.get(4..length)?;
        let address = match value.len() {
            4 => <[u8; 4]>::try_from(value).ok().map(IpAddr::from),
            16 => <[u8; 16]>::try_from(value).ok().map(IpAddr::from),
            _ => None,
        };
        match u16_at(attributes, 2)? {
            LOCAL => return address,
            ADDRESS => found = address,
            _ => {}
        }
        attributes = attributes.get(aligned(length)?..).unwrap_or_default();
    }
    found
}

fn aligned(length: usize) -> Option<usize> {
    length.checked_next_multiple_of(4)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_ne_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*bytes))
}
