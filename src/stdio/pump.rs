//! Moving bytes from one pipe to another without copying them, or even seeing them: `splice(2)`.
//!
//! A pump that has nothing to move sleeps; it owns no buffer.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::read;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinHandle;

use crate::sys;

/// The capacity of a pipe on Linux, by default.
const AT_ONCE: usize = 64 * 1024;

/// Starts to move everything that comes out of `from` into `to`, until the one ends or the other
/// breaks. Both ends, and `keep`, are closed then.
///
/// # Errors
///
/// If a descriptor cannot be watched.
pub(super) fn spawn(from: OwnedFd, to: OwnedFd, keep: Option<File>) -> io::Result<JoinHandle<()>> {
    let from = watch(from, Interest::READABLE)?;
    let to = watch(to, Interest::WRITABLE)?;
    Ok(tokio::spawn(async move {
        if let Err(error) = pump(&from, &to).await {
            tracing::debug!(%error, "a stream ended early");
        }
        drop(keep);
    }))
}

/// Starts to append everything that comes out of `from` to a file, which cannot be spliced to.
///
/// # Errors
///
/// If the descriptor cannot be watched.
pub(super) fn spawn_to_file(from: OwnedFd, mut file: File) -> io::Result<JoinHandle<()>> {
    let from = watch(from, Interest::READABLE)?;
    Ok(tokio::spawn(async move {
        if let Err(error) = copy(&from, &mut file).await {
            tracing::warn!(%error, "a log file ended early");
        }
    }))
}

async fn copy(from: &AsyncFd<OwnedFd>, file: &mut File) -> io::Result<()> {
    loop {
        let mut ready = from.readable().await?;
        // Not kept from one piece to the next: a process that says nothing costs nothing.
        let mut piece = [0; 4096];
        match ready.try_io(|from| Ok(read(from.get_ref(), &mut piece)?)) {
            Ok(Ok(0)) => return Ok(()),
            Ok(Ok(length)) => file.write_all(piece.get(..length).unwrap_or_default())?,
            Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(Err(error)) => return Err(error),
            Err(_would_block) => {}
        }
    }
}

/// Only our end is made non-blocking: the other end of a pipe is an open file of its own, and the
/// process behind it expects it to block.
fn watch(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    let flags = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL)?);
    fcntl(&fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    sys::watch(fd, interest)
}

async fn pump(from: &AsyncFd<OwnedFd>, to: &AsyncFd<OwnedFd>) -> io::Result<()> {
    loop {
        let mut readable = from.readable().await?;
        let flags = SpliceFFlags::SPLICE_F_NONBLOCK | SpliceFFlags::SPLICE_F_MOVE;
        match splice(from.get_ref(), None, to.get_ref(), None, AT_ONCE, flags) {
            Ok(0) => return Ok(()),
            Ok(_) | Err(Errno::EINTR) => {}
            // It does not say which of the two would block.
            Err(Errno::EAGAIN) if has_input(from)? => {
                let mut writable = to.writable().await?;
                if !is_ready(to.get_ref(), PollFlags::POLLOUT)? {
                    writable.clear_ready();
                }
            }
            Err(Errno::EAGAIN) => readable.clear_ready(),
            Err(error) => return Err(error.into()),
        }
    }
}

fn has_input(from: &AsyncFd<OwnedFd>) -> io::Result<bool> {
    is_ready(from.get_ref(), PollFlags::POLLIN)
}

fn is_ready(fd: &OwnedFd, flag: PollFlags) -> io::Result<bool> {
    let mut fds = [PollFd::new(fd.as_fd(), flag)];
    poll(&mut fds, PollTimeout::ZERO)?;
    Ok(fds.iter().any(|fd| fd.any().unwrap_or(false)))
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use nix::unistd::pipe2;

    use super::*;

    fn pipe() -> (File, File) {
        let (read, write) = pipe2(OFlag::O_CLOEXEC).unwrap();
        (File::from(read), File::from(write))
    }

    fn current_thread() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    }

    #[test]
    fn everything_arrives_though_the_reader_is_slower_than_any_pipe_is_large() {
        current_thread().block_on(async {
            let ((from, mut input), (mut output, to)) = (pipe(), pipe());
            let pump = spawn(from.into(), to.into(), None).unwrap();
            let sent: Vec<u8> = (0..1_000_000_u32).map(|n| (n % 251) as u8).collect();
            let copy = sent.clone();
            let writer = std::thread::spawn(move || input.write_all(&copy).unwrap());
            let reader = tokio::task::spawn_blocking(move || {
                let mut received = Vec::new();
                output.read_to_end(&mut received).unwrap();
                received
            });
            assert!(reader.await.unwrap() == sent);
            writer.join().unwrap();
            pump.await.unwrap();
        });
    }

    #[test]
    fn the_end_of_the_one_is_the_end_of_the_other() {
        current_thread().block_on(async {
            let ((from, input), (mut output, to)) = (pipe(), pipe());
            let pump = spawn(from.into(), to.into(), None).unwrap();
            drop(input);
            pump.await.unwrap();
            let mut rest = Vec::new();
            assert_eq!(output.read_to_end(&mut rest).unwrap(), 0);
        });
    }
}
