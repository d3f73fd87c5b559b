//! Moving a process's output to whoever reads it, and its input to the process.
//!
//! From pipe to pipe without copying the bytes, or even seeing them: `splice(2)`. A pump that has
//! nothing to move sleeps; it owns no buffer.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{SpliceFFlags, splice};
use nix::poll::PollFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::copy::copy;
use super::outlet::{Keep, Outlet};
use super::terminal::Terminal;
use super::{Phases, deleted, ended, is_ready, over, watch};

/// The capacity of a pipe on Linux, by default.
const AT_ONCE: usize = 64 * 1024;

/// Starts to pass on all that a process writes to a pipe, until it ends.
///
/// # Errors
///
/// If the pipe cannot be watched.
pub(super) fn spawn_output(
    from: OwnedFd,
    mut to: Outlet,
    keep: Keep,
    mut phase: Phases,
) -> io::Result<JoinHandle<()>> {
    let from = watch(from, Interest::READABLE)?;
    Ok(tokio::spawn(async move {
        let is_kept = keep.is_some();
        let mut phase_of_process = phase.clone();
        let moved = async {
            match &to {
                Outlet::Pipe(to) => move_all(&from, to).await,
                _ => copy(&from, &mut to, over(&mut phase_of_process)).await,
            }
        };
        report(until_deleted(moved, keep, &mut phase).await);
        drop(from);
        to.finish().await;
        if is_kept {
            to.linger(&mut phase).await;
        }
    }))
}

/// Starts to pass on all that comes out of a terminal, until its process has ended or its input is
/// over. A process that has ended may have left another one behind that has the terminal open.
pub(super) fn spawn_terminal_output(
    terminal: Terminal,
    mut to: Outlet,
    keep: Keep,
    mut phase: Phases,
    input_over: Option<oneshot::Receiver<()>>,
) -> JoinHandle<()> {
    tokio::spawn(async move {
        let Terminal { master, peer } = terminal;
        let is_kept = keep.is_some();
        let mut phase_of_process = phase.clone();
        let last = async move {
            let input_over = async {
                match input_over {
                    // Nothing is ever sent.
                    Some(over) => drop(over.await),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = ended(&mut phase_of_process) => {}
                () = input_over => {}
            }
            drop(peer);
        };
        let copied = copy(&master, &mut to, last);
        report(until_deleted(copied, keep, &mut phase).await);
        drop(master);
        to.finish().await;
        if is_kept {
            to.linger(&mut phase).await;
        }
    })
}

/// Starts to pass on what comes out of a FIFO to a process's pipe.
///
/// # Errors
///
/// If they cannot be watched.
pub(super) fn spawn_input(from: OwnedFd, to: OwnedFd) -> io::Result<JoinHandle<()>> {
    let from = watch(from, Interest::READABLE)?;
    let to = watch(to, Interest::WRITABLE)?;
    Ok(tokio::spawn(async move {
        report(move_all(&from, &to).await);
    }))
}

/// Starts to pass on what comes out of a FIFO to a process's terminal. `over` is dropped at the end.
///
/// # Errors
///
/// If the FIFO cannot be watched.
pub(super) fn spawn_terminal_input(
    from: OwnedFd,
    to: Arc<AsyncFd<OwnedFd>>,
    over: oneshot::Sender<()>,
) -> io::Result<JoinHandle<()>> {
    let from = watch(from, Interest::READABLE)?;
    Ok(tokio::spawn(async move {
        let mut to = Outlet::Terminal(to);
        report(copy(&from, &mut to, std::future::pending()).await);
        drop((to, over));
    }))
}

fn report(moved: io::Result<()>) {
    if let Err(error) = moved {
        tracing::debug!(%error, "a stream ended early");
    }
}

/// Does `work`, and lets go of the shim's own reading end of the FIFO when the process is deleted:
/// a client that deletes it has read what it wanted, and the rest is for nobody.
async fn until_deleted<T>(work: impl Future<Output = T>, keep: Keep, phase: &mut Phases) -> T {
    let mut work = pin!(work);
    tokio::select! {
        biased;
        done = &mut work => return done,
        () = deleted(phase) => {}
    }
    drop(keep);
    work.await
}

async fn move_all(from: &AsyncFd<OwnedFd>, to: &AsyncFd<OwnedFd>) -> io::Result<()> {
    loop {
        let mut readable = from.readable().await?;
        let flags = SpliceFFlags::SPLICE_F_NONBLOCK | SpliceFFlags::SPLICE_F_MOVE;
        match splice(from.get_ref(), None, to.get_ref(), None, AT_ONCE, flags) {
            Ok(0) => return Ok(()),
            Ok(_) | Err(Errno::EINTR) => {}
            // It does not say which of the two would block.
            Err(Errno::EAGAIN) if is_ready(from.as_fd(), PollFlags::POLLIN) => {
                let mut writable = to.writable().await?;
                if !is_ready(to.as_fd(), PollFlags::POLLOUT) {
                    writable.clear_ready();
                }
            }
            Err(Errno::EAGAIN) => readable.clear_ready(),
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};

    use nix::fcntl::OFlag;
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
            let pump = spawn_input(from.into(), to.into()).unwrap();
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
            let pump = spawn_input(from.into(), to.into()).unwrap();
            drop(input);
            pump.await.unwrap();
            let mut rest = Vec::new();
            assert_eq!(output.read_to_end(&mut rest).unwrap(), 0);
        });
    }
}
