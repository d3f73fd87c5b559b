//! The standard streams of a process: the ends that the process gets, and the ends that the shim
//! keeps.

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
use super::destination::{Destination, Fifo, Keep};
use super::early::{EarlyFifos, Fifos};
use super::fifo::{self, End};
use super::passage::Unread;
use super::terminal::{Size, Terminal};
use super::words::MessageWriter;
use super::{Paths, Phase, ProcessStdio, Setting, StdioError, pipe, pump, words};
use crate::sys;

/// Time for which the shim passes on the rest of a deleted process's output. Another process may
/// have the pipe open, or the reader may be slow.
const DRAIN_FOR: Duration = Duration::from_secs(10);

/// The shim's side of a process's streams.
#[derive(Debug, Default)]
pub struct Streams {
    phase: watch::Sender<Phase>,
    inlet: Inlet,
    /// A writing end of stdin's FIFO, which the shim keeps open until CloseIO. Without this end,
    /// stdin would end as soon as no client has the FIFO open.
    stdin: Option<File>,
    /// True after CloseIO. The caller may call CloseIO before the FIFO is connected.
    is_closed: bool,
    /// Senders of `begin`, one for each pump. A pump keeps output back until it gets `begin`,
    /// because the OCI runtime still runs.
    silent: Vec<oneshot::Sender<()>>,
    /// A terminal that the OCI runtime has not sent yet, and the destination of its output.
    expected: Option<(ConsoleSocket, Destination, Keep)>,
    /// The terminal, owned by its pumps.
    terminal: Weak<AsyncFd<OwnedFd>>,
    /// Terminal size that the caller requested last, possibly before the terminal exists.
    size: Option<Size>,
    input: Option<JoinHandle<()>>,
    output: Vec<pump::Output>,
    logger: Option<Logger>,
    /// Handle for the shim's own messages on the process's standard error.
    messages: Option<MessageWriter>,
    /// Descriptors that keep the streams open for the next process of the container; `None` if no
    /// further process will get the streams.
    spare: Option<Spare>,
    #[cfg(any(test, feature = "simulator"))]
    simulated: Simulated,
}

/// Behavior of a simulated process and its client.
#[cfg(any(test, feature = "simulator"))]
#[derive(Debug, Default)]
struct Simulated {
    /// Time that the client takes after the exit to read the rest of the output.
    reads_for: Option<Duration>,
    /// Sender that is dropped when the client closes stdin.
    stdin: Option<oneshot::Sender<()>>,
}

/// Descriptors that keep the streams of an exited process open.
#[derive(Debug)]
enum Spare {
    /// The process's own ends of its pipes.
    Pipes(ProcessStdio),
    /// A further handle of the destination to which the terminal's output goes.
    Terminal { _kept_open: Destination },
}

/// The shim's end of the pipe or terminal for stdin, until the caller's FIFO is connected to the
/// process.
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

