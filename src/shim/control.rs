//! The socket for people, beside containerd's.

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

use crate::api::{create_control, make_directory};
use crate::clock::SystemClock;
use crate::control::{self, Clients, Meter, ReadOnlyService, Service};
use crate::pod::Pod;

use super::address::{self, Turn};
use super::callers::Callers;
use super::kernel;

/// A socket that people ask at, if it could be made: a pod does without.
pub(super) struct ControlSocket(Option<(PathBuf, [Server; 2])>);

impl ControlSocket {
    /// Serves people beside the socket at `path`, which is the shim's own.
    pub async fn open(path: Option<&Path>, pod: Pod) -> ControlSocket {
        let Some(path) = path.and_then(control::socket_of) else {
            return ControlSocket(None);
        };
        match serve(&path, pod).await {
            Ok(servers) => ControlSocket(Some((path, servers))),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "usher will not see this pod");
                ControlSocket(None)
            }
        }
    }

    /// Nobody finds it any more.
    pub fn remove(&self) {
        if let ControlSocket(Some((path, _))) = self
            && let Err(error) = control::forget(path)
        {
            tracing::debug!(path = %path.display(), %error, "the socket for people is left");
        }
    }

    /// Says what is still to be said.
    pub async fn shutdown(&mut self) {
        if let ControlSocket(Some((_, servers))) = self {
            for server in servers {
                let _ = server.shutdown().await;
            }
        }
    }
}

/// Serves root by one server and read-only clients by another: a server does not tell a service who asks.
async fn serve(path: &Path, pod: Pod) -> io::Result<[Server; 2]> {
    let anyone = callers(control::listen(path)?)?;
    let roots = control::listen_for_root(path).and_then(callers);
    let roots = roots.inspect_err(|error| {
        tracing::warn!(path = %path.display(), %error, "root shares its socket with read-only clients");
    });
    let meter = Meter::new(Arc::new(SystemClock));
    let (clients, read_only) = Clients::new(roots.ok(), anyone, meter.clone());
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

/// Leaves a mark where the socket for people will be, so that [`sweep`] finds what is left of a shim that
/// does not get as far as that.
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

/// Removes the sockets of all shims that have died, of which the own ones are in `directory`. The bundles
/// that would name them may be gone, and nobody runs `delete` for a shim that was empty when it died.
pub(super) fn sweep(directory: &Path) {
    // Asking the kernel once wakes none of the shims that live. Where it does not know one of another
    // network namespace, that one is asked.
    let table = kernel::sockets().unwrap_or_default();
    let bound: BTreeSet<&str> = kernel::bound(&table).collect();
    for socket in files_in(&crate::api::directory()) {
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

/// The Task API's socket of the shim whose socket for people is called `name`. Both are called after one hash, of
/// which the Task API's has more digits.
fn own_socket(directory: &Path, name: &str) -> PathBuf {
    let is_own = |path: &PathBuf| {
        let own = path.file_name().and_then(OsStr::to_str);
        own.is_some_and(|own| own.starts_with(name))
    };
    // The socket may be gone while the file beside it is still there, which says whose turn it is to listen.
    let own = files_in(directory).find(is_own);
    own.map_or_else(|| directory.join(name), |own| own.with_extension(""))
}

fn files_in(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let files = entries.filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_dir()));
    files.map(|entry| entry.path())
}

/// Removes what a shim that has died left beside its own socket at `path`. One that lives keeps it.
pub(super) fn remove_dead(path: &Path) {
    let Some(socket) = control::socket_of(path).filter(|socket| socket.exists()) else {
        return;
    };
    // Or a shim that begins at this moment would lose its own.
    let Ok(_turn) = Turn::take(path) else {
        return;
    };
    if !path.exists()
        && let Err(error) = address::connect(&socket)
        && error.kind() == io::ErrorKind::ConnectionRefused
    {
        // Another may have been faster.
        let _ = control::forget(&socket);
    }
}
