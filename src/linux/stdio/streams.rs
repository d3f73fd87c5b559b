//! The streams of a process: the ends that it gets, and those that the shim keeps.

use std::fs::File;
use std::mem;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::address::Address;
use super::binary::{self, Logger};
use super::console::ConsoleSocket;
use super::destination::{Destination, Keep};
use super::fifo::{self, End};
use super::passage::Unread;
use super::terminal::{Size, Terminal};
use super::words::MessageWriter;
use super::{Paths, Phase, ProcessStdio, Setting, StdioError, pipe, pump, words};
use crate::sys;

/// Time limit for the rest of a deleted process's output: another process may keep the pipe open,
/// or the reader may be slow.
const DRAIN_FOR: Duration = Duration::from_secs(10);

/// The shim's side of a process's streams.
#[derive(Debug, Default)]
pub struct Streams {
    phase: watch::Sender<Phase>,
    inlet: Inlet,
    /// Keeps the FIFO of stdin from ending while no client has it open, until CloseIO.
    stdin: Option<File>,
    /// True after the caller's CloseIO, which may come before the FIFO is connected.
    is_closed: bool,
    /// Senders that make the pumps pass output on: it is kept back while the OCI runtime runs.
    silent: Vec<oneshot::Sender<()>>,
    /// A terminal that the OCI runtime has not sent yet, and the destination of its output.
    expected: Option<(ConsoleSocket, Destination, Keep)>,
    /// The terminal, owned by its pumps.
    terminal: Weak<AsyncFd<OwnedFd>>,
    /// Size that the caller has requested last, even before there is a terminal.
    size: Option<Size>,
    input: Option<JoinHandle<()>>,
    output: Vec<pump::Output>,
    logger: Option<Logger>,
    /// Handle for the shim's own messages on its standard error.
    messages: Option<MessageWriter>,
    /// Keeps the streams open for a process that may be followed by another.
    spare: Option<Spare>,
    #[cfg(any(test, feature = "simulator"))]
    simulated: Simulated,
}

/// Behavior of a simulated process and its client.
#[cfg(any(test, feature = "simulator"))]
#[derive(Debug, Default)]
struct Simulated {
    /// Time for which the client reads after the exit.
    reads_for: Option<Duration>,
    /// Dropped when the client closes stdin.
    stdin: Option<oneshot::Sender<()>>,
}

/// Descriptors that keep the streams of an exited process open.
#[derive(Debug)]
enum Spare {
    /// The process's own ends of its pipes.
    Pipes(ProcessStdio),
    /// Another handle of the destination of its terminal's output.
    Terminal { _kept_open: Destination },
}

/// The process's end of stdin, until the caller's FIFO is connected to it.
#[derive(Debug, Default)]
enum Inlet {
    #[default]
    None,
    Pipe(OwnedFd),
    Terminal {
        master: Arc<AsyncFd<OwnedFd>>,
        over: oneshot::Sender<()>,
    },
}

/// Opens the streams: returns the process's ends and the shim's. Waits only for a logging program.
///
/// # Errors
///
/// [`StdioError`]; then nothing is left open or running.
pub async fn open(
    paths: &Paths,
    setting: &Setting<'_>,
) -> Result<(ProcessStdio, Streams), StdioError> {
    if !paths.stdin.is_empty() {
        // Check the FIFO now, while an error can still be returned. Do not open it, because a
        // client starts to write as soon as it is open.
        let failed = |source| StdioError::stream("stdin", &paths.stdin, source);
        match fifo::is_fifo(Path::new(&paths.stdin)).map_err(failed)? {
            true => {}
            false => return Err(failed(fifo::no_fifo())),
        }
    }
    let (process, mut streams) = match paths.terminal {
        true => open_terminal(paths, setting).await?,
        false => open_pipes(paths, setting).await?,
    };
    if setting.is_shared {
        streams.keep_for_another(paths, setting, &process).await?;
    }
    Ok((process, streams))
}