/// Opens the streams: returns the process's ends and the shim's. Uses the output's FIFOs in
/// `early`. Waits only until FIFOs and files are open, and a logging program is ready.
///
/// # Errors
///
/// [`StdioError`]. After an error nothing is left open or running.
pub async fn open(
    paths: &Paths,
    setting: &Setting<'_>,
    early: EarlyFifos,
) -> Result<(ProcessStdio, Streams), StdioError> {
    let early = early.opened().await;
    if !paths.stdin.is_empty() {
        // Check the FIFO now, while an error can still be returned. Do not open the FIFO yet,
        // because a client starts to write as soon as it is open.
        let failed = |source| StdioError::stream("stdin", &paths.stdin, source);
        match fifo::is_fifo(Path::new(&paths.stdin)).map_err(failed)? {
            true => {}
            false => return Err(failed(fifo::no_fifo())),
        }
    }
    let (process, mut streams) = match paths.terminal {
        true => open_terminal(paths, setting, early).await?,
        false => open_pipes(paths, setting, early).await?,
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
    early: Fifos,
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
            let opened = open_output("stdout", &paths.stdout, early.stdout, setting).await?;
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
    early: Fifos,
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
    for (stream, path, early, slot) in [
        ("stdout", &paths.stdout, early.stdout, &mut process.stdout),
        ("stderr", &paths.stderr, early.stderr, &mut process.stderr),
    ] {
        if path.is_empty() {
            continue;
        }
        let (destination, keep) = open_output(stream, path, early, setting).await?;
        // The loop handles stderr last. So the shim's messages go to stderr if the process has one,
        // and otherwise to stdout.
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

/// Opens the destination of an output stream. Uses the FIFO in `early`, if there is one.
async fn open_output(
    stream: &'static str,
    path: &str,
    early: Option<Fifo>,
    setting: &Setting<'_>,
) -> Result<(Destination, Keep), StdioError> {
    match early {
        Some(fifo) => {
            let failed = |source| StdioError::stream(stream, path, source);
            fifo.watched().map_err(failed)
        }
        None => Destination::open(stream, path, setting.reaper.threads()).await,
    }
}

impl Streams {
    /// Keeps the streams open after the process's exit, so that the [next
    /// process](Streams::hand_over) can get them.
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

    /// Gives the streams to the next process, after the previous process has exited. Clients notice
    /// no difference. A terminal and its logging program are new.
    ///
    /// # Errors
    ///
    /// [`StdioError`]. After an error the streams are unchanged.
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
        let (process, mut streams) = open(paths, setting, EarlyFifos::default()).await?;
        streams.size = self.size;
        streams.is_closed = self.is_closed;
        drain([mem::replace(self, streams)]).await;
        Ok(process)
    }

    /// Repeats the requests that `others` received while these streams did not exist yet.
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

    /// Starts to pass on output, including the output that was kept back. Output is kept back while
    /// the OCI runtime uses the pipes: the runtime writes its errors both to the pipes and to its
    /// log, and the caller gets them from the log.
    pub fn pass_on(&mut self) {
        for begin in mem::take(&mut self.silent) {
            // This fails if the pump has panicked.
            let _ = begin.send(());
        }
    }

    /// Takes the streams over after the OCI runtime's command has made the process: [passes
    /// on](Streams::pass_on) its output, and receives its terminal, if any. `has_stdin` tells if
    /// stdin will be [connected](Streams::connect_stdin).
    ///
    /// # Errors
    ///
    /// [`StdioError`], such as [`StdioError::Terminal`] if the runtime has sent no terminal. After
    /// an error the process must be killed.
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

    /// Sets the size of the terminal, now or when the terminal is received. Does nothing without a
    /// terminal, or after the exit.
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

    /// Terminal size that the caller requested last.
    pub fn size(&self) -> Option<Size> {
        self.size
    }

    /// Connects stdin to the caller's FIFO. Call this just before the process is executed: as soon
    /// as the FIFO is open, a client may write all its input and call CloseIO, even before its
    /// Start is answered.
    ///
    /// # Errors
    ///
    /// [`StdioError`]. After an error the process's stdin has ended, as if the client had closed
    /// it.
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
            // Close the writing end only now: a FIFO that never had a writer does not end.
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

    /// Handles the exit of the process. If the process has a terminal, only the output so far is
    /// passed on, even if another process has the terminal open. Returns the output that clients
    /// have to read before the exit is reported.
    pub fn handle_exit(&mut self) -> Option<Unread> {
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

    /// Makes the streams of a simulated process. After the exit, the client goes on reading for the
    /// time `reads_for`. The returned receiver resolves when the client closes stdin.
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

/// Waits until all output of exited processes has been passed on, for `DRAIN_FOR` at most. Then
/// closes the streams, and waits until the logging programs have exited. For a log file on a
/// stalled disk the wait has no limit, so that no output is lost.
pub async fn drain(streams: impl IntoIterator<Item = Streams>) {
    let mut streams: Vec<_> = streams.into_iter().collect();
    let drained = async {
        for streams in &mut streams {
            streams.stdin = None;
            streams.spare = None;
            streams.messages = None;
            // Drop the senders, so that the pumps discard output that they still keep back.
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
    // Dropping the streams closes a terminal's pipe to its logging program, which exits when the
    // pipe ends.
    drop(streams);
    for logger in loggers {
        let _ = logger.await;
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        // Stop the pumps. Output that is left is lost here; only `drain` waits for such output.
        let output = self.output.iter().map(|output| &output.pump);
        self.input.iter().chain(output).for_each(JoinHandle::abort);
        // A logging program may run even if the process was never made.
        if let Some(logger) = self.logger.take()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(logger.end());
        }
    }
}
