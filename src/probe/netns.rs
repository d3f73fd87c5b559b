//! A container's network namespace: into it and back, on the calling thread, or only its descriptor.
//!
//! A socket belongs to the namespace it was made in for good, so it takes a moment's visit to make
//! it and no thread to use it. Nothing may be awaited during the visit: another task would run in
//! the wrong namespace.

use std::fs::File;
use std::io;

use nix::sched::{CloneFlags, setns};

use crate::reaper::Reaper;

/// The network namespace of process `pid`, which has to be a child of ours.
///
/// # Errors
///
/// If it cannot be opened, or the process has ended.
pub(super) fn of(pid: i32, reaper: &Reaper) -> io::Result<File> {
    let theirs = File::open(format!("/proc/{pid}/ns/net"))?;
    // Asked after the file was opened: so it is of that process, and of none that came after it.
    match reaper.owns(pid) {
        true => Ok(theirs),
        false => Err(io::Error::other("the container has ended")),
    }
}

/// Does `visit` in the network namespace of process `pid`, which has to be a child of ours.
///
/// # Errors
///
/// If the namespace cannot be entered, or what `visit` says.
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
        // All that this process did from now on would happen in a container's network.
        tracing::error!(%error, "cannot leave a container's network namespace");
        std::process::abort();
    }
    result
}
