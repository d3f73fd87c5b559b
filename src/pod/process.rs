//! What the actor knows of the processes it looks after.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use crate::engine::{Container, Halt, Process as Executed};
use crate::lifecycle::OperationId;
use crate::plan::Allotment;
use crate::stdio::{Paths, Streams, Unread};

use super::handles::Handles;
use super::lives::Lives;
use super::scores::Score;
use super::updates::Updates;
use super::{CallError, Reply};

/// How and when a process ended, as the caller is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// The exit code, 128 + n for a death by signal n.
    pub code: u32,
    pub at: SystemTime,
}

/// What the caller is told of a process's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Created,
    Running,
    /// It is being frozen.
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
    /// Its init process, as its caller knows it.
    pub init: Process,
    pub execs: BTreeMap<String, Exec>,
    pub handles: Handles,
    pub score: Score,
    pub lives: Lives,
    pub updates: Updates,
    /// Callers that wait for its deletion.
    pub deleters: Vec<Reply<Deleted>>,
}

/// What the bundle says that matters later.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub has_own_pid_namespace: bool,
    /// Its named ports.
    pub ports: BTreeMap<String, u16>,
    /// Of a sandbox: what its containers are allotted.
    pub allotment: Allotment,
}

/// An exec: what is to be executed, and the process it becomes.
#[derive(Debug)]
pub(super) struct Exec {
    /// The OCI specification's process as JSON.
    pub spec: Vec<u8>,
    /// Its start, while it is under way, and what does it.
    pub starting: Option<(OperationId, Halt)>,
    /// What it has become; none as long as it is none.
    pub handle: Option<Arc<dyn Executed>>,
    pub process: Process,
}

/// A process: the init of a container or an exec.
#[derive(Debug, Default)]
pub(super) struct Process {
    /// Zero as long as there is none.
    pub pid: i32,
    pub paths: Paths,
    /// Stand-ins that remember what the caller asks of its streams, while it has none.
    pub streams: Streams,
    pub started: bool,
    /// The exit of an exec, from when it has ended until its caller is told.
    pub untold: Option<Exit>,
    /// Its exit, from when its caller is told.
    pub exit: Option<Exit>,
    /// Why it will never be, for whoever waits for it all the same.
    pub failure: Option<CallError>,
    pub waiting: Vec<Reply<Exit>>,
}

/// What Delete answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deleted {
    pub pid: i32,
    pub exit: Exit,
}

/// What State answers.
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

    /// The process runs as far as its caller knows.
    pub fn reads_running(&self) -> bool {
        self.started && self.exit.is_none()
    }

    /// The process of an exec has ended, though its caller may not have been told.
    pub fn has_ended(&self) -> bool {
        self.untold.or(self.exit).is_some()
    }

    /// Gives the process streams, and asks of them what the caller has asked of their stand-ins.
    pub fn take_streams(&mut self, mut streams: Streams) {
        streams.catch_up(&self.streams);
        self.streams = streams;
    }

    /// Lets the process have what the caller writes.
    pub fn connect_stdin(&mut self) {
        if let Err(error) = self.streams.connect_stdin(&self.paths.stdin) {
            tracing::warn!(%error, "a process has no stdin");
        }
    }

    /// Ends the streams of a process that has ended. Returns what its caller has still to read before the
    /// exit is told.
    pub fn end_streams(&mut self) -> Option<Unread> {
        self.streams.ended()
    }

    /// Tells everybody who waits for it that the process will never be.
    pub fn never_ran(&mut self, why: &CallError) {
        self.failure = Some(why.clone());
        for reply in self.waiting.drain(..) {
            let _ = reply.send(Err(why.clone()));
        }
    }

    /// Tells everybody who waits for it that the process has ended.
    pub fn ended(&mut self, exit: Exit) {
        self.exit = Some(exit);
        for reply in self.waiting.drain(..) {
            // Who has gone away need not be told.
            let _ = reply.send(Ok(exit));
        }
    }
}

impl Task {
    /// Adds a caller that waits for the deletion. Those that have given up are not kept, but for the first,
    /// who has begun it.
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
