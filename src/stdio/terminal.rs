//! A process's terminal: the end that the shim has of it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::watch;
use crate::sys;

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub width: u16,
    pub height: u16,
}

/// The master of a pseudo-terminal.
#[derive(Debug)]
pub(super) struct Terminal {
    pub master: Arc<AsyncFd<OwnedFd>>,
    /// The process's own end, open as long as the process lives: one that closes its terminal and
    /// opens it again, as an init system does, has not ended it.
    pub peer: Option<OwnedFd>,
}

impl Terminal {
    /// Takes over what the OCI runtime has sent.
    ///
    /// # Errors
    ///
    /// If it cannot be watched.
    pub fn new(master: OwnedFd) -> io::Result<Terminal> {
        let peer = sys::open_peer(&master);
        if let Err(error) = &peer {
            tracing::debug!(%error, "a terminal ends when its process closes it");
        }
        let master = watch(master, Interest::READABLE | Interest::WRITABLE)?;
        Ok(Terminal {
            master: Arc::new(master),
            peer: peer.ok(),
        })
    }
}
