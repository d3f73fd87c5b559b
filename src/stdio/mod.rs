//! The standard streams of a container's processes.
//!
//! containerd gives a FIFO for each stream and reads or writes its other end. The process itself
//! gets pipes, between which the shim pumps: so a reader that goes away, as containerd does when it
//! is restarted, is no broken pipe to the process, and nothing the process does to its streams
//! reaches containerd's files.

mod pump;

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::libc;
use nix::unistd::{Gid, Uid, fchown, pipe2};
use thiserror::Error;
use tokio::task::JoinHandle;

use crate::runtime::ProcessStdio;

/// Begins the address of a log file.
const FILE_SCHEME: &str = "file://";

/// How long a deleted process's output is waited for: some other process may have kept the pipe.
const DRAIN_FOR: Duration = Duration::from_secs(10);

/// The paths that the caller gave for a process's streams; an empty one means none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Paths {
    pub stdin: String,
    pub stdout: String,
    pub stderr: String,
    pub terminal: bool,
}

/// Who owns the pipes, for a process in a user namespace.
#[derive(Clone, Copy, Debug, Default)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

/// A stream cannot be set up.
#[derive(Debug, Error)]
pub enum StdioError {
    #[error("a terminal was asked for, which is not supported yet")]
    Terminal,
    #[error("{stream} {path:?}: {source}")]
    Stream {
        stream: &'static str,
        path: String,
        source: io::Error,
    },
    #[error(
        "{stream} {path:?} is neither a FIFO nor a file:// address, which is all that is supported yet"
    )]
    NotAFifo { stream: &'static str, path: String },
}

/// The shim's side of a process's streams.
#[derive(Debug, Default)]
pub struct Streams {
    /// The pipe to the process, until the caller's FIFO is connected to it.
    unconnected_stdin: Option<OwnedFd>,
    /// Keeps the FIFO of stdin from ending while no client has it open, until CloseIO.
    stdin: Option<File>,
    /// The caller has said that it writes no more, which it may do before the FIFO is connected.
    is_closed: bool,
    input: Option<JoinHandle<()>>,
    output: Vec<JoinHandle<()>>,
}

/// Opens the streams: what the process gets, and what the shim keeps.
///
/// # Errors
///
/// [`StdioError`]; nothing is left open then.
pub fn open(paths: &Paths, owner: Owner) -> Result<(ProcessStdio, Streams), StdioError> {
    if paths.terminal {
        return Err(StdioError::Terminal);
    }
    let mut streams = Streams::default();
    let mut process = ProcessStdio::default();
    if !paths.stdin.is_empty() {
        let (read, write) =
            pipe(owner).map_err(|source| stream_error("stdin", &paths.stdin, source))?;
        process.stdin = Some(read);
        streams.unconnected_stdin = Some(write);
    }
    for (stream, path, slot) in [
        ("stdout", &paths.stdout, &mut process.stdout),
        ("stderr", &paths.stderr, &mut process.stderr),
    ] {
        if path.is_empty() {
            continue;
        }
        let failed = |source| stream_error(stream, path, source);
        let (read, write) = pipe(owner).map_err(failed)?;
        *slot = Some(write);
        if let Some(file) = path.strip_prefix(FILE_SCHEME) {
            let file = open_log(Path::new(file)).map_err(failed)?;
            let pump = pump::spawn_to_file(read, file).map_err(failed)?;
            streams.output.push(pump);
            continue;
        }
        // Open for reading too: a FIFO without a reader breaks, and readers come and go.
        let keep = open_fifo(stream, path, End::Read)?;
        let fifo = open_fifo(stream, path, End::Write)?;
        streams
            .output
            .push(pump::spawn(read, fifo.into(), Some(keep)).map_err(failed)?);
    }
    Ok((process, streams))
}

