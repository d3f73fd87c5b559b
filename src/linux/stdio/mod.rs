//! The standard streams of a container's processes.
//!
//! containerd passes a FIFO for each stream, and reads or writes the other end. The process itself
//! gets pipes or a terminal, and the shim moves the bytes. So the process sees no broken pipe when
//! a reader such as containerd restarts, and the process has no access to containerd's FIFOs.
//! Output can also go to a file or a logging program.

mod address;
mod binary;
#[expect(clippy::disallowed_methods, reason = "the bundle is in memory")]
mod console;
mod copy;
mod destination;
mod early;
#[expect(
    clippy::disallowed_methods,
    reason = "the caller's FIFOs are in containerd's own directory, in memory; other files are opened on a thread"
)]
mod fifo;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod log;
#[expect(
    clippy::disallowed_methods,
    reason = "a FIFO that is open already is opened once more, and waits for no writer"
)]
mod passage;
mod pump;
mod streams;
mod terminal;
mod words;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{Gid, Uid, fchown, pipe2};
use thiserror::Error;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch as state;

use crate::reaper::Reaper;
use crate::sys;

pub use early::{CallerGone, EarlyFifos, EarlyOpener};
pub use passage::Unread;
pub use streams::{Streams, drain, open};
pub use terminal::Size;
pub use words::{Rest, leave_message, write_message};

/// The caller's addresses of a process's streams. An empty address means that there is no such
/// stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Paths {
    pub stdin: String,
    pub stdout: String,
    pub stderr: String,
    pub terminal: bool,
}

/// The standard streams that a process gets.
#[derive(Debug, Default)]
pub struct ProcessStdio {
    pub stdin: Option<OwnedFd>,
    pub stdout: Option<OwnedFd>,
    pub stderr: Option<OwnedFd>,
    /// Path of the socket to which the runtime sends the master of the process's terminal.
    pub console_socket: Option<PathBuf>,
}

/// Owner of the pipes, for a process in a user namespace.
#[derive(Clone, Copy, Debug, Default)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

/// The process whose streams are opened.
#[derive(Debug)]
pub struct Setting<'a> {
    /// ID of the container or exec.
    pub id: &'a str,
    /// containerd's namespace.
    pub namespace: &'a str,
    pub bundle: &'a Path,
    pub owner: Owner,
    pub reaper: &'a Reaper,
    /// True if the next process of the container may get the same streams, after a restart in
    /// place.
    pub is_shared: bool,
}

/// The error of a stream that cannot be set up.
#[derive(Debug, Error)]
pub enum StdioError {
    #[error("cannot use {stream} {path:?}: {source}")]
    Stream {
        stream: &'static str,
        path: String,
        source: io::Error,
    },
    #[error(
        "{stream} {path:?}: unknown STDIO scheme {scheme}; expected the path of a FIFO or file, a \
         log file as file://, or a logging program as binary:// or binary-v2://"
    )]
    UnknownScheme {
        stream: &'static str,
        path: String,
        scheme: String,
    },
    #[error(
        "{stream} {path:?} is a logging program; expected one for stdout, which gets both streams"
    )]
    LoneLogger { stream: &'static str, path: String },
    #[error("logging program {program:?} {error}")]
    Logger {
        program: String,
        #[source]
        error: LoggerError,
    },
    #[error("terminal: {0}")]
    Terminal(io::Error),
}

/// The reason why a logging program does not run. The message follows the program's name.
#[derive(Debug, Error)]
pub enum LoggerError {
    #[error("cannot be run: {0}")]
    NotRun(#[source] io::Error),
    #[error("was not executed within {limit:?}")]
    NotExecuted { limit: Duration },
    #[error("was not ready within {limit:?}; expected it to close descriptor 5")]
    Late { limit: Duration },
    #[error("closed descriptor 5 before it wrote a byte to it")]
    ClosedEarly,
    #[error(
        "ended with exit code {code} before it was ready; expected it to close descriptor 5 when ready"
    )]
    Exited { code: u8 },
    #[error(
        "was killed by signal {signal} before it was ready; expected it to close descriptor 5 when ready"
    )]
    Killed { signal: i32 },
    #[error("is exiting before it was ready; expected it to close descriptor 5 when ready")]
    Exiting,
    #[error("cannot be waited for: {0}")]
    Unseen(#[from] io::Error),
}

impl StdioError {
    fn stream(stream: &'static str, path: &str, source: io::Error) -> StdioError {
        StdioError::Stream {
            stream,
            path: path.to_owned(),
            source,
        }
    }
}

/// Phase of a process, which tells its pumps what to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    #[default]
    Alive,
    Ended,
    Deleted,
    /// The time limit for the rest of the process's output has passed.
    Over,
}

/// Receiver with which a pump waits for its process's exit or deletion ([`Phase`]).
type Phases = state::Receiver<Phase>;

async fn ended(phase: &mut Phases) {
    // An error means that the streams, and with them the sender, were dropped.
    let _ = phase.wait_for(|phase| *phase >= Phase::Ended).await;
}

async fn deleted(phase: &mut Phases) {
    let _ = phase.wait_for(|phase| *phase >= Phase::Deleted).await;
}

async fn over(phase: &mut Phases) {
    let _ = phase.wait_for(|phase| *phase >= Phase::Over).await;
}

/// Watches the shim's end of a pipe or terminal, and makes this end non-blocking. The process's end
/// is a separate open file that still blocks, as the process expects.
fn watch(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    let flags = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL)?);
    fcntl(&fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    sys::watch(fd, interest)
}

/// True if an operation on a descriptor would not block. The operation may still fail.
fn is_ready(fd: BorrowedFd<'_>, flag: PollFlags) -> bool {
    let mut fds = [PollFd::new(fd.as_fd(), flag)];
    // If poll(2) fails, return true: the caller's operation reports the error.
    poll(&mut fds, PollTimeout::ZERO).is_err() || fds.iter().any(|fd| fd.any().unwrap_or(true))
}

fn pipe(owner: Owner) -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
    if owner.uid != 0 || owner.gid != 0 {
        let (uid, gid) = (
            Some(Uid::from_raw(owner.uid)),
            Some(Gid::from_raw(owner.gid)),
        );
        fchown(&read, uid, gid)?;
        fchown(&write, uid, gid)?;
    }
    Ok((read, write))
}
