//! Faults and delays of the simulated engine.

use std::fmt;
use std::time::Duration;

use crate::EngineError;

/// A call of the engine, or an action of the simulated machine itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EngineCall {
    Read,
    Mount,
    Create,
    CreateAgain,
    Restore,
    Release,
    /// A signal that needs a command of the runtime. These are signals to all processes, and
    /// signals to a process that kill(2) does not reach.
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
    /// A call that finds a container's cgroup. `ReadCgroup` reads from the cgroup, and `Scores`
    /// changes the OOM scores of the processes in the cgroup.
    FindCgroup,
    ReadCgroup,
    Scores,
    /// A call that writes a value to a pod's cgroup. `TellManager` is the call that tells the new
    /// values to the cgroup manager.
    WritePod,
    LowerMemory,
    TellManager,
    /// Reaping of a process.
    Collect,
}

/// Delay and outcome of an engine call.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Delay of the call. A [`CancelToken`](crate::CancelToken) may cut it short.
    pub after: Duration,
    pub outcome: Result<(), EngineError>,
}

/// Decides delay and outcome of each engine call, in the order in which the calls begin.
pub trait FaultPlan: fmt::Debug + Send + 'static {
    /// Decides delay and outcome of a call for the container with this ID.
    fn of(&mut self, call: EngineCall, id: &str) -> Fault;

    /// Further delay before the caller gets the answer.
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

    /// Makes a call succeed after a delay.
    pub fn delay(after: Duration) -> Fault {
        Fault {
            after,
            outcome: Ok(()),
        }
    }

    /// Makes a call fail after a delay, with the message `why`.
    pub fn failure(after: Duration, why: &str) -> Fault {
        Fault {
            after,
            outcome: Err(EngineError::Failed(why.to_owned())),
        }
    }
}
