//! What `usher` is told of a pod, and what it may tell the pod to do.
//!
//! Each shim listens on a socket of its own in [`directory`], named like the one that containerd
//! knows; so `usher` finds all of them without containerd. What is known of a pod that has ended is
//! kept there in files, for an hour.

mod clients;
mod ended;
mod service;

/// Messages and service of `protos/usher/v1/control.proto`.
#[allow(warnings, clippy::all, clippy::restriction)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/protos/mod.rs"));
}

use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

pub use clients::Clients;
pub use ended::{Ended, keep};
pub use generated::control as api;
pub use generated::control_ttrpc::{Control, ControlClient, create_control};
pub use service::Service;

/// The variable that names another directory than the usual one.
pub const DIRECTORY_VARIABLE: &str = "USHER_SOCKETS";

/// Beside the shims' own sockets.
const DIRECTORY: &str = "/run/containerd/usher";

/// So many characters of the name of a shim's socket, a hash, are its name here: a path to a socket
/// has 107 characters at most.
const NAME: usize = 32;

/// Where the sockets are.
pub fn directory() -> PathBuf {
    let given = std::env::var_os(DIRECTORY_VARIABLE).filter(|given| !given.is_empty());
    given.map_or_else(|| PathBuf::from(DIRECTORY), PathBuf::from)
}

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

fn make_directory(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
}
