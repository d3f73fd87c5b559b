//! Faults and delays of the simulated engine.

use std::fmt;
use std::time::Duration;

use crate::EngineError;

/// A call of the engine, or an action of the machine itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EngineCall {
    Read,
    Mount,
    Create,
    CreateAgain,
    Restore,
    Release,
    /// A signal sent by a command of the runtime: to all processes, or to a process that kill(2)
    /// does not reach.
    Kill,
    EndTheRest,
    Pause,
    Resume,
    Update,
    Checkpoint,
    Exec,
    PostStart,
    Probe,
    Hook,
    Forget,
    Delete,
    Drain,
    /// Access to a container's cgroup: finding, reading or writing it.
    FindCgroup,
    ReadCgroup,
    Scores,
    /// Access to a pod's cgroup: writing a value, or telling its manager.
    WritePod,
    LowerMemory,
    TellManager,
    /// Reaping of a process.
    Collect,
}

/// Delay and outcome of a call.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Delay, which a [`CancelToken`](crate::CancelToken) may cut short.
    pub after: Duration,
    pub outcome: Result<(), EngineError>,
}

/// Decides delay and outcome of each call, in the order in which they begin.
pub trait FaultPlan: fmt::Debug + Send + 'static {
    /// Decides delay and outcome of a call for the container with this ID.
    fn of(&mut self, call: EngineCall, id: &str) -> Fault;

    /// Further delay until the caller gets the answer.
    fn answers_after(&mut self, call: EngineCall, id: &str) -> Duration {
        let _ = (call, id);
        Duration::ZERO
    }
}

/// No faults: every call succeeds at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFaults;

impl FaultPlan for NoFaults {
    fn of(&mut self, _: EngineCall, _: &str) -> Fault {
        Fault::none()
    }
}

impl Fault {
    /// Success, at once.
    pub fn none() -> Fault {
        Fault::delay(Duration::ZERO)
    }

    /// Success after this time.
    pub fn delay(after: Duration) -> Fault {
        Fault {
            after,
            outcome: Ok(()),
        }
    }

    /// Failure after this time.
    pub fn failure(after: Duration, why: &str) -> Fault {
        Fault {
            after,
            outcome: Err(EngineError::Failed(why.to_owned())),
        }
    }
}
