//! The standard streams of a container's processes.
//!
//! containerd gives a FIFO for each stream and reads or writes its other end. The process itself
//! gets pipes or a terminal, and the shim pumps between them: so a reader that goes away, as
//! containerd does when it is restarted, is no broken pipe to the process, and nothing the process
//! does to its streams reaches containerd's files. Output can go to a file or to a logging program
//! as well.

mod address;
#[expect(clippy::disallowed_methods, reason = "/proc")]
mod binary;
#[expect(clippy::disallowed_methods, reason = "the bundle is in memory")]
mod console;
mod copy;
#[expect(
    clippy::disallowed_methods,
    reason = "the caller's FIFOs are in containerd's own directory, in memory; other files are opened on a thread"
)]
mod fifo;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod log;
mod outlet;
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

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{Gid, Uid, fchown, pipe2};
use thiserror::Error;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch as state;

use crate::reaper::Reaper;
use crate::sys;

pub use passage::{TOLD_WITHIN, Unread};
pub use streams::{Streams, drain, open};
pub use terminal::Size;
pub use words::{Rest, leave_message, tell};

/// The paths and addresses that the caller gave for a process's streams; an empty one means none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Paths {
    pub stdin: String,
    pub stdout: String,
    pub stderr: String,
    pub terminal: bool,
}

/// Standard streams to give to a process.
#[derive(Debug, Default)]
pub struct ProcessStdio {
    pub stdin: Option<OwnedFd>,
    pub stdout: Option<OwnedFd>,
    pub stderr: Option<OwnedFd>,
    /// Where the runtime is to send the master of the terminal that it makes for the process.
    pub console_socket: Option<PathBuf>,
}

/// Who owns the pipes, for a process in a user namespace.
#[derive(Clone, Copy, Debug, Default)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

/// Whose streams they are.
#[derive(Debug)]
pub struct Setting<'a> {
    /// The id of the container, or of the exec.
    pub id: &'a str,
    /// containerd's.
    pub namespace: &'a str,
    pub bundle: &'a Path,
    pub owner: Owner,
    pub reaper: &'a Reaper,
    /// Another process will have them when this one has ended.
    pub is_shared: bool,
}

/// A stream cannot be set up.
#[derive(Debug, Error)]
pub enum StdioError {
    #[error("{stream} {path:?}: {source}")]
    Stream {
        stream: &'static str,
        path: String,
        source: io::Error,
    },
    #[error(
        "{stream} {path:?}: unknown STDIO scheme {scheme}, expected a path, file://, binary:// or binary-v2://"
    )]
    UnknownScheme {
        stream: &'static str,
        path: String,
        scheme: String,
    },
    #[error("{stream} {path:?} is a logging program, expected one for stdout, which takes both")]
    LoneLogger { stream: &'static str, path: String },
    #[error("logging program {program:?} {reason}")]
    Logger { program: String, reason: String },
    #[error("terminal: {0}")]
    Terminal(io::Error),
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

/// How far a process has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    #[default]
    Alive,
    Ended,
    Deleted,
    /// What has not come out of its pipes by now will not be waited for.
    Over,
}

/// Tells pumps of their process.
type Phases = state::Receiver<Phase>;

async fn ended(phase: &mut Phases) {
    // Who tells is dropped with the streams.
    let _ = phase.wait_for(|phase| *phase >= Phase::Ended).await;
}

async fn deleted(phase: &mut Phases) {
    let _ = phase.wait_for(|phase| *phase >= Phase::Deleted).await;
}

async fn over(phase: &mut Phases) {
    let _ = phase.wait_for(|phase| *phase >= Phase::Over).await;
}

/// Watches our end of a pipe or terminal. Only ours is made non-blocking: the other end is an open
/// file of its own, and the process behind it expects it to block.
fn watch(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    let flags = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL)?);
    fcntl(&fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    sys::watch(fd, interest)
}

/// Whether something can be done with a descriptor now, or fails at once.
fn is_ready(fd: BorrowedFd<'_>, flag: PollFlags) -> bool {
    let mut fds = [PollFd::new(fd.as_fd(), flag)];
    // Who asks tries it then, and learns of any error.
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
