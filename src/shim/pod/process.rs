//! The actor's tables of tasks and processes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use usher_core::lifecycle::OperationId;
use usher_core::plan::Allotment;
use usher_engine::{CancelToken, Container, Process as Executed};
use usher_linux::stdio::{Paths, Streams, Unread};

use super::carryover::RestartCarryover;
use super::handles::Handles;
use super::scores::Score;
use super::updates::Updates;
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
    pub updates: Updates,
    /// Callers that wait for the deletion of the task.
    pub deleters: Vec<Reply<Deleted>>,
}

/// Facts from the bundle that are needed after the creation.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub has_own_pid_namespace: bool,
    /// The container's named ports.
    pub ports: BTreeMap<String, u16>,
    /// Only for a sandbox: the resources allotted to the pod's containers.
    pub allotment: Allotment,
}

/// An exec: the command, and later the process.
#[derive(Debug)]
pub(super) struct Exec {
    /// The JSON of a process in the OCI specification. Empty after a Start has taken it.
    pub spec: Vec<u8>,
    /// The operation that starts the exec, and its cancellation token.
    pub starting: Option<(OperationId, CancelToken)>,
    /// The process once it is executed.
    pub handle: Option<Arc<dyn Executed>>,
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
    pub started: bool,
    /// The exit of an exec, kept until the exit is published.
    pub untold: Option<Exit>,
    /// The exit, once it is published.
    pub exit: Option<Exit>,
    /// Why the process will never run. Callers that wait for the process get this answer.
    pub failure: Option<CallError>,
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

    /// True if the process runs as far as the caller knows.
    pub fn reads_running(&self) -> bool {
        self.started && self.exit.is_none()
    }

    /// True if the process of an exec has exited, whether or not the exit is published.
    pub fn has_ended(&self) -> bool {
        self.untold.or(self.exit).is_some()
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

    /// Answers all current and later Waits with `why`: the process was not started, or its container
    /// is gone.
    pub fn never_ran(&mut self, why: &CallError) {
        self.failure = Some(why.clone());
        for reply in self.waiting.drain(..) {
            let _ = reply.send(Err(why.clone()));
        }
    }

    /// Tells all waiting callers that the process has exited.
    pub fn ended(&mut self, exit: Exit) {
        self.exit = Some(exit);
        for reply in self.waiting.drain(..) {
            // This fails if the caller no longer waits.
            let _ = reply.send(Ok(exit));
        }
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
