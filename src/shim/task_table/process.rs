//! The processes of a task.

use std::mem;
use std::sync::Arc;
use std::time::SystemTime;

use usher_core::lifecycle::{ContainerId, OperationId};
use usher_engine::{CancelToken, ExecOrder, Init, NewExec, Process as Executed};
use usher_linux::stdio::{EarlyFifos, Paths, Streams, Unread};

use crate::calls::{CallError, Exit, Reply, Waiting};

/// An exec: at first its command, later its process. The core knows the state of the exec.
#[derive(Debug)]
pub struct Exec {
    /// The JSON of a process in the OCI specification. Empty after the Start has taken it.
    spec: Vec<u8>,
    /// FIFOs of the output, until the Start has taken them.
    fifos: EarlyFifos,
    /// The operation that starts the exec, and its cancellation token. `None` before the Start, and
    /// after the operation has ended.
    pub starting: Option<(OperationId, CancelToken)>,
    /// The process of the exec. `None` until the process is executed.
    pub handle: Option<Arc<dyn Executed>>,
    /// Time at which the shim collected the exited process (`wait(2)`).
    exited_at: Option<SystemTime>,
    pub process: Process,
}

impl Exec {
    /// Creates the entry of an exec that has not started.
    pub fn new(spec: Vec<u8>, fifos: EarlyFifos, paths: Paths) -> Exec {
        Exec {
            spec,
            fifos,
            starting: None,
            handle: None,
            exited_at: None,
            process: Process::new(paths),
        }
    }

    /// Takes what the engine needs to start the exec.
    pub fn take_order(&mut self, exec_id: &str, oom_score: Option<i32>) -> ExecOrder {
        ExecOrder {
            exec_id: exec_id.to_owned(),
            spec: mem::take(&mut self.spec),
            size: self.process.streams.size(),
            oom_score,
            paths: self.process.paths.clone(),
            fifos: mem::take(&mut self.fifos),
        }
    }

    /// Stores the process of the exec, and connects the caller's stdin to the process.
    pub fn set_started(&mut self, process: Arc<dyn Executed>, streams: Streams) {
        self.starting = None;
        self.process.pid = process.pid();
        self.handle = Some(process);
        self.process.set_streams(streams);
        self.process.connect_stdin();
    }

    /// Notes that the process was collected. Returns the output that the caller has not read yet,
    /// or `None`. The actor publishes the exit after this output is read, or after a time limit.
    pub fn set_exited(&mut self, at: SystemTime) -> Option<Unread> {
        self.exited_at = Some(at);
        self.process.end_streams()
    }

    /// The exit with `code`, at the time at which the process was collected, or `now` if it was
    /// not.
    pub fn exit(&self, code: u32, now: SystemTime) -> Exit {
        let at = self.exited_at.unwrap_or(now);
        Exit { code, at }
    }
}

/// An exec that is about to be started.
pub struct Execution {
    pub id: ContainerId,
    pub order: ExecOrder,
    /// The container's init. `None` if the container has exited.
    pub init: Option<Arc<dyn Init>>,
    /// Cancels the start.
    pub token: CancelToken,
}

impl Execution {
    /// Executes the process.
    ///
    /// # Errors
    ///
    /// [`CallError::task_is_stopped`] if the container has exited; the engine's error if the process
    /// could not be executed.
    pub async fn run(self) -> Result<NewExec, CallError> {
        let Some(init) = self.init else {
            return Err(CallError::task_is_stopped(&self.id, &self.order.exec_id));
        };
        Ok(init.exec(self.order, &self.token).await?)
    }
}

/// A process: the init of a container, or an exec.
#[derive(Debug, Default)]
pub struct Process {
    /// The process id; zero until the process exists.
    pub pid: i32,
    pub paths: Paths,
    /// The streams of the process. Until the process has streams, stand-ins remember the caller's
    /// requests, such as a new size of the terminal.
    pub streams: Streams,
    /// The answer to Wait: the published exit, or why the process will never run.
    answer: Option<Result<Exit, CallError>>,
    /// Callers that wait for the answer.
    waiting: Waiting<Exit>,
}

impl Process {
    pub fn new(paths: Paths) -> Process {
        Process {
            paths,
            ..Process::default()
        }
    }

    /// The process id, also after the exit of the process. `None` before the process exists.
    pub fn known_pid(&self) -> Option<i32> {
        Some(self.pid).filter(|pid| *pid > 0)
    }

    /// The published exit of the process. `None` before the publication, and if the process will
    /// never run.
    pub fn exit(&self) -> Option<Exit> {
        self.answer.as_ref()?.as_ref().ok().copied()
    }

    /// Gives the process its streams, and carries out the requests that the caller made before the
    /// streams existed.
    pub fn set_streams(&mut self, mut streams: Streams) {
        streams.catch_up(&self.streams);
        self.streams = streams;
    }

    /// Connects the caller's stdin to the process. A failure is only logged.
    pub fn connect_stdin(&mut self) {
        if let Err(error) = self.streams.connect_stdin(&self.paths.stdin) {
            tracing::warn!(%error, "cannot connect stdin of a process");
        }
    }

    /// Ends the streams of a process that has exited. Returns the output that the caller has not
    /// read yet, or `None`. The actor publishes the exit after this output is read, or after a time
    /// limit.
    pub fn end_streams(&mut self) -> Option<Unread> {
        self.streams.handle_exit()
    }

    /// Answers a Wait if the answer is known; otherwise the caller waits.
    pub fn add_wait(&mut self, caller: Reply<Exit>) {
        match &self.answer {
            Some(answer) => drop(caller.send(answer.clone())),
            None => self.waiting.add(caller),
        }
    }

    /// Answers all current and later Waits: with the exit, or with the reason why the process will
    /// never run.
    pub fn answer_waits(&mut self, answer: Result<Exit, CallError>) {
        self.waiting.answer(&answer);
        self.answer = Some(answer);
    }
}
