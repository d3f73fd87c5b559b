//! The calls that the pod's actor answers: their parameters, answers and errors.

mod callers;
mod checkpoint;
mod error;
mod exec;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod waiting;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use containerd_shim_protos::protobuf::well_known_types::any::Any;
use tokio::sync::oneshot;

use usher_core::lifecycle::TaskStatus;
use usher_engine::{Cgroup, Order};
use usher_linux::stdio::Paths;

pub(crate) use callers::{Caller, Callers, PendingUpdate};
pub(crate) use error::signal_answer;
pub use error::{CallError, Kind};
pub(crate) use waiting::Waiting;

/// The channel over which the actor answers a call.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, CallError>>;

/// The parameters of a Create call.
#[derive(Debug)]
pub struct CreateCall {
    pub order: Order,
    /// Time that the caller waits for the answer. `None` if the call has no deadline.
    pub call_timeout: Option<Duration>,
}

/// The parameters of a Checkpoint call.
#[derive(Debug)]
pub struct CheckpointCall {
    pub id: String,
    /// The directory for the checkpoint. containerd has copied this path from the options.
    pub path: String,
    pub options: Option<Any>,
}

/// The parameters of an Exec call.
#[derive(Debug)]
pub struct ExecCall {
    pub id: String,
    pub exec_id: String,
    pub paths: Paths,
    /// The JSON of a process in the OCI specification.
    pub spec: Vec<u8>,
    pub has_deadline: bool,
}

/// The parameters of a Kill call.
#[derive(Debug)]
pub struct KillCall {
    pub id: String,
    pub exec_id: String,
    pub signal: u32,
    pub all: bool,
    /// Time that the caller waits for the answer. `None` if the call has no deadline.
    pub call_timeout: Option<Duration>,
}

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

impl Exit {
    /// The exit that is reported for a process that never ran. containerd treats this exit as
    /// unknown.
    pub(crate) const UNKNOWN: Exit = Exit {
        code: 0,
        at: SystemTime::UNIX_EPOCH,
    };
}

impl Status {
    /// The state that the shim reports for a process. `status` is the core's state, and `exit` is
    /// the published exit. A process that has exited is reported as running until its exit is
    /// published. A process that the core does not know is reported as created.
    pub(crate) fn new(status: Option<TaskStatus>, exit: Option<Exit>) -> Status {
        match status {
            Some(TaskStatus::Stopped) => exit.map_or(Status::Running, Status::Stopped),
            Some(TaskStatus::Pausing) => Status::Pausing,
            Some(TaskStatus::Paused) => Status::Paused,
            Some(TaskStatus::Running) => Status::Running,
            Some(TaskStatus::Created) | None => Status::Created,
        }
    }
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

/// The state of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SandboxState {
    pub status: Status,
    /// PID of the sandbox's process; zero if there is none.
    pub pid: i32,
    pub created_at: SystemTime,
}

/// The processes of a task.
#[derive(Debug, Default)]
pub struct Members {
    /// The cgroup with the processes. `None` if no init process runs: the task is being restarted
    /// in place, or its exit is not published yet.
    pub cgroup: Option<Arc<dyn Cgroup>>,
    /// The process ids and names of the execs. The process id is zero for an exec that is not
    /// started.
    pub execs: Vec<(i32, String)>,
    /// The process id that the caller knows, if any. The shim lists this id if there is no other
    /// process, because a restarted containerd (1.7 and later) would delete a task that lists none.
    pub known_pid: Option<i32>,
}

/// The source of a task's metrics.
#[derive(Debug)]
pub enum Figures {
    /// A cgroup to read.
    Of(Arc<dyn Cgroup>),
    /// The last metrics of a task that has exited.
    Last(Any),
}
