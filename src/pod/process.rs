//! What the actor knows of the processes it looks after.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use crate::engine::{Container, Halt, Process as Executed};
use crate::lifecycle::OperationId;
use crate::plan::Allotment;
use crate::stdio::{Paths, Streams, Unread};

use super::life::Life;
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
    pub life: Life,
    pub score: Score,
    pub lives: Lives,
    pub updates: Updates,
    pub last_words: LastWords,
}

/// What has become of a container's last words, which its caller reads when it hears of the exit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum LastWords {
    /// They are left, or there are none.
    #[default]
    Over,
    UnderWay,
    /// They are under way, and the exit is published as soon as they are left.
    BeforeExit,
}

/// What the bundle says that matters later.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub has_poststop_hooks: bool,
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

    /// The process of an exec runs.
    pub fn is_running(&self) -> bool {
        self.reads_running() && self.untold.is_none()
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
    /// Kills its init process, which may have ended already.
    pub fn end_init(&self) {
        if let Some(init) = self.life.init()
            && let Err(error) = init.end()
        {
            tracing::debug!(?init, %error, "it has ended already");
        }
    }

    /// Whether an exec runs, or is about to.
    pub fn has_live_execs(&self) -> bool {
        self.has_running_execs() || self.execs.values().any(|exec| exec.starting.is_some())
    }

    /// Whether an exec runs.
    pub fn has_running_execs(&self) -> bool {
        self.execs.values().any(|exec| exec.process.is_running())
    }

    /// The execs that have ended, and whose exit is not told.
    pub fn untold_execs(&self) -> impl Iterator<Item = &String> {
        let execs = self.execs.iter();
        let untold = execs.filter(|(_, exec)| exec.process.untold.is_some());
        untold.map(|(exec_id, _)| exec_id)
    }
}