impl Streams {
    /// Connects stdin to the caller's FIFO, when the process is about to be executed. Not earlier:
    /// a client may have written all it has to say as soon as the FIFO opens, and its CloseIO must
    /// not come before it knows of the process.
    ///
    /// # Errors
    ///
    /// [`StdioError`]; the process finds its stdin at its end then.
    pub fn connect_stdin(&mut self, path: &str) -> Result<(), StdioError> {
        let Some(pipe) = self.unconnected_stdin.take() else {
            return Ok(());
        };
        let fifo = open_fifo("stdin", path, End::Read)?;
        self.stdin = Some(open_fifo("stdin", path, End::Write)?);
        let pump = pump::spawn(fifo.into(), pipe, None);
        self.input = Some(pump.map_err(|source| stream_error("stdin", path, source))?);
        if self.is_closed {
            // Not before: a FIFO that never had a writer does not end.
            self.stdin = None;
        }
        Ok(())
    }

    /// The caller writes no more: stdin ends when its clients have closed it too.
    pub fn close_stdin(&mut self) {
        self.is_closed = true;
        self.stdin = None;
    }
}

/// Waits until the output of processes that have ended has been passed on, all of it within
/// [`DRAIN_FOR`], and lets go of their streams.
pub async fn drain(streams: impl IntoIterator<Item = Streams>) {
    let mut streams: Vec<_> = streams.into_iter().collect();
    let drained = async {
        for streams in &mut streams {
            streams.stdin = None;
            for pump in &mut streams.output {
                // A pump that has panicked has ended as well.
                let _ = pump.await;
            }
        }
    };
    // What is late is ended when the streams are dropped.
    let _ = tokio::time::timeout(DRAIN_FOR, drained).await;
}

impl Drop for Streams {
    fn drop(&mut self) {
        // Nobody reads stdin any more; output that is still under way gets its time in [`drain`].
        for pump in self.input.iter().chain(&self.output) {
            pump.abort();
        }
    }
}

/// Writes a line of the shim's own into a stream of a container, if somebody has it open.
pub fn tell(path: &str, line: &str) {
    let written = OpenOptions::new()
        .append(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path.strip_prefix(FILE_SCHEME).unwrap_or(path))
        .and_then(|mut stream| writeln!(stream, "{line}"));
    if let Err(error) = written {
        tracing::debug!(path, %error, "a container's stream could not be written to");
    }
}

/// Leaves a message in the file that the kubelet reads when a container has ended.
///
/// The file lies in a directory that is kubelet's alone, but it is mounted into the container: what
/// is behind its name may be anything by now, so nothing is followed and nothing is waited for.
pub fn leave_message(file: &Path, message: &str) {
    let written = OpenOptions::new()
        .append(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(file)
        .and_then(|mut file| match file.metadata()?.is_file() {
            true => writeln!(file, "{message}"),
            false => Err(io::Error::other("not a regular file")),
        });
    if let Err(error) = written {
        tracing::debug!(file = %file.display(), %error, "no termination message was left");
    }
}

enum End {
    Read,
    Write,
}

/// Opens a log file, in a directory that is made if it is missing.
fn open_log(path: &Path) -> io::Result<File> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    // What is there already may be a FIFO without a reader.
    OpenOptions::new()
        .append(true)
        .create(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
}

/// Opens one end of a FIFO without waiting for the other. The write end opens only where there is
/// a read end.
fn open_fifo(stream: &'static str, path: &str, end: End) -> Result<File, StdioError> {
    let failed = |source| stream_error(stream, path, source);
    let metadata = std::fs::metadata(Path::new(path)).map_err(failed)?;
    if !metadata.file_type().is_fifo() {
        return Err(StdioError::NotAFifo {
            stream,
            path: path.to_owned(),
        });
    }
    let mut options = OpenOptions::new();
    match end {
        End::Read => options.read(true),
        End::Write => options.write(true),
    };
    options
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .map_err(failed)
}

fn stream_error(stream: &'static str, path: &str, source: io::Error) -> StdioError {
    StdioError::Stream {
        stream,
        path: path.to_owned(),
        source,
    }
}

fn pipe(owner: Owner) -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
    if owner.uid != 0 || owner.gid != 0 {
        let (uid, gid) = (
            Some(Uid::from_raw(owner.uid)),
            Some(Gid::from_raw(owner.gid)),
        );
        fchown(&read, uid, gid)?;
        fchown(&write, uid, gid)?;
    }
    Ok((read, write))
}
