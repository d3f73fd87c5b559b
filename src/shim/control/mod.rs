//! The Control service, which shows a pod to `usher`, and takes commands for the pod.
//!
//! Each shim listens on a control socket in [`directory`]. The control socket is named after the
//! shim's socket for containerd, so `usher` finds all shims without containerd. The shim listens on
//! a second control socket for root alone. The kernel has one queue of connections per socket, so
//! on a shared socket root would wait behind read-only clients.

mod clients;
mod kernel;
mod meter;
mod service;

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::sys::socket::Backlog;

use usher_api::{directory, make_directory, roots_socket};

pub use clients::{Clients, ReadOnlyClients};
pub use meter::Meter;
pub use service::{ReadOnlyService, Service};

/// Length of a control socket's name. The name consists of the first characters of the name of the
/// shim's socket, which is a hash. The hash is shortened because the path of a socket has at most
/// 107 characters.
const NAME: usize = 32;

/// Path of a shim's control socket, even if this socket does not exist. `path` is the shim's socket
/// for containerd. `None` if `path` has no file name in UTF-8.
pub fn socket_of(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let name: String = name.chars().take(NAME).collect();
    Some(directory().join(name))
}

/// Mode of the socket for all processes with UID 0, including the container through which `kubectl
/// usher` asks a node.
const FOR_UID_0: u32 = 0o600;

/// Mode of the socket for root alone. Only a process with `CAP_DAC_OVERRIDE` can connect, and the
/// container of `kubectl usher` does not have this capability.
const FOR_CAPABLE_ROOT: u32 = 0o000;

/// Length of the queue of connections to the socket that all processes with UID 0 may use. The shim
/// accepts connections one by one, so a longer queue would only make the last client wait longer.
const BACKLOG: i32 = 64;

/// Listens at `path`, on the socket for all processes with UID 0. Removes a file at `path` first.
/// No running shim uses this file, because `path` is derived from the path of the shim's socket for
/// containerd, and only one shim at a time has that socket.
///
/// # Errors
///
/// If the directory or the socket cannot be made.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    let listener = listen_with_mode(path, FOR_UID_0)?;
    nix::sys::socket::listen(&listener, Backlog::new(BACKLOG)?)?;
    Ok(listener)
}

/// Listens on the shim's second control socket, which is for root alone. `path` is the path of the
/// first.
///
/// # Errors
///
/// If the directory or the socket cannot be made.
pub fn listen_for_root(path: &Path) -> io::Result<UnixListener> {
    listen_with_mode(&roots_socket(path), FOR_CAPABLE_ROOT)
}

fn listen_with_mode(path: &Path, mode: u32) -> io::Result<UnixListener> {
    make_directory(path.parent().unwrap_or(Path::new("/")))?;
    remove(path)?;
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Removes the two control sockets of a shim: the socket at `path`, and the socket for root alone,
/// whose path is derived from `path`. Called when the shim ends, and for a shim that has died.
///
/// # Errors
///
/// If the socket at `path` exists and cannot be removed.
pub fn forget(path: &Path) -> io::Result<()> {
    // A failure to remove the root-only socket does no harm: `usher` fails to connect to this
    // socket, and uses the other one.
    let _ = remove(&roots_socket(path));
    remove(path)
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