/// Opens the streams of a terminal, which has one output: the address of stderr is ignored.
async fn open_terminal(
    paths: &Paths,
    setting: &Setting<'_>,
) -> Result<(ProcessStdio, Streams), StdioError> {
    let mut streams = Streams::default();
    let socket = ConsoleSocket::bind(setting.bundle).map_err(StdioError::Terminal)?;
    let (destination, keep) = match Address::parse(&paths.stdout) {
        _ if paths.stdout.is_empty() => (Destination::Nowhere, None),
        Address::Binary(program) => {
            let ready = binary::start(&program, setting).await?;
            streams.logger = Some(ready.logger);
            let failed = |source| StdioError::stream("stdout", &paths.stdout, source);
            let pipe = words::reopen_nonblocking(&ready.stdout).map_err(failed)?;
            streams.messages = Some(MessageWriter::Program(pipe));
            let destination = Destination::pipe(ready.stdout);
            (destination.map_err(failed)?, None)
        }
        _ => {
            let threads = setting.reaper.threads();
            let opened = Destination::open("stdout", &paths.stdout, threads).await?;
            streams.messages = opened.0.message_writer();
            opened
        }
    };
    let process = ProcessStdio {
        console_socket: Some(socket.name()),
        ..ProcessStdio::default()
    };
    streams.expected = Some((socket, destination, keep));
    Ok((process, streams))
}

async fn open_pipes(
    paths: &Paths,
    setting: &Setting<'_>,
) -> Result<(ProcessStdio, Streams), StdioError> {
    let mut streams = Streams::default();
    let mut process = ProcessStdio::default();
    if !paths.stdin.is_empty() {
        let failed = |source| StdioError::stream("stdin", &paths.stdin, source);
        let (read, write) = pipe(setting.owner).map_err(failed)?;
        process.stdin = Some(read);
        streams.inlet = Inlet::Pipe(write);
    }
    if let Address::Binary(program) = Address::parse(&paths.stdout) {
        // A logging program gets both streams, whatever the address of stderr.
        let ready = binary::start(&program, setting).await?;
        streams.logger = Some(ready.logger);
        let failed = |source| StdioError::stream("stderr", &paths.stdout, source);
        let pipe = words::reopen_nonblocking(&ready.stderr).map_err(failed)?;
        streams.messages = Some(MessageWriter::Program(pipe));
        process.stdout = Some(ready.stdout);
        process.stderr = Some(ready.stderr);
        return Ok((process, streams));
    }
    for (stream, path, slot) in [
        ("stdout", &paths.stdout, &mut process.stdout),
        ("stderr", &paths.stderr, &mut process.stderr),
    ] {
        if path.is_empty() {
            continue;
        }
        let threads = setting.reaper.threads();
        let (destination, keep) = Destination::open(stream, path, threads).await?;
        // stderr is the last of the two, so the handle of stderr stays.
        streams.messages = destination.message_writer();
        let failed = |source| StdioError::stream(stream, path, source);
        let (read, write) = pipe(setting.owner).map_err(failed)?;
        *slot = Some(write);
        let (begin, begun) = oneshot::channel();
        let phase = streams.phase.subscribe();
        let output = pump::spawn_output(read, destination, keep, phase, begun);
        streams.output.push(output.map_err(failed)?);
        streams.silent.push(begin);
    }
    Ok((process, streams))
}

impl Streams {
    /// Keeps the streams open after the process's exit, so that [another one](Streams::hand_over)
    /// can get them.
    async fn keep_for_another(
        &mut self,
        paths: &Paths,
        setting: &Setting<'_>,
        process: &ProcessStdio,
    ) -> Result<(), StdioError> {
        let copied = |fd: &Option<OwnedFd>| fd.as_ref().map(OwnedFd::try_clone).transpose();
        let failed = |source| StdioError::stream("stdio", &paths.stdout, source);
        self.spare = Some(match paths.terminal {
            false => Spare::Pipes(ProcessStdio {
                stdin: copied(&process.stdin).map_err(failed)?,
                stdout: copied(&process.stdout).map_err(failed)?,
                stderr: copied(&process.stderr).map_err(failed)?,
                console_socket: None,
            }),
            true if paths.stdout.is_empty() => Spare::Terminal {
                _kept_open: Destination::Nowhere,
            },
            true => match Address::parse(&paths.stdout) {
                Address::Binary(_) => Spare::Terminal {
                    _kept_open: Destination::Nowhere,
                },
                _ => {
                    let threads = setting.reaper.threads();
                    let (destination, _) =
                        Destination::open("stdout", &paths.stdout, threads).await?;
                    Spare::Terminal {
                        _kept_open: destination,
                    }
                }
            },
        });
        Ok(())
    }

