//! The shim's end of a process's terminal.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::watch;
use crate::sys;

/// Size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub width: u16,
    pub height: u16,
}

#[derive(Debug)]
pub(super) struct Terminal {
    pub master: Arc<AsyncFd<OwnedFd>>,
    /// The process's end, which the shim keeps open until the process exits. So the process may
    /// close its terminal and open it again, as an init system does.
    pub peer: Option<OwnedFd>,
}

impl Terminal {
    /// Makes a terminal from the master that the OCI runtime has sent.
    ///
    /// # Errors
    ///
    /// If the terminal cannot be watched.
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
