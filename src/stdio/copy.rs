//! Moving bytes by reading and writing them, where they cannot be spliced: from terminals, and to
//! files.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;

use nix::errno::Errno;
use nix::unistd::read;
use tokio::io::unix::AsyncFd;

use super::outlet::Outlet;
use super::passage::Passage;

/// Several pages of a pipe. A terminal gives one at once.
const AT_ONCE: usize = 16 * 1024;

/// How much is still read from a terminal when its process has ended: far more than a terminal
/// holds, and not all that some other process may write to it without end.
const LAST_AT_MOST: usize = 256 * 1024;

/// What a look at the source gave.
enum Taken {
    /// So many bytes have been written; these could not be yet.
    Piece(usize, Vec<u8>),
    Nothing,
    End,
}

/// Passes on everything that comes out of `from` until it ends; once `last` is over, what is there
/// already. `passage` counts it.
///
/// # Errors
///
/// If `from` cannot be read.
pub(super) async fn copy(
    from: &AsyncFd<OwnedFd>,
    to: &mut Outlet,
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

/// The buffer is on the stack: a process that says nothing costs nothing.
fn take(from: &OwnedFd, to: &mut Outlet) -> io::Result<Taken> {
    let mut piece = [0; AT_ONCE];
    match read(from, &mut piece) {
        // A terminal says EIO when nobody has it open.
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
