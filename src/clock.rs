//! Clocks. What is waited for is tokio's time; this is the rest.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::probe::thread_time;

/// What time it is. A test has one that it turns.
pub trait Clock: fmt::Debug + Send + Sync {
    /// On the wall: for people, and for what is compared with what others have noted.
    fn wall(&self) -> SystemTime;

    /// How much CPU time this thread has taken.
    fn cpu(&self) -> Duration;
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