    /// Gives the streams to another process, after the previous one has exited. Clients notice no
    /// difference; only a terminal, and its logging program, are new.
    ///
    /// # Errors
    ///
    /// [`StdioError`]; then the streams are unchanged.
    pub async fn hand_over(
        &mut self,
        paths: &Paths,
        setting: &Setting<'_>,
    ) -> Result<ProcessStdio, StdioError> {
        if let Some(Spare::Pipes(own)) = &self.spare {
            let copied = |fd: &Option<OwnedFd>| fd.as_ref().map(OwnedFd::try_clone).transpose();
            let failed = |source| StdioError::stream("stdio", &paths.stdout, source);
            return Ok(ProcessStdio {
                stdin: copied(&own.stdin).map_err(failed)?,
                stdout: copied(&own.stdout).map_err(failed)?,
                stderr: copied(&own.stderr).map_err(failed)?,
                console_socket: None,
            });
        }
        let (process, mut streams) = open(paths, setting).await?;
        streams.size = self.size;
        streams.is_closed = self.is_closed;
        drain([mem::replace(self, streams)]).await;
        Ok(process)
    }

    /// Applies to these streams the calls that were made on `others`, their placeholder.
    pub fn catch_up(&mut self, others: &Streams) {
        if others.is_closed {
            self.close_stdin();
        }
        if let Some(size) = others.size
            && let Err(error) = self.resize(size)
        {
            tracing::warn!(%error, "cannot resize the terminal");
        }
    }

    /// Starts passing on output, including that kept back. Until then the OCI runtime uses the
    /// pipes: it writes its errors there and into its log, and the caller should get each only
    /// once.
    pub fn pass_on(&mut self) {
        for begin in mem::take(&mut self.silent) {
            // Fails if a pump has panicked.
            let _ = begin.send(());
        }
    }

    /// Takes the streams over after the OCI runtime's command has made the process: [passes
    /// on](Streams::pass_on) its output, and receives its terminal, if any. `has_stdin` tells if
    /// stdin will be [connected](Streams::connect_stdin).
    ///
    /// # Errors
    ///
    /// [`StdioError`], such as [`StdioError::Terminal`] if the runtime has sent none; then the
    /// process must be killed.
    pub async fn take_over(&mut self, has_stdin: bool) -> Result<(), StdioError> {
        self.pass_on();
        let Some((socket, destination, keep)) = self.expected.take() else {
            return Ok(());
        };
        let master = socket.receive().await.map_err(StdioError::Terminal)?;
        let terminal = Terminal::new(master).map_err(StdioError::Terminal)?;
        self.terminal = Arc::downgrade(&terminal.master);
        if let Some(size) = self.size {
            self.resize(size)?;
        }
        let input_over = has_stdin.then(|| {
            let (over, input_over) = oneshot::channel();
            let master = Arc::clone(&terminal.master);
            self.inlet = Inlet::Terminal { master, over };
            input_over
        });
        let phase = self.phase.subscribe();
        let output = pump::spawn_terminal_output(terminal, destination, keep, phase, input_over);
        self.output.push(output);
        Ok(())
    }

    /// Sets the size of the terminal, now or when it is received. Does nothing without a terminal,
    /// or after the exit.
    ///
    /// # Errors
    ///
    /// [`StdioError::Terminal`].
    pub fn resize(&mut self, size: Size) -> Result<(), StdioError> {
        self.size = Some(size);
        let Some(terminal) = self.terminal.upgrade() else {
            return Ok(());
        };
        sys::resize(terminal.get_ref().as_fd(), size.width, size.height)
            .map_err(StdioError::Terminal)
    }

    /// Size that was requested last.
    pub fn size(&self) -> Option<Size> {
        self.size
    }

