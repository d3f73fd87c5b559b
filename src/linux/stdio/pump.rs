//! Pumps: they move a process's output to its destination, and its input to the process.
//!
//! Between pipes, pumps use `splice(2)`, which copies nothing to user space. An idle pump sleeps
//! and has no buffer.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::{Pin, pin};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{SpliceFFlags, splice};
use nix::poll::PollFlags;
use nix::unistd::read;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::copy::copy;
use super::destination::{Destination, Keep};
use super::passage::{Passage, Source};
use super::terminal::Terminal;
use super::{Phases, deleted, ended, is_ready, over, watch};

/// Maximum number of bytes that one splice(2) moves: the default capacity of a pipe on Linux.
const AT_ONCE: usize = 64 * 1024;

#[derive(Debug)]
pub(super) struct Output {
    pub pump: JoinHandle<()>,
    /// Counts the bytes that the pump moves into a FIFO; `None` for other destinations.
    pub passage: Option<Arc<Passage>>,
    /// True if the output goes to a log file, where the disk may stall.
    pub is_logged: bool,
}

/// Maximum number of bytes of the OCI runtime's output that are kept back while its command runs.
/// If the output is longer, all of it is passed on at once, because a command whose pipe is full
/// would never exit.
const KEPT_BACK_AT_MOST: usize = 64 * 1024;

/// Maximum number of bytes of the runtime's output that one call reads.
const PIECE: usize = 4096;

/// Starts a pump from a pipe, which runs until the pipe ends. The pump keeps output back until it
/// receives `begin`. If the sender of `begin` is dropped, the pump discards the output.
///
/// # Errors
///
/// If the pipe cannot be watched.
pub(super) fn spawn_output(
    from: OwnedFd,
    mut to: Destination,
    keep: Keep,
    mut phase: Phases,
    begin: oneshot::Receiver<()>,
) -> io::Result<Output> {
    let from = Arc::new(watch(from, Interest::READABLE)?);
    let keep = keep.map(Arc::new);
    let source = || Source::Pipe(Arc::downgrade(&from));
    let passage = keep.as_ref().map(|fifo| Passage::new(source(), fifo));
    let passage = passage.map(Arc::new);
    let counted = passage.clone();
    let is_logged = to.is_file();
    let pump = tokio::spawn(async move {
        let passage = passage.as_deref();
        let mut phase_of_process = phase.clone();
        let moved = async {
            let Some(kept_back) = keep_back(&from, begin, passage).await? else {
                return Ok(());
            };
            let length = kept_back.len();
            let rest = to.write(&kept_back).to_vec();
            drop(kept_back);
            to.write_all(rest).await;
            if let Some(passage) = passage {
                passage.count(length);
                passage.keep_back(0);
            }
            match &to {
                Destination::Pipe(to) => move_all(&from, to, passage).await,
                _ => copy(&from, &mut to, over(&mut phase_of_process), passage).await,
            }
        };
        report(until_deleted(pin!(moved), keep, &mut phase).await);
        drop(from);
        to.finish().await;
        if let Some(passage) = passage {
            finish(passage, to, &mut phase).await;
        }
    });
    Ok(Output {
        pump,
        passage: counted,
        is_logged,
    })
}

/// Starts a pump from a terminal. The pump ends when the process has exited, or when the input has
/// ended. The terminal itself does not always end when the process exits, because another process
/// may have it open.
pub(super) fn spawn_terminal_output(
    terminal: Terminal,
    mut to: Destination,
    keep: Keep,
    mut phase: Phases,
    input_over: Option<oneshot::Receiver<()>>,
) -> Output {
    let keep = keep.map(Arc::new);
    let passage = keep
        .as_ref()
        .map(|fifo| Passage::new(Source::Terminal, fifo));
    let passage = passage.map(Arc::new);
    let counted = passage.clone();
    let is_logged = to.is_file();
    let pump = tokio::spawn(async move {
        let passage = passage.as_deref();
        let Terminal { master, peer } = terminal;
        let mut phase_of_process = phase.clone();
        let last = async move {
            let input_over = async {
                match input_over {
                    // This resolves when the sender is dropped.
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
        let copied = copy(&master, &mut to, last, passage);
        report(until_deleted(pin!(copied), keep, &mut phase).await);
        drop(master);
        to.finish().await;
        if let Some(passage) = passage {
            finish(passage, to, &mut phase).await;
        }
    });
    Output {
        pump,
        passage: counted,
        is_logged,
    }
}

/// Closes the FIFO's writing end once the FIFO has a reader. Keeps a reading end open until the
/// process is deleted, so that the shim can count unread output.
async fn finish(passage: &Passage, to: Destination, phase: &mut Phases) {
    passage.end();
    to.linger(phase).await;
    let Destination::Pipe(fifo) = &to else { return };
    match passage.reopen(fifo) {
        Ok(kept) => {
            drop(to);
            deleted(phase).await;
            drop(kept);
        }
        Err(error) => tracing::debug!(%error, "an exit does not wait for its output"),
    }
}

/// Starts a pump from a FIFO to a process's pipe.
///
/// # Errors
///
/// If the FIFO or the pipe cannot be watched.
pub(super) fn spawn_input(from: OwnedFd, to: OwnedFd) -> io::Result<JoinHandle<()>> {
    let from = watch(from, Interest::READABLE)?;
    let to = watch(to, Interest::WRITABLE)?;
    Ok(tokio::spawn(async move {
        report(move_all(&from, &to, None).await);
    }))
}

/// Starts a pump from a FIFO to a process's terminal. When the input ends, the pump drops the
/// sender `over`, which notifies the receiver.
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
        let mut to = Destination::Terminal(to);
        report(copy(&from, &mut to, std::future::pending(), None).await);
        drop((to, over));
    }))
}

