//! Releases a container whose init process waits to execute the program.
//!
//! runc's init waits until a reader opens `<root>/<id>/exec.fifo`, writes one byte, and executes
//! the program. `runc start` opens the FIFO too, but in a process of its own, which costs five
//! times as much. crun uses a file of the same name in the opposite direction, so the file alone
//! does not prove that it is runc's.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use nix::libc;
use nix::unistd::read;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

use usher_engine::EngineError;
use usher_linux::{PathError, sys};

use super::{OciRuntime, state};

/// Name of runc's processes until they execute the program (`libcontainer/nsenter`).
const PARKED: &[u8] = b"runc:[2:INIT]";

/// Number of quick checks, and the pause after each. The checks find out if the container's program
/// has been executed. The pauses block the thread, because an execution takes a fraction of a
/// millisecond, less than a tick of tokio's timer.
const SHORT_LOOKS: (u32, Duration) = (5, Duration::from_micros(100));

/// Number of slow checks, and the pause after each. On a busy machine they follow the quick checks.
/// The pauses use tokio's timer, so they do not block the thread.
const LONG_LOOKS: (u32, Duration) = (1000, Duration::from_millis(1));

/// Releases container `id` with init process `pid`, and returns once its program has been executed.
/// If the container is frozen, this waits until the container is thawed, or until `gone` resolves
/// because the init has exited.
///
/// The future must not be dropped early. If the shim closes runc's FIFO before the init has written
/// its byte, the init dies.
///
/// # Errors
///
/// If the container cannot be released, for example because its init has died.
pub async fn release(
    runtime: &OciRuntime,
    id: &str,
    pid: i32,
    has_poststart_hooks: bool,
    mut gone: oneshot::Receiver<()>,
) -> Result<(), EngineError> {
    let directory = runtime.state_dir(id);
    if has_poststart_hooks || !state::is_parked_by_runc(&directory) {
        // The runtime's `start` command returns even if the program has already exited, so `gone`
        // is not needed. The command's result tells if the program was executed.
        return Ok(runtime.start(id).await?);
    }
    let fifo = state::fifo(&directory);
    let cannot = |verb, error| EngineError::failed(PathError::cannot(verb, &fifo)(error));
    let gate = open_gate(&fifo).map_err(|error| cannot("open", error))?;
    let (is_open, is_gone) = tokio::select! {
        biased;
        byte = read_byte(&gate) => (byte.map_err(|error| cannot("read", error))?, false),
        // The init has exited, so closing the FIFO can no longer kill it. Just before the execution
        // of the program, the init writes a byte into the FIFO. If the FIFO has the byte, the
        // container counts as released. Otherwise the init died before the execution.
        _ = &mut gone => (take_byte(&gate).is_ok_and(|count| count > 0), true),
    };
    if !is_open {
        return Err(EngineError::init_gone());
    }
    // As long as this file exists, runc treats the container as not started yet.
    std::fs::remove_file(&fifo).map_err(|error| cannot("remove", error))?;
    if !is_gone {
        // The init has written its byte. So the container counts as released, even if the program
        // exits before the shim notices the execution.
        tokio::select! {
            biased;
            () = see_execution(&gate, pid) => {}
            _ = gone => {}
        }
    }
    Ok(())
}

fn open_gate(fifo: &Path) -> io::Result<AsyncFd<OwnedFd>> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(fifo)?;
    sys::watch(file.into(), Interest::READABLE)
}

/// Waits until the program has been executed. Before the execution, containers that wait for this
/// container must not be released, and runc's code would handle a signal that is meant for the
/// program.
async fn see_execution(gate: &AsyncFd<OwnedFd>, pid: i32) {
    // Read until the init closes its end of the FIFO. The execution closes this end; runc 1.1.12
    // and later close it just before. Bytes that come until then do not matter.
    while read_byte(gate).await.unwrap_or(false) {}
    await_execution(pid).await;
}

/// Waits until a process of runc's has executed its program or is gone. Gives up after about a
/// second.
pub async fn await_execution(pid: i32) {
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

/// Reads one byte; false at the end of the file.
async fn read_byte(gate: &AsyncFd<OwnedFd>) -> io::Result<bool> {
    loop {
        let mut ready = gate.readable().await?;
        match ready.try_io(take_byte) {
            Ok(Ok(count)) => return Ok(count > 0),
            Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(Err(error)) => return Err(error),
            Err(_would_block) => {}
        }
    }
}

fn take_byte(gate: &AsyncFd<OwnedFd>) -> io::Result<usize> {
    Ok(read(gate.get_ref(), &mut [0; 1])?)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::path::PathBuf;
    use std::process::{Child, Command, Stdio};

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use crate::Options;
    use usher_linux::reaper::Reaper;

    use super::*;

    /// The state directory and the FIFO that runc leaves for a container whose program is not
    /// executed yet.
    fn parked(dir: &Path) -> (OciRuntime, PathBuf) {
        let options = Options {
            root: dir.display().to_string(),
            ..Options::default()
        };
        let runtime = OciRuntime::new(&options, "default", dir, Reaper::default());
        let state = runtime.state_dir("a");
        std::fs::create_dir_all(&state).unwrap();
        std::fs::write(state.join("state.json"), "{}").unwrap();
        let fifo = state.join("exec.fifo");
        mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        (runtime, fifo)
    }

    /// Starts a process that has the name of runc's init process ([`PARKED`]).
    fn init() -> Child {
        let mut init = Command::new("/bin/sh")
            .args([
                "-c",
                "printf 'runc:[2:INIT]' > /proc/$$/comm; echo; read end",
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = init.stdout.as_mut().unwrap();
        stdout.read_exact(&mut [0]).unwrap();
        init
    }

    /// Simulates a busy machine, on which the shim notices the program's exit before it notices the
    /// program's execution.
    #[tokio::test]
    async fn a_program_that_exits_before_its_execution_is_seen_counts_as_released() {
        let dir = tempfile::tempdir().unwrap();
        let (runtime, fifo) = parked(dir.path());
        let mut init = init();
        let pid = i32::try_from(init.id()).unwrap();
        let path = fifo.clone();
        let writer = std::thread::spawn(move || {
            let mut fifo = OpenOptions::new().write(true).open(path).unwrap();
            fifo.write_all(b"0").unwrap();
        });
        let (is_there, gone) = oneshot::channel();
        let end = async {
            while fifo.exists() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            drop(is_there);
        };
        let (released, ()) = tokio::join!(release(&runtime, "a", pid, false, gone), end);
        drop(init.stdin.take());
        init.wait().unwrap();
        writer.join().unwrap();
        assert_eq!(released, Ok(()));
    }

    #[tokio::test]
    async fn a_byte_that_an_init_wrote_before_it_died_counts_as_released() {
        let dir = tempfile::tempdir().unwrap();
        for (written, expected) in [(&b"0"[..], Ok(())), (b"", Err(EngineError::init_gone()))] {
            let (runtime, fifo) = parked(&dir.path().join(written.len().to_string()));
            let mut both_ends = OpenOptions::new();
            let mut both_ends = both_ends.read(true).write(true).open(&fifo).unwrap();
            both_ends.write_all(written).unwrap();
            let (is_there, gone) = oneshot::channel();
            drop(is_there);
            let released = release(&runtime, "a", 1, false, gone).await;
            assert_eq!(released, expected);
        }
    }
}
