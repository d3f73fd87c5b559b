//! The console socket: the OCI runtime makes a terminal, and sends its descriptor over this socket.

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

/// Time limit for the terminal to arrive after the runtime's command has exited. runc and crun send
/// the terminal before they exit.
const ARRIVES_WITHIN: Duration = Duration::from_secs(5);

/// File name of the socket.
const NAME: &str = "pty";

/// A socket for one terminal. On drop, the file of the socket is removed.
///
/// The file is in the bundle, which containerd removes even if the shim is killed. A socket's path
/// may have at most 107 bytes, and a bundle's path is often longer. So the shim and the runtime use
/// a path in `/proc`, by way of the shim's descriptor of the directory.
#[derive(Debug)]
pub(super) struct ConsoleSocket {
    listener: UnixListener,
    directory: File,
    path: PathBuf,
}

/// Counter that makes the names of the sockets' directories unique.
static SOCKETS: AtomicU64 = AtomicU64::new(0);

impl ConsoleSocket {
    /// Listens in a new directory in `bundle`.
    ///
    /// # Errors
    ///
    /// If the directory or the socket cannot be made. After an error neither is left.
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

    /// Path of the socket for the runtime, valid in any process.
    pub fn name(&self) -> PathBuf {
        let (shim, directory) = (std::process::id(), self.directory.as_raw_fd());
        PathBuf::from(format!("/proc/{shim}/fd/{directory}/{NAME}"))
    }

    /// Receives the terminal's master after the runtime's command has exited.
    ///
    /// # Errors
    ///
    /// If the runtime sent no terminal.
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
                "the OCI runtime sent something other than a pseudo-terminal",
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
    // This fails if the socket was never made.
    let _ = std::fs::remove_file(directory.join(NAME));
    if let Err(error) = std::fs::remove_dir(directory) {
        tracing::warn!(directory = %directory.display(), %error, "console socket not removed");
    }
}
