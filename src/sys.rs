//! The system calls that have no safe wrapper, each with the reason why it is sound.

use std::io;
use std::os::fd::OwnedFd;

use nix::libc;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::lifecycle::ExitStatus;

/// Sends signal number `signal` to process `pid`.
///
/// nix's `kill` takes an enum without the real-time signals, which are stop signals of real images
/// (systemd's is RTMIN+3).
///
/// # Errors
///
/// `ESRCH` if there is no such process, `EINVAL` if there is no such signal, `EPERM`.
pub fn kill(pid: i32, signal: i32) -> io::Result<()> {
    if pid <= 0 {
        // Zero and negative numbers mean process groups, and -1 everything there is.
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: kill(2) takes two integers and touches no memory of this process.
    match unsafe { libc::kill(pid, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Collects the exit of any child that has ended; none if no child has.
///
/// nix's `waitpid` fails for a child that died of a real-time signal, after the kernel has
/// forgotten it: its exit would be lost, and whoever waits for it would wait for ever.
///
/// # Errors
///
/// `ECHILD` if there are no children at all, `EINTR`.
pub fn wait_any() -> io::Result<Option<(i32, ExitStatus)>> {
    let mut status = 0;
    // SAFETY: waitpid(2) writes one integer, to a variable that outlives the call.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
    match pid {
        0 => Ok(None),
        pid if pid < 0 => Err(io::Error::last_os_error()),
        pid if libc::WIFSIGNALED(status) => {
            Ok(Some((pid, ExitStatus::Signal(libc::WTERMSIG(status)))))
        }
        // The kernel gives eight bits.
        pid => Ok(Some((
            pid,
            ExitStatus::Code((libc::WEXITSTATUS(status) & 0xff) as u8),
        ))),
    }
}

/// Watches a descriptor for being ready.
///
/// # Errors
///
/// If the kernel cannot watch it, or has no room for one more.
pub fn watch(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the AsyncFd owns the descriptor, which so stays open, and an OwnedFd always gives the
    // same one.
    let watched = unsafe { AsyncFd::register_with_interest(fd, interest) };
    watched.map_err(|failed| failed.into_parts().1)
}