    /// Connects stdin to the caller's FIFO just before the process is executed. Not earlier: a
    /// client may write everything as soon as the FIFO opens and then call CloseIO, before its
    /// Start has been answered.
    ///
    /// # Errors
    ///
    /// [`StdioError`]; then the process reads the end of the file.
    pub fn connect_stdin(&mut self, path: &str) -> Result<(), StdioError> {
        let inlet = mem::take(&mut self.inlet);
        if matches!(inlet, Inlet::None) {
            return Ok(());
        }
        let failed = |source| StdioError::stream("stdin", path, source);
        let fifo = fifo::open(Path::new(path), End::Read).map_err(failed)?;
        self.stdin = Some(fifo::open(Path::new(path), End::Write).map_err(failed)?);
        let input = match inlet {
            Inlet::None => return Ok(()),
            Inlet::Pipe(pipe) => pump::spawn_input(fifo.into(), pipe),
            Inlet::Terminal { master, over } => {
                pump::spawn_terminal_input(fifo.into(), master, over)
            }
        };
        self.input = Some(input.map_err(failed)?);
        if self.is_closed {
            // Only now: a FIFO that never had a writer does not end.
            self.stdin = None;
        }
        Ok(())
    }

    /// Handles CloseIO: stdin ends when all clients have closed it.
    pub fn close_stdin(&mut self) {
        self.is_closed = true;
        self.stdin = None;
        #[cfg(any(test, feature = "simulator"))]
        drop(self.simulated.stdin.take());
    }

    /// Handles the exit of the process: from a terminal only the output that is there already is
    /// passed on, even if another process has it open. Returns the output that clients have to read
    /// before they learn of the exit.
    pub fn ended(&mut self) -> Option<Unread> {
        self.spare = None;
        self.messages = None;
        self.reach(Phase::Ended);
        #[cfg(any(test, feature = "simulator"))]
        if let Some(reads_for) = self.simulated.reads_for {
            return Some(Unread::simulated(reads_for));
        }
        Unread::of(
            self.output
                .iter()
                .filter_map(|output| output.passage.as_ref()),
        )
    }

    /// Streams of a simulated process whose client reads for this time after the exit; the receiver
    /// resolves when the client closes stdin.
    #[cfg(any(test, feature = "simulator"))]
    pub fn simulated(reads_for: Option<Duration>) -> (Streams, oneshot::Receiver<()>) {
        let (stdin, closed) = oneshot::channel();
        let mut streams = Streams::default();
        streams.simulated = Simulated {
            reads_for,
            stdin: Some(stdin),
        };
        (streams, closed)
    }

    /// Handle for the shim's own messages on standard error, if there is one.
    pub(super) fn message_writer(&self) -> Option<&MessageWriter> {
        self.messages.as_ref()
    }

    fn reach(&self, reached: Phase) {
        self.phase.send_if_modified(|phase| {
            let is_new = *phase < reached;
            *phase = reached.max(*phase);
            is_new
        });
    }
}

/// Waits until all output of exited processes has been passed on, for `DRAIN_FOR` at most, and
/// closes their streams. Logging programs have exited then, too. Only a log file on a stalled disk
/// is waited for without limit, so that no output is lost.
pub async fn drain(streams: impl IntoIterator<Item = Streams>) {
    let mut streams: Vec<_> = streams.into_iter().collect();
    let drained = async {
        for streams in &mut streams {
            streams.stdin = None;
            streams.spare = None;
            streams.messages = None;
            // Discards output that is still kept back, because the senders are dropped.
            streams.silent = Vec::new();
            streams.reach(Phase::Deleted);
        }
        for streams in &mut streams {
            for output in &mut streams.output {
                // An error means that the pump has panicked.
                let _ = (&mut output.pump).await;
            }
        }
    };
    let _ = tokio::time::timeout(DRAIN_FOR, drained).await;
    for streams in &mut streams {
        streams.reach(Phase::Over);
        let late = streams.output.iter_mut();
        for output in late.filter(|output| !output.pump.is_finished()) {
            match output.is_logged {
                true => drop((&mut output.pump).await),
                false => output.pump.abort(),
            }
        }
    }
    let loggers: Vec<_> = streams
        .iter_mut()
        .filter_map(|streams| streams.logger.take())
        .map(|logger| tokio::spawn(logger.end()))
        .collect();
    // Closes a terminal's pipe to its logging program, which waits for that.
    drop(streams);
    for logger in loggers {
        let _ = logger.await;
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        // No process reads stdin any more; remaining output gets its time in [`drain`].
        let output = self.output.iter().map(|output| &output.pump);
        self.input.iter().chain(output).for_each(JoinHandle::abort);
        // There is a logging program even if the process was never made.
        if let Some(logger) = self.logger.take()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(logger.end());
        }
    }
}
