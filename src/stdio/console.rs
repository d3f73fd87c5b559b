//! The socket over which the OCI runtime hands over a terminal.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::libc;
use nix::unistd::isatty;
use tokio::io::Interest;
use tokio::net::UnixListener;
use tokio::time::timeout;

use crate::sys;

/// How long the terminal may be on its way when the runtime's command is over. runc and crun have
/// sent it by then.
const ARRIVES_WITHIN: Duration = Duration::from_secs(5);

/// Its name in its directory.
const NAME: &str = "pty";

/// A socket that takes one terminal; gone from the file system when dropped.
///
/// It lies in the bundle, which containerd removes even if the shim is killed. A bundle's path is
/// often longer than a socket's may be (107 bytes), so both sides name it through `/proc`, by the
/// shim's descriptor of its directory.
#[derive(Debug)]
pub(super) struct ConsoleSocket {
    listener: UnixListener,
    directory: File,
    path: PathBuf,
}

/// Counts the sockets that this process has needed.
static SOCKETS: AtomicU64 = AtomicU64::new(0);

impl ConsoleSocket {
    /// Listens in a directory of its own below `bundle`.
    ///
    /// # Errors
    ///
    /// If the directory or the socket cannot be made; nothing is left then.
    pub fn bind(bundle: &Path) -> io::Result<ConsoleSocket> {
        let number = SOCKETS.fetch_add(1, Ordering::Relaxed);
        let path = bundle.join(format!("usher-{number}.console"));
        DirBuilder::new().mode(0o700).create(&path)?;
        let bound = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW)
            .open(&path)
            .and_then(|directory| {
                let name = format!("/proc/self/fd/{}/{NAME}", directory.as_raw_fd());
                Ok((directory, UnixListener::bind(name)?))
            });
        match bound {
            Ok((directory, listener)) => Ok(ConsoleSocket {
                listener,
                directory,
                path,
            }),
            Err(error) => {
                remove(&path);
                Err(error)
            }
        }
    }

    /// What the runtime, a process of its own, connects to.
    pub fn name(&self) -> PathBuf {
        let (shim, directory) = (std::process::id(), self.directory.as_raw_fd());
        PathBuf::from(format!("/proc/{shim}/fd/{directory}/{NAME}"))
    }

    /// Takes the terminal's master when the runtime's command is over.
    ///
    /// # Errors
    ///
    /// If none came, or something else.
    pub async fn receive(self) -> io::Result<OwnedFd> {
        let master = timeout(ARRIVES_WITHIN, async {
            let (stream, _) = self.listener.accept().await?;
            let receive = || sys::receive_descriptor(stream.as_fd());
            stream.async_io(Interest::READABLE, receive).await
        });
        let master = master.await.map_err(|_| {
            let silence = format!("the OCI runtime sent none within {ARRIVES_WITHIN:?}");
            io::Error::new(io::ErrorKind::TimedOut, silence)
        })??;
        match isatty(&master) {
            Ok(true) => Ok(master),
            _ => Err(io::Error::other(
                "the OCI runtime sent something else, expected a pseudo-terminal",
            )),
        }
    }
}

impl Drop for ConsoleSocket {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

fn remove(directory: &Path) {
    // It may never have been made.
    let _ = std::fs::remove_file(directory.join(NAME));
    if let Err(error) = std::fs::remove_dir(directory) {
        tracing::warn!(directory = %directory.display(), %error, "not removed");
    }
}
