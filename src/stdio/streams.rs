//! All streams of one process: what it gets, and what the shim keeps.

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
use super::fifo::{self, End};
use super::outlet::{Keep, Outlet};
use super::passage::Unread;
use super::terminal::{Size, Terminal};
use super::words::Voice;
use super::{Paths, Phase, ProcessStdio, Setting, StdioError, pipe, pump, words};
use crate::sys;

/// How long a deleted process's output is waited for: some other process may have kept the pipe, or
/// its reader may be slow.
const DRAIN_FOR: Duration = Duration::from_secs(10);

/// The shim's side of a process's streams.
#[derive(Debug, Default)]
pub struct Streams {
    phase: watch::Sender<Phase>,
    inlet: Inlet,
    /// Keeps the FIFO of stdin from ending while no client has it open, until CloseIO.
    stdin: Option<File>,
    /// The caller has said that it writes no more, which it may do before the FIFO is connected.
    is_closed: bool,
    /// Tell the pumps of the output to pass it on: it is kept back while the OCI runtime runs.
    silent: Vec<oneshot::Sender<()>>,
    /// A terminal that the OCI runtime has not sent yet, and where its output will go.
    expected: Option<(ConsoleSocket, Outlet, Keep)>,
    /// Its pumps have it.
    terminal: Weak<AsyncFd<OwnedFd>>,
    /// What the caller wants of a terminal that is not there yet.
    size: Option<Size>,
    input: Option<JoinHandle<()>>,
    output: Vec<pump::Output>,
    logger: Option<Logger>,
    /// A way of our own to whoever takes its errors, while there is a process.
    voice: Option<Voice>,
    /// For a process that may be followed by another: so its streams do not end with it.
    spare: Option<Spare>,
    #[cfg(test)]
    simulated: Simulated,
}

/// What a simulated process and its client do with streams.
#[cfg(test)]
#[derive(Debug, Default)]
struct Simulated {
    /// How long the client reads after the exit.
    reads_for: Option<Duration>,
    /// Dropped when the client closes stdin.
    stdin: Option<oneshot::Sender<()>>,
}

/// What keeps the streams of a process open that has ended.
#[derive(Debug)]
enum Spare {
    /// The process's own ends of its pipes.
    Pipes(ProcessStdio),
    /// Another way to where the output of its terminal goes.
    Terminal { _kept_open: Outlet },
}

/// Where a process's input goes, until the caller's FIFO is connected to it.
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

