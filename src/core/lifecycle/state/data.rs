//! Data of the states of a container.

use serde::{Deserialize, Serialize};

use crate::lifecycle::RequestId;
use crate::lifecycle::exec::PostStart;
use crate::lifecycle::probe::Watch;
use crate::lifecycle::time::Time;
use crate::process::ExitStatus;

use super::Stop;

/// A Start that waits for the container's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(in crate::lifecycle) struct Blocked {
    pub request: RequestId,
    pub since: Time,
    /// The time when the caller gives up; `None` if the caller set no timeout.
    pub deadline: Option<Time>,
    /// True once a line on the container's stderr has said what the container waits for.
    pub is_wait_noted: bool,
}

/// The Start was answered before the container's turn.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(in crate::lifecycle) struct Held {
    /// The time when the container's Start was answered. If a later attempt to execute the program
    /// has failed, the time of this failure.
    pub since: Time,
    /// True once a line on the container's stderr has said what the container waits for.
    pub is_wait_noted: bool,
    pub(super) post_start: PostStart,
}

/// The init process is being killed before it has executed the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(in crate::lifecycle) struct Ending {
    /// The code reported to the caller.
    pub code: u32,
    pub(super) start: EndedStart,
    pub(super) reason_deadline: Option<Time>,
}

/// The Start of a container that is ended before its program is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) enum EndedStart {
    /// The caller has not called Start.
    None,
    /// The Start is answered with an error when the process is gone.
    Open(RequestId),
    /// The Start was answered with success.
    Answered,
}

/// The program is being executed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(in crate::lifecycle) struct Releasing {
    pub(super) start: Start,
    /// An exit that arrived before the report that the program was executed.
    pub exit: Option<ExitStatus>,
    pub stop: Stop,
}

/// The Start of a container whose program is being executed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) enum Start {
    /// Not answered yet.
    Open(RequestId),
    /// The Start was answered before the execution, because the container was held. Contains the
    /// state of the container's postStart handler, which the caller may have run since the answer.
    Answered(PostStart),
}

/// The program runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(in crate::lifecycle) struct Running {
    /// Time of the execution.
    pub since: Time,
    /// Number of the execution, unique in this pod.
    pub execution: u64,
    /// The startup or liveness probe that the shim attempts now, if any.
    pub watch: Watch,
    pub stop: Stop,
    pub post_start: PostStart,
}

/// The program has exited and is restarted in place at `until`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(in crate::lifecycle) struct BackingOff {
    /// The exit status of the last process.
    pub status: ExitStatus,
    pub until: Time,
    /// The process exited by itself after a stop request, while no termination was known. If the
    /// request turns out to be the first one of a termination, the shim restarts the container:
    /// others may need it until its turn to stop. Otherwise the shim reports the exit.
    pub is_asked: bool,
    pub(super) post_start: PostStart,
}

/// The program is being restarted in place.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(in crate::lifecycle) struct Restarting {
    /// The exit status of the process before the restart.
    pub status: ExitStatus,
    /// An exit of the new process that arrived before the report of the restart.
    pub exit: Option<ExitStatus>,
    pub stop: Stop,
    pub(super) post_start: PostStart,
}

/// The process is gone for good, and its exit is not published yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(in crate::lifecycle) struct Exiting {
    /// The exit code reported to the caller.
    pub code: u32,
    /// The caller has read the output of the process.
    pub is_output_read: bool,
    /// Deadline for the reader of the output, and for execs. After this time, the exit no longer
    /// waits for them.
    pub until: Time,
    /// The Start was answered with success.
    pub(super) was_started: bool,
    /// Deadline for writing the reason why the shim ended the container. Until then, the exit waits
    /// for the reason, because a caller that hears of the exit reads the reason at once. `None` if
    /// the shim writes no reason, or has written it.
    pub reason_deadline: Option<Time>,
}

/// The exit that the shim reports for a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::lifecycle) struct FinalExit {
    /// The exit code reported to the caller.
    pub code: u32,
    /// Deadline for the reader of the output, and for execs. After this time, the exit no longer
    /// waits for them.
    pub until: Time,
}

impl Releasing {
    /// The Start that is not answered yet. `None` if the container was held before, because the
    /// hold answered its Start.
    pub fn open_start(&self) -> Option<RequestId> {
        match self.start {
            Start::Open(request) => Some(request),
            Start::Answered(_) => None,
        }
    }
}

impl EndedStart {
    pub fn open(self) -> Option<RequestId> {
        match self {
            EndedStart::Open(request) => Some(request),
            EndedStart::None | EndedStart::Answered => None,
        }
    }
}

impl FinalExit {
    pub(super) fn of(self, was_started: bool, reason_deadline: Option<Time>) -> Exiting {
        Exiting {
            code: self.code,
            is_output_read: false,
            until: self.until,
            was_started,
            reason_deadline,
        }
    }
}
