//! The control socket, through which `usher` calls the shim. Its path follows from the path of the
//! shim's own socket, which is for containerd.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ttrpc::r#async::Server;
use ttrpc::r#async::transport::Listener;

use crate::clock::SystemClock;
use crate::control::{self, Clients, Meter, ReadOnlyService, Service};
use crate::pod::Pod;
use usher_api::{create_control, make_directory};

use super::address::{self, SocketLock};
use super::callers::Callers;
use super::kernel;

/// The control socket. `None` if it could not be made; the pod works without it.
pub(super) struct ControlSocket(Option<(PathBuf, [Server; 2])>);

impl ControlSocket {
    /// Makes and serves the control socket of the shim whose own socket is at `path`. A failure is
    /// only logged.
    pub async fn open(path: Option<&Path>, pod: Pod) -> ControlSocket {
        let Some(path) = path.and_then(control::socket_of) else {
            return ControlSocket(None);
        };
        match serve(&path, pod).await {
            Ok(servers) => ControlSocket(Some((path, servers))),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "no control socket: usher cannot show this pod");
                ControlSocket(None)
            }
        }
    }

    /// Removes the socket, so that no client finds it.
    pub fn remove(&self) {
        if let ControlSocket(Some((path, _))) = self
            && let Err(error) = control::forget(path)
        {
            tracing::debug!(path = %path.display(), %error, "cannot remove the control socket");
        }
    }

    /// Sends the remaining answers, and ends the servers.
    pub async fn shutdown(&mut self) {
        if let ControlSocket(Some((_, servers))) = self {
            for server in servers {
                let _ = server.shutdown().await;
            }
        }
    }
}

/// Starts two servers: the first for root, the second for read-only clients. One server would not
/// be enough, because a service cannot see which client makes a call.
async fn serve(path: &Path, pod: Pod) -> io::Result<[Server; 2]> {
    let shared = callers(control::listen(path)?)?;
    let roots = control::listen_for_root(path).and_then(callers);
    let roots = roots.inspect_err(|error| {
        tracing::warn!(path = %path.display(), %error, "root shares its socket with read-only clients");
    });
    let meter = Meter::new(Arc::new(SystemClock));
    let (clients, read_only) = Clients::new(roots.ok(), shared, meter.clone());
    let service = Service::new(pod.clone());
    let read_only_service = ReadOnlyService::new(pod, meter);
    let mut servers = [
        Server::new()
            .add_listener(Listener::new(clients))
            .register_service(create_control(Arc::new(service))),
        Server::new()
            .add_listener(Listener::new(read_only))
            .register_service(create_control(Arc::new(read_only_service))),
    ];
    for server in &mut servers {
        server.start().await.map_err(io::Error::other)?;
    }
    Ok(servers)
}

fn callers(listener: UnixListener) -> io::Result<Callers> {
    Ok(Callers::new(tokio::net::UnixListener::from_std(listener)?))
}

/// Makes a file at the path of a shim's control socket, before the shim starts. `path` is the path
/// of the shim's own socket, which is for containerd. Even if the shim dies before it makes the
/// control socket, [`sweep`] finds the shim's leftovers by this file.
pub(super) fn mark(path: &Path) {
    let Some(socket) = control::socket_of(path) else {
        return;
    };
    if let Some(directory) = socket.parent()
        && make_directory(directory).is_ok()
    {
        let mut new = File::options();
        let _ = new.write(true).create_new(true).mode(0o600).open(socket);
    }
}

/// Removes the control sockets of all dead shims, and these shims' own sockets in `directory`. No
/// other cleanup finds them, because the bundles with their addresses may be gone, and containerd
/// runs no `delete` for a shim that had no task when it died.
pub(super) fn sweep(directory: &Path) {
    // The kernel's table of sockets shows which sockets have a listener. A connection would wake
    // the shim that listens; reading the table wakes no shim. Shims in other network namespaces are
    // not in the table, so this process has to connect to them.
    let table = kernel::sockets().unwrap_or_default();
    let bound: BTreeSet<&str> = kernel::bound(&table).collect();
    for socket in files_in(&usher_api::directory()) {
        let is_bound = socket.to_str().is_some_and(|path| bound.contains(path));
        if let Some(name) = socket.file_name().and_then(OsStr::to_str)
            && !is_bound
        {
            let own = own_socket(directory, name);
            address::remove_dead(&own);
            remove_dead(&own);
        }
    }
}

/// Finds the path of a shim's own socket, which is for containerd. `name` is the name of the shim's
/// control socket: the first characters of the name of its own socket.
fn own_socket(directory: &Path, name: &str) -> PathBuf {
    let is_own = |path: &PathBuf| {
        let own = path.file_name().and_then(OsStr::to_str);
        own.is_some_and(|own| own.starts_with(name))
    };
    // The socket may have been removed while its lock file still exists.
    let own = files_in(directory).find(is_own);
    own.map_or_else(|| directory.join(name), |own| own.with_extension(""))
}

fn files_in(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let files = entries.filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_dir()));
    files.map(|entry| entry.path())
}

/// Removes the control socket of a dead shim, whose own socket is at `path`. A running shim keeps
/// its socket.
pub(super) fn remove_dead(path: &Path) {
    let Some(socket) = control::socket_of(path).filter(|socket| socket.exists()) else {
        return;
    };
    // Without the lock, this process could remove the socket of a shim that is just beginning.
    let Ok(_lock) = SocketLock::take(path) else {
        return;
    };
    if !path.exists()
        && let Err(error) = address::connect(&socket)
        && error.kind() == io::ErrorKind::ConnectionRefused
    {
        // This fails if another process has removed the socket first.
        let _ = control::forget(&socket);
    }
}
