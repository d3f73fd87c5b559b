//! A container's network namespace. The calling thread enters the namespace and comes back, or only
//! opens a descriptor of it.
//!
//! A socket stays in the namespace in which it was made. So the thread enters the namespace only to
//! make the socket, and uses the socket from outside. Inside, the thread must not await anything:
//! another task would run in the wrong namespace.

use std::fs::File;
use std::io;

use nix::sched::{CloneFlags, setns};

use crate::reaper::Reaper;

/// Opens the network namespace of process `pid`, which has to be a child of the shim.
///
/// # Errors
///
/// If the namespace cannot be opened, or the process has exited.
pub(super) fn of(pid: i32, reaper: &Reaper) -> io::Result<File> {
    let theirs = File::open(format!("/proc/{pid}/ns/net"))?;
    // Check the process id only after the file was opened. If the shim still has this child, the
    // file belongs to the child, and not to a later process with the same id.
    match reaper.owns(pid) {
        true => Ok(theirs),
        false => Err(io::Error::other("the container has ended")),
    }
}

/// Calls `visit` in the network namespace of process `pid`, which has to be a child of the shim.
///
/// # Errors
///
/// If the namespace cannot be entered, or the error of `visit`.
pub(super) fn visit<T>(
    pid: i32,
    reaper: &Reaper,
    visit: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    let own = File::open("/proc/thread-self/ns/net")?;
    let theirs = of(pid, reaper)?;
    setns(&theirs, CloneFlags::CLONE_NEWNET)?;
    let result = visit();
    if let Err(error) = setns(&own, CloneFlags::CLONE_NEWNET) {
        // Abort: otherwise the shim would go on in the container's network.
        tracing::error!(%error, "cannot leave a container's network namespace");
        std::process::abort();
    }
    result
}
