//! The core's clock: a point in time that somebody else read.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A point in monotonic time, counted from an origin that the driver chooses.
///
/// `std::time::Instant` cannot be made up, so a simulator could not turn its own clock with it; and
/// its arithmetic can panic. This one saturates.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Time(Duration);

impl Time {
    /// The point `since_origin` after the driver's origin.
    pub const fn from_origin(since_origin: Duration) -> Time {
        Time(since_origin)
    }

    /// How long after the driver's origin this is.
    pub const fn since_origin(self) -> Duration {
        self.0
    }

    /// The point `wait` later; the end of time where that would overflow.
    pub const fn after(self, wait: Duration) -> Time {
        Time(self.0.saturating_add(wait))
    }

    /// The point `lead` earlier; the origin where that would be before it.
    pub const fn before(self, lead: Duration) -> Time {
        Time(self.0.saturating_sub(lead))
    }

    /// How much time has gone by since `earlier`; nothing where that is later.
    pub const fn since(self, earlier: Time) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "+{:.3}s", self.0.as_secs_f64())
    }
}
