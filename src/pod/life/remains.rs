//! What the engine knows of a container that has ended, and the next life of it, which may have to wait until
//! that is forgotten.

use std::sync::Arc;

use crate::engine::{Cgroup, Halt};

use super::Life;

/// What the engine knows of a container: its state and its cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remains {
    All,
    /// They are being removed, and the next life of the container may wait for that.
    Going {
        is_next_due: bool,
    },
    Gone,
}

/// The right to say that the engine forgets a container no more, for the work that it does so for. No other
/// work can clear the mark.
#[derive(Debug)]
#[must_use]
pub struct Forgetting(());

/// What the next life of a container has of the last.
#[derive(Debug)]
pub struct NextLife {
    pub halt: Halt,
    pub last_cgroup: Option<Arc<dyn Cgroup>>,
    /// The engine knows nothing of the last one any more.
    pub is_forgotten: bool,
}

impl Life {
    /// The engine is forgetting what it knows of it.
    pub fn is_being_forgotten(&self) -> bool {
        matches!(self.remains, Remains::Going { .. })
    }

    /// The engine knows nothing of it any more.
    pub fn is_forgotten(&self) -> bool {
        self.remains == Remains::Gone
    }

    /// Marks that the engine begins to forget it.
    pub fn begin_forgetting(&mut self) -> Forgetting {
        self.remains = Remains::Going { is_next_due: false };
        Forgetting(())
    }

    /// Marks that this is over, well or not. Returns true if the next life has waited for it.
    pub fn end_forgetting(&mut self, _: Forgetting, is_forgotten: bool) -> bool {
        let remains = match is_forgotten {
            true => Remains::Gone,
            false => Remains::All,
        };
        let before = std::mem::replace(&mut self.remains, remains);
        before == Remains::Going { is_next_due: true }
    }

    /// The next life of the container is to begin, under a halt of its own. None if it waits until the
    /// engine has forgotten the last.
    pub fn begins_anew(&mut self) -> Option<NextLife> {
        if let Remains::Going { is_next_due } = &mut self.remains {
            *is_next_due = true;
            return None;
        }
        let is_forgotten = self.is_forgotten();
        self.halt = Halt::default();
        // The engine may know something of it again, whatever comes of this.
        self.remains = Remains::All;
        Some(NextLife {
            halt: self.halt.clone(),
            last_cgroup: self.cgroup().cloned(),
            is_forgotten,
        })
    }

    /// The next life is not wanted any more. Whether it has waited.
    pub fn next_is_unwanted(&mut self) -> bool {
        match &mut self.remains {
            Remains::Going { is_next_due } => std::mem::take(is_next_due),
            Remains::All | Remains::Gone => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::engine::sim::SimEngine;

    #[tokio::test(start_paused = true)]
    async fn a_next_life_waits_until_the_last_is_forgotten() {
        let mut life = Life::new();
        life.born(SimEngine::default().parked("web").await);
        life.halt().call();
        life.ended(UNIX_EPOCH);
        let forgetting = life.begin_forgetting();
        assert!(life.begins_anew().is_none());
        assert!(life.end_forgetting(forgetting, true));
        let next = life.begins_anew().unwrap();
        assert!(next.is_forgotten && next.last_cgroup.is_some());
        assert!(!next.halt.is_called() && !life.is_forgotten());
        // One that is unwanted meanwhile does not begin.
        let forgetting = life.begin_forgetting();
        assert!(life.begins_anew().is_none());
        assert!(life.next_is_unwanted());
        assert!(!life.end_forgetting(forgetting, false));
    }
}
