//! The socket for people, beside containerd's.

use std::io;
use std::path::{Path, PathBuf};

use ttrpc::r#async::Server;
use ttrpc::r#async::transport::Listener;

use crate::api::create_control;
use crate::control::{self, Clients, Service};
use crate::pod::Pod;

use super::address::{self, Turn};
use super::callers::Callers;

/// A socket that people ask at, if it could be made: a pod does without.
pub(super) struct ControlSocket(Option<(PathBuf, Server)>);

impl ControlSocket {
    /// Serves people beside the socket at `path`, which is the shim's own.
    pub async fn open(path: Option<&Path>, pod: Pod) -> ControlSocket {
        let Some(path) = path.and_then(control::socket_of) else {
            return ControlSocket(None);
        };
        match serve(&path, pod).await {
            Ok(server) => ControlSocket(Some((path, server))),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "usher will not see this pod");
                ControlSocket(None)
            }
        }
    }

    /// Nobody finds it any more.
    pub fn remove(&self) {
        if let ControlSocket(Some((path, _))) = self
            && let Err(error) = std::fs::remove_file(path)
        {
            tracing::debug!(path = %path.display(), %error, "the socket for people is left");
        }
    }

    /// Says what is still to be said.
    pub async fn shutdown(&mut self) {
        if let ControlSocket(Some((_, server))) = self {
            let _ = server.shutdown().await;
        }
    }
}

async fn serve(path: &Path, pod: Pod) -> io::Result<Server> {
    let listener = tokio::net::UnixListener::from_std(control::listen(path)?)?;
    let mut server = Server::new()
        .add_listener(Listener::new(Clients::new(Callers::new(listener))))
        .register_service(create_control(std::sync::Arc::new(Service::new(pod))));
    server.start().await.map_err(io::Error::other)?;
    Ok(server)
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
        let _ = std::fs::remove_file(socket);
    }
}
