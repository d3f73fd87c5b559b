//! Points in time. The driver reads the clock, and passes the time to the core with each event.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A point in monotonic time, counted from an origin that the driver chooses.
///
/// A simulator cannot construct `std::time::Instant`s for its own clock, and their arithmetic can
/// panic. This type saturates.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Time(Duration);

impl Time {
    /// Returns the time that is `since_origin` after the driver's origin.
    pub const fn from_origin(since_origin: Duration) -> Time {
        Time(since_origin)
    }

    /// The time since the origin, which the driver has chosen.
    pub const fn since_origin(self) -> Duration {
        self.0
    }

    /// Returns the time `wait` after this one, or the last representable time.
    pub const fn after(self, wait: Duration) -> Time {
        Time(self.0.saturating_add(wait))
    }

    /// Returns the time `lead` before this one, or the origin if that is later.
    pub const fn before(self, lead: Duration) -> Time {
        Time(self.0.saturating_sub(lead))
    }

    /// The time since `earlier`, or zero if `earlier` is the later time.
    pub const fn since(self, earlier: Time) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "+{:.3}s", self.0.as_secs_f64())
    }
}
