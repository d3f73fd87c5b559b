//! The wall clock, the clock of CPU time, and the core's time and timer. Other timers use tokio's
//! clock instead.

pub(crate) mod alarm;
pub(crate) mod probe_cpu;

use std::fmt;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use usher_core::lifecycle::Time;
use usher_linux::probe::thread_time;

/// Reads the time. Tests set a clock of their own.
pub trait Clock: fmt::Debug + Send + Sync {
    /// The wall-clock time, to show to people, and to compare with times that other programs
    /// recorded.
    fn wall(&self) -> SystemTime;

    /// The CPU time that this thread has used.
    fn cpu(&self) -> Duration;
}

/// The `Instant` at which a core's time is zero. The core itself reads no clock.
#[derive(Clone, Copy, Debug)]
pub struct Timebase(Instant);

impl Timebase {
    /// Starts the core's time now.
    pub fn begin() -> Timebase {
        Timebase(Instant::now())
    }

    pub fn now(self) -> Time {
        Time::from_origin(self.0.elapsed())
    }

    /// The core's time `at` as an `Instant`; `None` if it is too far away to be represented.
    pub fn instant(self, at: Time) -> Option<Instant> {
        self.0.checked_add(at.since_origin())
    }
}

/// The machine's clock.
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
