//! Clocks. What is waited for is tokio's time; this is the rest, and how the core counts that.

use std::fmt;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::lifecycle::Time;
use crate::probe::thread_time;

/// What time it is. A test has one that it turns.
pub trait Clock: fmt::Debug + Send + Sync {
    /// On the wall: for people, and for what is compared with what others have noted.
    fn wall(&self) -> SystemTime;

    /// How much CPU time this thread has taken.
    fn cpu(&self) -> Duration;
}

/// From when on a core counts its time: it has no clock of its own.
#[derive(Clone, Copy, Debug)]
pub struct Timebase(Instant);

impl Timebase {
    /// It is now.
    pub fn begin() -> Timebase {
        Timebase(Instant::now())
    }

    /// What time it is for the core.
    pub fn now(self) -> Time {
        Time::from_origin(self.0.elapsed())
    }

    /// When that is for everybody else; none if it never is.
    pub fn instant(self, at: Time) -> Option<Instant> {
        self.0.checked_add(at.since_origin())
    }
}

/// The machine's own.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }

    fn cpu(&self) -> Duration {
        thread_time()
    }
}
