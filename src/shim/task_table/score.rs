//! The OOM scores that the shim has given a task's processes.

use std::sync::Arc;

use tokio::sync::Notify;

use usher_core::lifecycle::ContainerId;
use usher_engine::{Change, EngineError, ScoreOutcome};

/// The OOM score that the shim has set for a container.
#[derive(Debug, Default)]
pub struct Score {
    /// The score in the bundle, which the container's next process gets.
    in_bundle: i32,
    /// The score that the shim has given the container's processes.
    given: i32,
    /// The change of the processes' scores that is under way.
    busy: Option<Busy>,
    /// True if a process was added since the last change. Its score may differ from `given`.
    has_newcomers: bool,
}

/// Logs changes of the pod's OOM scores.
#[derive(Debug, Default)]
pub struct ScoreLog {
    has_told_of_refusal: bool,
}

#[derive(Debug)]
struct Busy {
    to: i32,
    superseded: Arc<Notify>,
}

impl ScoreLog {
    /// Logs the outcome of a change. A refusal by the kernel is logged only once for the pod.
    pub fn note(
        &mut self,
        id: &ContainerId,
        Change { from, to }: Change,
        outcome: Result<ScoreOutcome, EngineError>,
    ) {
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => {
                return tracing::warn!(container = %id, %error, "cannot set OOM score {to}");
            }
        };
        if outcome.is_incomplete {
            tracing::warn!(container = %id, "some processes lack OOM score {to}: new ones keep coming");
        }
        match outcome.refused {
            Some(error) if !self.has_told_of_refusal => {
                self.has_told_of_refusal = true;
                tracing::warn!(container = %id, %error, "cannot set OOM score {to}: the kernel requires CAP_SYS_RESOURCE");
            }
            None if from != to => {
                tracing::info!(container = %id, "OOM score changed from {from} to {to}");
            }
            _ => {}
        }
    }
}

impl Score {
    /// Creates the entry for the OOM score of a container. `own` is the score in the container's
    /// bundle.
    pub fn new(own: i32) -> Score {
        Score {
            in_bundle: own,
            given: own,
            ..Score::default()
        }
    }

    /// The score in the bundle, which the container's next process gets.
    pub fn in_bundle(&self) -> i32 {
        self.in_bundle
    }

    /// Notes that the next process is created with `score` in its bundle. Returns true if the
    /// bundle must be changed.
    pub fn set_in_bundle(&mut self, score: i32) -> bool {
        let is_changed = score != self.in_bundle;
        self.in_bundle = score;
        self.given = score;
        // The new process may get another score than the score in the bundle.
        self.has_newcomers = true;
        is_changed
    }

    /// Notes that a process was added, whose score may differ from the score of the others.
    pub fn note_newcomer(&mut self) {
        self.has_newcomers = true;
    }

    /// Begins the change to the score `to`, which the caller carries out. Returns the change, and a
    /// [`Notify`] that tells the caller if another score is wanted meanwhile.
    ///
    /// Returns `None` if no change is due, or if an earlier change is still under way. If the
    /// earlier change is to another score than `to`, notifies its [`Notify`].
    pub fn begin_change(&mut self, to: i32) -> Option<(Change, Arc<Notify>)> {
        if let Some(busy) = &self.busy {
            if busy.to != to {
                busy.superseded.notify_one();
            }
            return None;
        }
        let from = self.given;
        if from == to && !self.has_newcomers {
            return None;
        }
        self.has_newcomers = false;
        let superseded = Arc::new(Notify::new());
        self.busy = Some(Busy {
            to,
            superseded: Arc::clone(&superseded),
        });
        Some((Change { from, to }, superseded))
    }

    /// Notes that a change to the score `to` has ended, successfully or not.
    pub fn end_change(&mut self, to: i32) {
        self.busy = None;
        self.given = to;
    }
}
