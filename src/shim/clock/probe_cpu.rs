//! The CPU time that the pod's probes cost the shim.

use std::time::Duration;

/// Meters the CPU time that iterations of the actor's loop use for probes. An iteration handles one
/// message and its effects.
#[derive(Debug, Default)]
pub struct ProbeCpuMeter {
    iteration: Iteration,
    /// CPU time that the loop has used for probes and that is not charged to an attempt yet. The
    /// time that an attempt itself uses is metered elsewhere.
    uncharged: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct Iteration {
    taken: Duration,
    /// True if an attempt of a probe began in this iteration, or if the result of an attempt
    /// arrived.
    is_for_a_probe: bool,
}

impl ProbeCpuMeter {
    /// Adds CPU time that the current iteration has used, for probes or for other work.
    pub fn add(&mut self, time: Duration) {
        self.iteration.taken = self.iteration.taken.saturating_add(time);
    }

    /// Marks the current iteration as work for a probe, because an attempt begins, or its result
    /// arrives. At the end of the iteration, its whole CPU time is added to the time used for
    /// probes.
    pub fn mark_for_probe(&mut self) {
        self.iteration.is_for_a_probe = true;
    }

    /// Returns the CPU time to charge to an attempt: its own `cost`, plus the loop's time that is
    /// not charged yet. Resets the loop's uncharged time to zero.
    pub fn take_charge(&mut self, cost: Duration) -> Duration {
        cost.saturating_add(std::mem::take(&mut self.uncharged))
    }

    pub fn end_iteration(&mut self) {
        let iteration = std::mem::take(&mut self.iteration);
        if iteration.is_for_a_probe {
            self.uncharged = self.uncharged.saturating_add(iteration.taken);
        }
    }
}
