//! Copies bytes where splice(2) is not possible: from terminals, and to files.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;

use nix::errno::Errno;
use nix::unistd::read;
use tokio::io::unix::AsyncFd;

use super::destination::Destination;
use super::passage::Passage;

/// Maximum number of bytes of one read: several pages of a pipe. A terminal returns at most one
/// page.
const AT_ONCE: usize = 16 * 1024;

/// Maximum number of bytes that are read from a terminal after its process has exited. This is far
/// more than a terminal holds; without a limit, another process could write to the terminal
/// forever.
const LAST_AT_MOST: usize = 256 * 1024;

enum Taken {
    /// The number of bytes written, and the bytes that could not be written yet.
    Piece(usize, Vec<u8>),
    Nothing,
    End,
}

/// Copies from `from` until its end. After `last` resolves, copies only the bytes that have already
/// arrived. `passage` counts the bytes.
///
/// # Errors
///
/// If `from` cannot be read.
pub(super) async fn copy(
    from: &AsyncFd<OwnedFd>,
    to: &mut Destination,
    last: impl Future<Output = ()>,
    passage: Option<&Passage>,
) -> io::Result<()> {
    let count = |bytes| {
        if let Some(passage) = passage {
            passage.count(bytes);
        }
    };
    let mut last = pin!(last);
    loop {
        let mut ready = tokio::select! {
            ready = from.readable() => ready?,
            () = &mut last => break,
        };
        match take(from.get_ref(), to)? {
            Taken::Piece(length, rest) => {
                to.write_all(rest).await;
                count(length);
            }
            Taken::Nothing => ready.clear_ready(),
            Taken::End => return Ok(()),
        }
    }
    let mut left = LAST_AT_MOST;
    while left > 0
        && let Taken::Piece(length, rest) = take(from.get_ref(), to)?
    {
        left = left.saturating_sub(length);
        to.write_all(rest).await;
        count(length);
    }
    Ok(())
}

/// Reads and writes a piece. The buffer is on the stack, so a silent process takes no memory.
fn take(from: &OwnedFd, to: &mut Destination) -> io::Result<Taken> {
    let mut piece = [0; AT_ONCE];
    match read(from, &mut piece) {
        // A terminal returns EIO when no process has the terminal open.
        Ok(0) | Err(Errno::EIO) => Ok(Taken::End),
        Ok(length) => {
            let rest = to.write(piece.get(..length).unwrap_or_default());
            Ok(Taken::Piece(length, rest.to_vec()))
        }
        Err(Errno::EINTR) => Ok(Taken::Piece(0, Vec::new())),
        Err(Errno::EAGAIN) => Ok(Taken::Nothing),
        Err(error) => Err(error.into()),
    }
}
