//! What a person may ask of a pod and tell it: the service behind `usher`.
//!
//! Each shim listens on a socket of its own in [`directory`], named like the one that containerd
//! knows; so `usher` finds all of them without containerd. It listens on a second one beside it, for root
//! alone: the kernel keeps one queue of callers for each socket, and a shim that lets read-only clients wait
//! there would let root wait behind them.

mod clients;
mod kernel;
mod meter;
mod service;

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::sys::socket::Backlog;

use crate::api::{directory, make_directory, roots_socket};

pub use clients::{Clients, ReadOnlyClients};
pub use meter::Meter;
pub use service::{ReadOnlyService, Service};

/// So many characters of the name of a shim's socket, a hash, are its name here: a path to a socket
/// has 107 characters at most.
const NAME: usize = 32;

/// The socket that belongs to the shim whose own socket is at `path`.
pub fn socket_of(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let name: String = name.chars().take(NAME).collect();
    Some(directory().join(name))
}

/// The mode of the socket that everybody may connect to who has root's number, as the container has by which
/// `kubectl usher` asks a node.
const ROOTS_NUMBER: u32 = 0o600;

/// The mode of root's own socket. It lets nobody in but a process with `CAP_DAC_OVERRIDE`, which that
/// container does not have.
const ROOTS_RIGHTS: u32 = 0o000;

/// The most callers that may wait at the socket for all. They are let in one by one, so a long queue would only
/// make the last of them wait long.
const QUEUE: i32 = 64;

/// Listens at `path`. Whoever listened there before has died: only one shim at a time has the socket
/// that this one is named after.
///
/// # Errors
///
/// If the directory or the socket cannot be made.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    let listener = listen_for(path, ROOTS_NUMBER)?;
    nix::sys::socket::listen(&listener, Backlog::new(QUEUE)?)?;
    Ok(listener)
}

/// Listens at root's own socket, which belongs to the one at `path`.
///
/// # Errors
///
/// If the directory or the socket cannot be made.
pub fn listen_for_root(path: &Path) -> io::Result<UnixListener> {
    listen_for(&roots_socket(path), ROOTS_RIGHTS)
}

fn listen_for(path: &Path, mode: u32) -> io::Result<UnixListener> {
    make_directory(path.parent().unwrap_or(Path::new("/")))?;
    remove(path)?;
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Removes the socket at `path` and the one that belongs to it.
///
/// # Errors
///
/// If the one at `path` cannot be removed though it is there.
pub fn forget(path: &Path) -> io::Result<()> {
    // Without it clients connect to the other one.
    let _ = remove(&roots_socket(path));
    remove(path)
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
