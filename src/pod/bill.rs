//! What the pod's probes cost the shim, in CPU time.

use std::time::Duration;

/// What has been done for probes, turn by turn of the actor's loop: an event and what follows from it.
#[derive(Debug, Default)]
pub(super) struct Bill {
    turn: Turn,
    /// What was done for probes beside their attempts, and no attempt was charged with.
    unbilled: Duration,
}

/// The turn that the loop is in.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    taken: Duration,
    /// A probe was begun in it, or its result has come.
    is_for_a_probe: bool,
}

impl Bill {
    /// The turn has taken so much more.
    pub fn took(&mut self, time: Duration) {
        self.turn.taken = self.turn.taken.saturating_add(time);
    }

    /// It is for a probe that this turn is taken.
    pub fn is_for_a_probe(&mut self) {
        self.turn.is_for_a_probe = true;
    }

    /// What an attempt is charged with that has cost so much itself.
    pub fn charge(&mut self, cost: Duration) -> Duration {
        cost.saturating_add(std::mem::take(&mut self.unbilled))
    }

    pub fn turn_is_over(&mut self) {
        let turn = std::mem::take(&mut self.turn);
        if turn.is_for_a_probe {
            self.unbilled = self.unbilled.saturating_add(turn.taken);
        }
    }
}
