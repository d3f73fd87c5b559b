//! What goes wrong, and how long everything takes.

use std::fmt;
use std::time::Duration;

use crate::engine::EngineError;

/// What an engine is asked to do, and the machine by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Deed {
    Read,
    Mount,
    Create,
    CreateAgain,
    Restore,
    Release,
    /// A signal that goes the long way: to all processes, or to one that kill(2) does not reach.
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
    /// A cgroup of a container is found, read or written to.
    FindCgroup,
    ReadCgroup,
    Scores,
    /// A value of a pod's cgroup is written; its manager is told of it.
    WritePod,
    LowerMemory,
    TellManager,
    /// An ended process is collected.
    Collect,
}

/// What becomes of a deed.
#[derive(Clone, Debug)]
pub struct Fate {
    /// How long it takes. It can be ended before, where it is under a [`Halt`](crate::engine::Halt).
    pub after: Duration,
    pub outcome: Result<(), EngineError>,
}

/// Decides what becomes of each deed, in the order in which they begin.
pub trait Fates: fmt::Debug + Send + 'static {
    /// What becomes of this deed for the container with this id.
    fn of(&mut self, deed: Deed, id: &str) -> Fate;

    /// How long it takes until whoever has asked for what is done hears of it.
    fn answers_after(&mut self, deed: Deed, id: &str) -> Duration {
        let _ = (deed, id);
        Duration::ZERO
    }
}

/// All goes well, at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Luck;

impl Fates for Luck {
    fn of(&mut self, _: Deed, _: &str) -> Fate {
        Fate::well()
    }
}

impl Fate {
    /// All goes well, at once.
    pub fn well() -> Fate {
        Fate::well_after(Duration::ZERO)
    }

    /// All goes well, after so long.
    pub fn well_after(after: Duration) -> Fate {
        Fate {
            after,
            outcome: Ok(()),
        }
    }

    /// It fails, after so long.
    pub fn fails_after(after: Duration, why: &str) -> Fate {
        Fate {
            after,
            outcome: Err(EngineError::Failed(why.to_owned())),
        }
    }
}
