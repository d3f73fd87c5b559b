//! What a person may ask of a pod and tell it: the service behind `usher`.
//!
//! Each shim listens on a socket of its own in [`directory`], named like the one that containerd
//! knows; so `usher` finds all of them without containerd.

mod clients;
mod kernel;
mod service;

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use crate::api::{directory, make_directory};

pub use clients::{Clients, Onlookers};
pub use service::{Onlook, Service};

/// So many characters of the name of a shim's socket, a hash, are its name here: a path to a socket
/// has 107 characters at most.
const NAME: usize = 32;

/// The socket that belongs to the shim whose own socket is at `path`.
pub fn socket_of(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let name: String = name.chars().take(NAME).collect();
    Some(directory().join(name))
}

/// Listens at `path`. Whoever listened there before has died: only one shim at a time has the socket
/// that this one is named after.
///
/// # Errors
///
/// If the directory or the socket cannot be made.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    make_directory(path.parent().unwrap_or(Path::new("/")))?;
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