/// Opens the streams: what the process gets, and what the shim keeps. Waits for nobody but a
/// logging program.
///
/// # Errors
///
/// [`StdioError`]; nothing is left open or running then.
pub async fn open(
    paths: &Paths,
    setting: &Setting<'_>,
) -> Result<(ProcessStdio, Streams), StdioError> {
    if !paths.stdin.is_empty() {
        // Looked at while the caller can still be told; not opened, for a client that finds it open
        // begins to write.
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

/// A terminal has one output: what the caller gave for stderr is not used.
async fn open_terminal(
    paths: &Paths,
    setting: &Setting<'_>,
) -> Result<(ProcessStdio, Streams), StdioError> {
    let mut streams = Streams::default();
    let socket = ConsoleSocket::bind(setting.bundle).map_err(StdioError::Terminal)?;
    let (outlet, keep) = match Address::parse(&paths.stdout) {
        _ if paths.stdout.is_empty() => (Outlet::Nowhere, None),
        Address::Binary(program) => {
            let ready = binary::start(&program, setting).await?;
            streams.logger = Some(ready.logger);
            let failed = |source| StdioError::stream("stdout", &paths.stdout, source);
            let voice = words::voice(&ready.stdout).map_err(failed)?;
            streams.voice = Some(Voice::Program(voice));
            let outlet = Outlet::pipe(ready.stdout);
            (outlet.map_err(failed)?, None)
        }
        _ => {
            let threads = setting.reaper.threads();
            let opened = Outlet::open("stdout", &paths.stdout, threads).await?;
            streams.voice = opened.0.voice();
            opened
        }
    };
    let process = ProcessStdio {
        console_socket: Some(socket.name()),
        ..ProcessStdio::default()
    };
    streams.expected = Some((socket, outlet, keep));
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
        // It takes both, whatever was given for stderr.
        let ready = binary::start(&program, setting).await?;
        streams.logger = Some(ready.logger);
        let failed = |source| StdioError::stream("stderr", &paths.stdout, source);
        let voice = words::voice(&ready.stderr).map_err(failed)?;
        streams.voice = Some(Voice::Program(voice));
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
        let (outlet, keep) = Outlet::open(stream, path, threads).await?;
        // That of the errors comes last.
        streams.voice = outlet.voice();
        let failed = |source| StdioError::stream(stream, path, source);
        let (read, write) = pipe(setting.owner).map_err(failed)?;
        *slot = Some(write);
        let (begin, begun) = oneshot::channel();
        let phase = streams.phase.subscribe();
        let output = pump::spawn_output(read, outlet, keep, phase, begun);
        streams.output.push(output.map_err(failed)?);
        streams.silent.push(begin);
    }
    Ok((process, streams))
}

impl Streams {
    /// Has the streams outlive the process, so that [another](Streams::hand_over) can have them.
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
                _kept_open: Outlet::Nowhere,
            },
            true => match Address::parse(&paths.stdout) {
                Address::Binary(_) => Spare::Terminal {
                    _kept_open: Outlet::Nowhere,
                },
                _ => {
                    let threads = setting.reaper.threads();
                    let (outlet, _) = Outlet::open("stdout", &paths.stdout, threads).await?;
                    Spare::Terminal { _kept_open: outlet }
                }
            },
        });
        Ok(())
    }

    /// Gives the streams to another process, after the one that had them has ended. Nobody at their
    /// other ends sees a difference; only a terminal is a new one, and its logging program too.
    ///
    /// # Errors
    ///
    /// [`StdioError`]; the streams are as they were then.
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

    /// Does what was asked of `others`, which stood in the place of these.
    pub fn catch_up(&mut self, others: &Streams) {
        if others.is_closed {
            self.close_stdin();
        }
        if let Some(size) = others.size
            && let Err(error) = self.resize(size)
        {
            tracing::warn!(%error, "a terminal was not resized");
        }
    }

    /// Passes on what comes out of the pipes from now on, and what has come out of them. Until then the
    /// OCI runtime has them: why it fails is in its log as well, and the caller is not told twice.
    pub fn pass_on(&mut self) {
        for begin in mem::take(&mut self.silent) {
            // A pump that has panicked has ended.
            let _ = begin.send(());
        }
    }

    /// Takes the streams when the OCI runtime's command is over that has made the process:
    /// [passes on](Streams::pass_on) its output, and has its terminal, if it has one. `has_stdin` says
    /// whether that will be [connected](Streams::connect_stdin).
    ///
    /// # Errors
    ///
    /// [`StdioError`], such as [`StdioError::Terminal`] if the runtime has sent none; the process must not
    /// live on then.
    pub async fn take_over(&mut self, has_stdin: bool) -> Result<(), StdioError> {
        self.pass_on();
        let Some((socket, outlet, keep)) = self.expected.take() else {
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
        let output = pump::spawn_terminal_output(terminal, outlet, keep, phase, input_over);
        self.output.push(output);
        Ok(())
    }

    /// Changes the size of the terminal, now or when it is there. Does nothing where there is none,
    /// or not any more.
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

    /// The size that was asked for last.
    pub fn size(&self) -> Option<Size> {
        self.size
    }

    /// Connects stdin to the caller's FIFO, when the process is about to be executed. Not earlier:
    /// a client may have written all it has to say as soon as the FIFO opens, and its CloseIO must
    /// not come before it knows of the process.
    ///
    /// # Errors
    ///
    /// [`StdioError`]; the process finds its stdin at its end then.
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
            // Not before: a FIFO that never had a writer does not end.
            self.stdin = None;
        }
        Ok(())
    }

    /// The caller writes no more: stdin ends when its clients have closed it too.
    pub fn close_stdin(&mut self) {
        self.is_closed = true;
        self.stdin = None;
        #[cfg(test)]
        drop(self.simulated.stdin.take());
    }

    /// The process has ended: of its terminal only what is there already is passed on, whoever else
    /// has it open. Returns what its clients have still to read before they hear of the exit.
    pub fn ended(&mut self) -> Option<Unread> {
        self.spare = None;
        self.voice = None;
        self.reach(Phase::Ended);
        #[cfg(test)]
        if let Some(reads_for) = self.simulated.reads_for {
            return Some(Unread::simulated(reads_for));
        }
        Unread::of(
            self.output
                .iter()
                .filter_map(|output| output.passage.as_ref()),
        )
    }

    /// Streams of a simulated process, whose client reads for so long after the exit, and what ends when the
    /// client closes stdin.
    #[cfg(test)]
    pub fn simulated(reads_for: Option<Duration>) -> (Streams, oneshot::Receiver<()>) {
        let (stdin, closed) = oneshot::channel();
        let mut streams = Streams::default();
        streams.simulated = Simulated {
            reads_for,
            stdin: Some(stdin),
        };
        (streams, closed)
    }

    /// The shim's own way to whoever takes its errors; none where there is none.
    pub(super) fn voice(&self) -> Option<&Voice> {
        self.voice.as_ref()
    }

    fn reach(&self, reached: Phase) {
        self.phase.send_if_modified(|phase| {
            let is_new = *phase < reached;
            *phase = reached.max(*phase);
            is_new
        });
    }
}

/// Waits until the output of processes that have ended has been passed on, all of it within
/// [`DRAIN_FOR`], and lets go of their streams. Logging programs have ended then as well. Only a log file whose
/// disk stalls is waited for without a bound: what was taken for it is not lost.
pub async fn drain(streams: impl IntoIterator<Item = Streams>) {
    let mut streams: Vec<_> = streams.into_iter().collect();
    let drained = async {
        for streams in &mut streams {
            streams.stdin = None;
            streams.spare = None;
            streams.voice = None;
            // Nobody wants what is kept back still.
            streams.silent = Vec::new();
            streams.reach(Phase::Deleted);
        }
        for streams in &mut streams {
            for output in &mut streams.output {
                // A pump that has panicked has ended as well.
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
    // A terminal's pipe to its logging program, if it is still there.
    drop(streams);
    for logger in loggers {
        let _ = logger.await;
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        // Nobody reads stdin any more; output that is still under way gets its time in [`drain`].
        let output = self.output.iter().map(|output| &output.pump);
        self.input.iter().chain(output).for_each(JoinHandle::abort);
        // A process that never came to be has one, too.
        if let Some(logger) = self.logger.take()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(logger.end());
        }
    }
}