fn report(moved: io::Result<()>) {
    if let Err(error) = moved {
        tracing::debug!(%error, "a stream ended early");
    }
}

/// Runs `work`. When the process is deleted, closes the shim's own reading end of the FIFO, because
/// a client that deletes the process has read all output that it needs.
///
/// `work` is pinned by the caller, because a future that is moved into another one takes its memory
/// twice.
async fn until_deleted<T>(
    mut work: Pin<&mut impl Future<Output = T>>,
    keep: Option<Arc<File>>,
    phase: &mut Phases,
) -> T {
    tokio::select! {
        biased;
        done = &mut work => return done,
        () = deleted(phase) => {}
    }
    drop(keep);
    work.await
}

/// Reads a pipe until `begin` is sent, or until the output is too long to be kept back. Returns
/// `None` if the output is to be discarded.
async fn keep_back(
    from: &AsyncFd<OwnedFd>,
    mut begin: oneshot::Receiver<()>,
    passage: Option<&Passage>,
) -> io::Result<Option<Vec<u8>>> {
    let mut kept_back = Vec::new();
    while kept_back.len() < KEPT_BACK_AT_MOST {
        let mut readable = tokio::select! {
            biased;
            wanted = &mut begin => return Ok(wanted.ok().map(|()| kept_back)),
            readable = from.readable() => readable?,
        };
        match append_piece(from.get_ref(), &mut kept_back) {
            Ok(0) => return Ok(begin.await.ok().map(|()| kept_back)),
            Ok(_) => {
                if let Some(passage) = passage {
                    passage.keep_back(kept_back.len());
                }
            }
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => readable.clear_ready(),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Some(kept_back))
}

/// Reads a piece, appends it, and returns its length. The buffer is on the stack: in a future, it
/// would take memory as long as the process runs.
fn append_piece(from: &OwnedFd, to: &mut Vec<u8>) -> nix::Result<usize> {
    let mut piece = [0; PIECE];
    let length = read(from, &mut piece)?;
    to.extend(piece.iter().take(length));
    Ok(length)
}

async fn move_all(
    from: &AsyncFd<OwnedFd>,
    to: &AsyncFd<OwnedFd>,
    passage: Option<&Passage>,
) -> io::Result<()> {
    loop {
        let mut readable = from.readable().await?;
        let flags = SpliceFFlags::SPLICE_F_NONBLOCK | SpliceFFlags::SPLICE_F_MOVE;
        match splice(from.get_ref(), None, to.get_ref(), None, AT_ONCE, flags) {
            Ok(0) => return Ok(()),
            Ok(bytes) => {
                if let Some(passage) = passage {
                    passage.count(bytes);
                }
            }
            Err(Errno::EINTR) => {}
            // EAGAIN does not tell if the pipe is empty or the destination is full.
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
    fn everything_arrives_at_a_slow_reader() {
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

    /// Starts a pump that keeps output back until the test sends `()`. Returns the pump, the sender
    /// for that, and the end of a pipe from which the test reads the output.
    fn spawn_withheld(from: File) -> (JoinHandle<()>, oneshot::Sender<()>, File) {
        let (output, to) = pipe();
        let (begin, begun) = oneshot::channel();
        let to = Destination::pipe(to.into()).unwrap();
        let (_, phase) = tokio::sync::watch::channel(super::super::Phase::default());
        let pumped = spawn_output(from.into(), to, None, phase, begun).unwrap();
        (pumped.pump, begin, output)
    }

    #[test]
    fn output_is_kept_back_until_begin() {
        current_thread().block_on(async {
            let (from, mut input) = pipe();
            let reading = from.try_clone().unwrap();
            let (pump, begin, mut output) = spawn_withheld(from);
            input.write_all(b"words").unwrap();
            while is_ready(reading.as_fd(), PollFlags::POLLIN) {
                tokio::task::yield_now().await;
            }
            assert!(!is_ready(output.as_fd(), PollFlags::POLLIN));
            begin.send(()).unwrap();
            drop(input);
            pump.await.unwrap();
            let mut words = String::new();
            output.read_to_string(&mut words).unwrap();
            assert_eq!(words, "words");
        });
    }

    #[test]
    fn output_is_discarded_if_begin_is_dropped() {
        current_thread().block_on(async {
            let (from, mut input) = pipe();
            let (pump, begin, mut output) = spawn_withheld(from);
            input.write_all(b"words").unwrap();
            drop(begin);
            pump.await.unwrap();
            assert_eq!(output.read_to_end(&mut Vec::new()).unwrap(), 0);
        });
    }

    #[test]
    fn too_much_output_to_keep_back_is_passed_on_at_once() {
        current_thread().block_on(async {
            let (from, mut input) = pipe();
            let (pump, begin, mut output) = spawn_withheld(from);
            let sent: Vec<u8> = (0..120_000_u32).map(|n| (n % 251) as u8).collect();
            let copy = sent.clone();
            // The call of `write_all` returns before `begin` is sent.
            let writer = tokio::task::spawn_blocking(move || input.write_all(&copy));
            writer.await.unwrap().unwrap();
            // This `begin` has no effect, because the output was passed on already.
            let _ = begin.send(());
            let reader = tokio::task::spawn_blocking(move || {
                let mut received = Vec::new();
                output.read_to_end(&mut received).unwrap();
                received
            });
            pump.await.unwrap();
            assert!(reader.await.unwrap() == sent);
        });
    }

    #[test]
    fn a_pump_passes_the_end_of_the_stream_on() {
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
