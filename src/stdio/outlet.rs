//! The far end of a process's output: whoever reads it, or the file that keeps it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::libc;
use nix::poll::PollFlags;
use nix::unistd::write;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{sleep, timeout};

use super::address::Address;
use super::fifo::{self, End};
use super::{Phases, StdioError, deleted, is_ready, watch};

/// How long the end of a process's output waits for its first reader. containerd's runc shim waits
/// that long as well, but with its answer to Create.
const READER_COMES_WITHIN: Duration = Duration::from_secs(30);

const FIRST_LOOK: Duration = Duration::from_millis(1);
const LAST_LOOK: Duration = Duration::from_secs(1);

/// Where output goes.
#[derive(Debug)]
pub(super) enum Outlet {
    Pipe(AsyncFd<OwnedFd>),
    /// The input of a terminal.
    Terminal(Arc<AsyncFd<OwnedFd>>),
    File(LogFile),
    /// It is broken, or there never was one.
    Nowhere,
}

/// A file that output is appended to.
#[derive(Debug)]
pub(super) struct LogFile {
    file: File,
    is_failing: bool,
}

/// An end for reading of a FIFO: without any reader it breaks, and readers come and go.
pub(super) type Keep = Option<File>;

impl Outlet {
    /// Opens what a stream's text names, without waiting for a reader.
    ///
    /// # Errors
    ///
    /// [`StdioError`]. A logging program is none of its own: it takes both streams.
    pub fn open(stream: &'static str, text: &str) -> Result<(Outlet, Keep), StdioError> {
        let failed = |source| StdioError::stream(stream, text, source);
        match Address::parse(text) {
            Address::Path(path) => open_path(Path::new(path), false).map_err(failed),
            Address::File(path) => open_path(&path, true).map_err(failed),
            Address::Binary(_) => Err(StdioError::LoneLogger {
                stream,
                path: text.to_owned(),
            }),
            Address::Unknown { scheme } => Err(StdioError::UnknownScheme {
                stream,
                path: text.to_owned(),
                scheme: scheme.to_owned(),
            }),
        }
    }

    /// A pipe to somebody who reads it.
    ///
    /// # Errors
    ///
    /// If it cannot be watched.
    pub fn pipe(to: OwnedFd) -> io::Result<Outlet> {
        Ok(Outlet::Pipe(watch(to, Interest::WRITABLE)?))
    }

    /// Writes what can be written without waiting; the rest.
    pub fn write<'a>(&mut self, piece: &'a [u8]) -> &'a [u8] {
        let written = match self {
            Outlet::Nowhere => Ok(piece.len()),
            Outlet::Pipe(to) => write(to.get_ref(), piece).map_err(io::Error::from),
            Outlet::Terminal(to) => write(to.get_ref(), piece).map_err(io::Error::from),
            Outlet::File(log) => {
                log.append(piece);
                Ok(piece.len())
            }
        };
        match written {
            Ok(length) => piece.get(length..).unwrap_or_default(),
            Err(error) if is_temporary(&error) => piece,
            Err(error) => {
                tracing::debug!(%error, "a stream is over: nobody takes it any more");
                *self = Outlet::Nowhere;
                &[]
            }
        }
    }

    /// Writes all of a piece, however slow the reader is.
    pub async fn write_all(&mut self, piece: Vec<u8>) {
        let mut rest = piece.as_slice();
        while !rest.is_empty() && self.is_writable().await {
            rest = self.write(rest);
        }
    }

    /// Waits until something can be written; false if there is nothing to wait for.
    async fn is_writable(&self) -> bool {
        let to: &AsyncFd<OwnedFd> = match self {
            Outlet::Pipe(to) => to,
            Outlet::Terminal(to) => to,
            Outlet::File(_) | Outlet::Nowhere => return false,
        };
        while let Ok(mut writable) = to.writable().await {
            if is_ready(to.as_fd(), PollFlags::POLLOUT) {
                return true;
            }
            writable.clear_ready();
        }
        false
    }

    /// Keeps a FIFO open that nobody reads: its reader may be about to come, and would find neither
    /// the last words nor their end.
    pub async fn linger(&self, phase: &mut Phases) {
        let Outlet::Pipe(to) = self else {
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
            _ = timeout(READER_COMES_WITHIN, reader) => {}
            () = deleted(phase) => {}
        }
    }
}

impl LogFile {
    /// What cannot be written is lost: a disk that is full for a while is no reason to end the
    /// process, nor the log.
    fn append(&mut self, piece: &[u8]) {
        let appended = self.file.write_all(piece);
        if let (Err(error), false) = (&appended, self.is_failing) {
            tracing::warn!(%error, "output is lost: the log file cannot be written");
        }
        self.is_failing = appended.is_err();
    }
}

fn open_path(path: &Path, create: bool) -> io::Result<(Outlet, Keep)> {
    if create && let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    if fifo::is_fifo(path).or_else(|error| match create && is_missing(&error) {
        true => Ok(false),
        false => Err(error),
    })? {
        let keep = fifo::open(path, End::Read)?;
        let to = watch(fifo::open(path, End::Write)?.into(), Interest::WRITABLE)?;
        return Ok((Outlet::Pipe(to), Some(keep)));
    }
    let file = OpenOptions::new()
        .append(true)
        .create(create)
        .mode(0o644)
        // Whatever it is by now, it is not waited for.
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    let log = LogFile {
        file,
        is_failing: false,
    };
    Ok((Outlet::File(log), None))
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
