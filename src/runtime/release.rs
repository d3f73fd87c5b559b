//! Letting a parked program be executed.
//!
//! runc's init waits until somebody opens `<root>/<id>/exec.fifo` for reading, writes one byte, and
//! executes the program. `runc start` does just that, in a process of its own, for five times the
//! cost. crun has a file of that name that works the other way round, so the file alone is no proof.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use nix::libc;
use nix::unistd::read;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

use crate::sys;

use super::OciRuntime;

/// What runc's processes are called until they execute the program (`libcontainer/nsenter`).
const PARKED: &[u8] = b"runc:[2:INIT]";

/// How often a program is looked for that is about to be executed, and how long is slept in
/// between. An execution takes a fraction of a millisecond, which is finer than the runtime's timer.
const SHORT_LOOKS: (u32, Duration) = (5, Duration::from_micros(100));

/// The same, where the machine is busy: on the timer, and for long enough.
const LONG_LOOKS: (u32, Duration) = (1000, Duration::from_millis(1));

/// Releases container `id`, whose init process is `pid`, and gives back when its program has been executed. While the container
/// is frozen that can take until `gone` ends, which it does when the init process has.
///
/// It must not be cancelled: a FIFO that is closed unread kills the container.
///
/// # Errors
///
/// One sentence if the container cannot be released, as when its init process has died.
pub async fn release(
    runtime: &OciRuntime,
    id: &str,
    pid: i32,
    has_poststart_hooks: bool,
    gone: oneshot::Receiver<()>,
) -> Result<(), String> {
    let state = runtime.state_dir(id);
    if has_poststart_hooks || !is_runc(&state) {
        // It ends by itself, and only it knows whether a program that is gone by then has run.
        return runtime.start(id).await.map_err(|error| error.to_string());
    }
    let fifo = state.join("exec.fifo");
    tokio::select! {
        biased;
        opened = open_gate(&fifo, pid) => {
            opened.map_err(|error| format!("{}: {error}", fifo.display()))
        }
        // With its init gone there is nobody left whom a closed FIFO could hurt.
        _ = gone => Err("its init process has ended".to_owned()),
    }
}

/// Whether the state directory is runc's: `state.json` beside the FIFO. crun's has `status`.
fn is_runc(state: &Path) -> bool {
    let is_fifo = std::fs::symlink_metadata(state.join("exec.fifo"))
        .is_ok_and(|metadata| metadata.file_type().is_fifo());
    is_fifo && state.join("state.json").exists() && !state.join("status").exists()
}

async fn open_gate(fifo: &Path, pid: i32) -> io::Result<()> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(fifo)?;
    let gate = sys::watch(file.into(), Interest::READABLE)?;
    if !read_byte(&gate).await? {
        return Err(io::Error::other("the init process has died"));
    }
    // runc takes a container that has the file for one that is still to be started.
    std::fs::remove_file(fifo)?;
    // Only when the program is executed may something that waits for it be released, and only then
    // is a signal meant for it not taken by runc. The other end is closed by the execution or, from
    // runc 1.1.12 on, just before it. What else there is to read does not matter.
    while read_byte(&gate).await? {}
    await_execution(pid).await;
    Ok(())
}

/// Waits until a process that runc has made executes its program, or is gone.
pub(super) async fn await_execution(pid: i32) {
    let comm = format!("/proc/{pid}/comm");
    let is_parked = || std::fs::read(&comm).is_ok_and(|comm| comm.trim_ascii_end() == PARKED);
    let (looks, pause) = SHORT_LOOKS;
    for _ in 0..looks {
        if !is_parked() {
            return;
        }
        std::thread::sleep(pause);
    }
    let (looks, pause) = LONG_LOOKS;
    for _ in 0..looks {
        if !is_parked() {
            return;
        }
        tokio::time::sleep(pause).await;
    }
}

/// Takes one byte; false if there will be none any more.
async fn read_byte(gate: &AsyncFd<OwnedFd>) -> io::Result<bool> {
    loop {
        let mut ready = gate.readable().await?;
        let mut byte = [0; 1];
        match ready.try_io(|gate| Ok(read(gate.get_ref(), &mut byte)?)) {
            Ok(Ok(count)) => return Ok(count > 0),
            Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(Err(error)) => return Err(error),
            Err(_would_block) => {}
        }
    }
}
