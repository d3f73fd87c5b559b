//! The actor's tables of tasks and processes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use usher_core::lifecycle::OperationId;
use usher_core::plan::Allotment;
use usher_engine::{CancelToken, Container, Process as Executed};
use usher_linux::stdio::{EarlyFifos, Paths, Streams, Unread};

use super::carryover::RestartCarryover;
use super::handles::Handles;
use super::scores::Score;
use super::{CallError, Reply};

/// Exit status and time of a process, as reported to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// The exit code; 128 + n for a death by signal n.
    pub code: u32,
    pub at: SystemTime,
}

/// The state of a process, as reported to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Created,
    Running,
    /// The container is being frozen.
    Pausing,
    Paused,
    Stopped(Exit),
}

/// A container and its processes.
#[derive(Debug)]
pub(super) struct Task {
    pub bundle: PathBuf,
    pub created_at: SystemTime,
    pub container: Arc<dyn Container>,
    pub facts: Facts,
    /// The container's init process, as the caller knows it.
    pub init: Process,
    pub execs: BTreeMap<String, Exec>,
    pub handles: Handles,
    pub score: Score,
    pub carryover: RestartCarryover,
    /// Callers that wait for the deletion of the task.
    pub deleters: Vec<Reply<Deleted>>,
}

/// Facts from the bundle that are needed after the creation.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// The container's named ports.
    pub ports: BTreeMap<String, u16>,
    /// Only for a sandbox: the resources allotted to the pod's containers.
    pub allotment: Allotment,
}

/// An exec: the command, and later the process. The core knows its state.
#[derive(Debug)]
pub(super) struct Exec {
    /// The JSON of a process in the OCI specification. Empty after the Start has taken it.
    pub spec: Vec<u8>,
    /// FIFOs of the output, until the Start has taken them.
    pub fifos: EarlyFifos,
    /// The operation that starts the exec, and its cancellation token.
    pub starting: Option<(OperationId, CancelToken)>,
    /// The process once it is executed.
    pub handle: Option<Arc<dyn Executed>>,
    /// Time at which the process was collected.
    pub exited_at: Option<SystemTime>,
    pub process: Process,
}

/// A process: the init of a container, or an exec.
#[derive(Debug, Default)]
pub(super) struct Process {
    /// The process id; zero until the process exists.
    pub pid: i32,
    pub paths: Paths,
    /// The streams of the process. Until the process has streams, stand-ins remember the caller's
    /// requests about them.
    pub streams: Streams,
    /// The answer to Wait: the published exit, or why the process will never run.
    pub answer: Option<Result<Exit, CallError>>,
    /// Callers that wait for the answer.
    pub waiting: Vec<Reply<Exit>>,
}

/// The answer to Delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deleted {
    pub pid: i32,
    pub exit: Exit,
}

/// The answer to State.
#[derive(Clone, Debug)]
pub struct StateAnswer {
    pub bundle: PathBuf,
    pub pid: i32,
    pub status: Status,
    pub paths: Paths,
}

impl Process {
    pub fn new(paths: Paths) -> Process {
        Process {
            paths,
            ..Process::default()
        }
    }

    /// The published exit of the process.
    pub fn exit(&self) -> Option<Exit> {
        self.answer.as_ref()?.as_ref().ok().copied()
    }

    /// Gives the process its streams, and carries out the requests that the stand-ins remember.
    pub fn take_streams(&mut self, mut streams: Streams) {
        streams.catch_up(&self.streams);
        self.streams = streams;
    }

    /// Connects the caller's stdin to the process.
    pub fn connect_stdin(&mut self) {
        if let Err(error) = self.streams.connect_stdin(&self.paths.stdin) {
            tracing::warn!(%error, "cannot connect stdin of a process");
        }
    }

    /// Ends the streams of a process that has exited. Returns the output that the caller has not
    /// read yet. The exit is published when the caller has read it.
    pub fn end_streams(&mut self) -> Option<Unread> {
        self.streams.ended()
    }

    /// Answers all current and later Waits: with the exit, or with the reason why the process will
    /// never run.
    pub fn answer_waits(&mut self, answer: Result<Exit, CallError>) {
        for reply in self.waiting.drain(..) {
            // This fails if the caller no longer waits.
            let _ = reply.send(answer.clone());
        }
        self.answer = Some(answer);
    }
}

impl Task {
    /// Adds a caller that waits for the deletion. Drops callers that no longer wait, except the
    /// first, which began the deletion.
    pub fn add_deleter(&mut self, deleter: Reply<Deleted>) {
        let mut is_first = true;
        self.deleters
            .retain(|waiting| std::mem::take(&mut is_first) || !waiting.is_closed());
        self.deleters.push(deleter);
    }

    /// Answers all callers that wait for the deletion.
    pub fn answer_deleters(&mut self, answer: &Result<Deleted, CallError>) {
        for deleter in self.deleters.drain(..) {
            let _ = deleter.send(answer.clone());
        }
    }
}
