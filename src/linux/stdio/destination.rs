//! The destination of a process's output: a FIFO or pipe with a reader, or a file.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::libc;
use nix::poll::PollFlags;
use nix::unistd::write;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::sleep;

use super::address::Address;
use super::fifo::{self, End};
use super::log::Log;
use super::words::MessageWriter;
use super::{Phases, StdioError, deleted, is_ready, watch};
use crate::offload::Threads;

const FIRST_LOOK: Duration = Duration::from_millis(1);
const LAST_LOOK: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) enum Destination {
    Pipe(AsyncFd<OwnedFd>),
    /// The input of a terminal.
    Terminal(Arc<AsyncFd<OwnedFd>>),
    File(Log),
    /// There is no destination, or it is broken.
    Nowhere,
}

/// The reading end of a FIFO, which the shim keeps open. Otherwise writes to the FIFO would fail
/// whenever its last reader is gone.
pub(super) type Keep = Option<File>;

impl Destination {
    /// True if the output goes to a log file.
    pub fn is_file(&self) -> bool {
        matches!(self, Destination::File(_))
    }

    /// Opens the destination at an address. Does not wait for a reader of a FIFO, but waits while
    /// the disk with a file stalls.
    ///
    /// # Errors
    ///
    /// [`StdioError`]. The address of a logging program is an error here, because the program is
    /// started for both streams together.
    pub async fn open(
        stream: &'static str,
        text: &str,
        threads: &Threads,
    ) -> Result<(Destination, Keep), StdioError> {
        let failed = |source| StdioError::stream(stream, text, source);
        let (path, create) = match Address::parse(text) {
            Address::Path(path) => (PathBuf::from(path), false),
            Address::File(path) => (path, true),
            Address::Binary(_) => {
                return Err(StdioError::LoneLogger {
                    stream,
                    path: text.to_owned(),
                });
            }
            Address::Unknown { scheme } => {
                return Err(StdioError::UnknownScheme {
                    stream,
                    path: text.to_owned(),
                    scheme: scheme.to_owned(),
                });
            }
        };
        let opened = threads.run(move || Opened::at(&path, create)).await;
        let opened = opened.and_then(|opened| opened);
        opened.and_then(Opened::watched).map_err(failed)
    }

    /// Makes a destination from the writing end of a pipe.
    ///
    /// # Errors
    ///
    /// If the pipe cannot be watched.
    pub fn pipe(to: OwnedFd) -> io::Result<Destination> {
        Ok(Destination::Pipe(watch(to, Interest::WRITABLE)?))
    }

    /// Writes as much of the piece as possible without blocking; returns the rest.
    pub fn write<'a>(&mut self, piece: &'a [u8]) -> &'a [u8] {
        let written = match self {
            Destination::Nowhere => Ok(piece.len()),
            Destination::Pipe(to) => write(to.get_ref(), piece).map_err(io::Error::from),
            Destination::Terminal(to) => write(to.get_ref(), piece).map_err(io::Error::from),
            Destination::File(log) => return log.write(piece),
        };
        match written {
            Ok(length) => piece.get(length..).unwrap_or_default(),
            Err(error) if is_temporary(&error) => piece,
            Err(error) => {
                tracing::debug!(%error, "stream broken: its reader is gone");
                *self = Destination::Nowhere;
                &[]
            }
        }
    }

    /// Writes a whole piece, and waits for a slow reader.
    pub async fn write_all(&mut self, piece: Vec<u8>) {
        let mut rest = piece.as_slice();
        while !rest.is_empty() && self.is_writable().await {
            rest = self.write(rest);
        }
    }

    /// Waits until a write would not block; false if the destination is broken.
    async fn is_writable(&self) -> bool {
        let to: &AsyncFd<OwnedFd> = match self {
            Destination::Pipe(to) => to,
            Destination::Terminal(to) => to,
            Destination::File(log) => {
                log.has_room().await;
                return true;
            }
            Destination::Nowhere => return false,
        };
        while let Ok(mut writable) = to.writable().await {
            if is_ready(to.as_fd(), PollFlags::POLLOUT) {
                return true;
            }
            writable.clear_ready();
        }
        false
    }

    /// Closes the destination. If it is a file, first waits until everything has been written.
    pub async fn finish(&mut self) {
        if matches!(self, Destination::File(_))
            && let Destination::File(log) = mem::replace(self, Destination::Nowhere)
        {
            log.finish().await;
        }
    }

    /// Makes a handle for the shim's own messages; `None` without a destination.
    pub fn message_writer(&self) -> Option<MessageWriter> {
        match self {
            Destination::Pipe(_) => Some(MessageWriter::Fifo),
            Destination::File(log) => Some(MessageWriter::Log(log.message_writer())),
            Destination::Terminal(_) | Destination::Nowhere => None,
        }
    }

    /// Waits until a FIFO has a reader, or until the process is deleted. Meanwhile the shim keeps
    /// its writing end of the FIFO open. Without a writing end, a restarted containerd could not
    /// read the output, because its open(2) would wait.
    pub async fn linger(&self, phase: &mut Phases) {
        let Destination::Pipe(to) = self else {
            return;
        };
        let reader = async {
            let mut pause = FIRST_LOOK;
            while is_ready(to.get_ref().as_fd(), PollFlags::POLLERR) {
                sleep(pause).await;
                pause = pause.saturating_mul(2).min(LAST_LOOK);
            }
        };
        tokio::select! {
            () = reader => {}
            () = deleted(phase) => {}
        }
    }
}

/// An opened destination, before it is watched.
enum Opened {
    File(File),
    Fifo(Fifo),
}

/// Both ends of an open FIFO, before it is watched.
#[derive(Debug)]
pub(super) struct Fifo {
    keep: File,
    to: File,
}

impl Opened {
    #[expect(clippy::disallowed_methods, reason = "on a thread of its own")]
    fn at(path: &Path, create: bool) -> io::Result<Opened> {
        if create && let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        if fifo::is_fifo(path).or_else(|error| match create && is_missing(&error) {
            true => Ok(false),
            false => Err(error),
        })? {
            return Ok(Opened::Fifo(Fifo::open(path)?));
        }
        let file = OpenOptions::new()
            .append(true)
            .create(create)
            .mode(0o644)
            // With this flag, the open does not block even if the path has become a FIFO.
            .custom_flags(libc::O_NONBLOCK)
            .open(path)?;
        Ok(Opened::File(file))
    }

    /// Starts to watch the destination.
    ///
    /// # Errors
    ///
    /// If a FIFO cannot be watched.
    fn watched(self) -> io::Result<(Destination, Keep)> {
        match self {
            Opened::File(file) => Ok((Destination::File(Log::new(file)), None)),
            Opened::Fifo(fifo) => fifo.watched(),
        }
    }
}

impl Fifo {
    /// Opens both ends of a FIFO. Does not wait for a reader, but may block while the disk with the
    /// path stalls.
    ///
    /// # Errors
    ///
    /// If the FIFO cannot be opened, or the path is no FIFO.
    pub fn open(path: &Path) -> io::Result<Fifo> {
        let keep = fifo::open(path, End::Read)?;
        let to = fifo::open(path, End::Write)?;
        Ok(Fifo { keep, to })
    }

    /// Starts to watch the FIFO.
    ///
    /// # Errors
    ///
    /// If the FIFO cannot be watched.
    pub fn watched(self) -> io::Result<(Destination, Keep)> {
        Ok((Destination::pipe(self.to.into())?, Some(self.keep)))
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

fn is_missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}
