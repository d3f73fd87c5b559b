//! Gives sidecars the OOM scores that the core wants.

use std::sync::Arc;

use tokio::sync::Notify;

use usher_core::lifecycle::{ContainerId, Wanted};
use usher_engine::Panicked;
use usher_engine::{Change, EngineError, ScoreOutcome};

use super::Actor;

/// The OOM score that the shim has set for a container.
#[derive(Debug, Default)]
pub(super) struct Score {
    /// The score in the bundle, which the container's next process gets.
    pub in_bundle: i32,
    /// The score that the shim has given the container's processes.
    pub given: i32,
    /// The change of the processes' scores that is under way.
    busy: Option<Busy>,
    /// True if a process was added since the last change. Such a process may have another score.
    pub has_newcomers: bool,
}

/// Logs changes of the pod's OOM scores.
#[derive(Debug, Default)]
pub(super) struct ScoreLog {
    has_told_of_refusal: bool,
}

#[derive(Debug)]
struct Busy {
    to: i32,
    superseded: Arc<Notify>,
}

impl Actor {
    /// Returns the score to write into a container's bundle before the container is created; `None`
    /// if the bundle has this score already.
    pub(super) fn score_for_bundle(&mut self, id: &ContainerId) -> Option<i32> {
        let wanted = self.core.oom_score(id)?;
        let score = &mut self.tasks.get_mut(id)?.score;
        let allowed = self.node.engine.allowed_score(wanted, score.in_bundle);
        let is_changed = allowed != score.in_bundle;
        score.in_bundle = allowed;
        score.given = allowed;
        // The new process may get another score than the score in the bundle.
        score.has_newcomers = true;
        is_changed.then_some(allowed)
    }

    /// Gives the processes of all sidecars the score that the core wants now.
    pub(super) fn settle_scores(&mut self) {
        let due: Vec<_> = self
            .tasks
            .iter()
            .filter(|(id, _)| self.core.is_known(id) && !self.core.has_exited(id))
            .filter_map(|(id, task)| {
                let (from, to) = (task.score.given, self.core.oom_score(id)?);
                if let Some(busy) = &task.score.busy {
                    if busy.to != to {
                        busy.superseded.notify_one();
                    }
                    return None;
                }
                let is_due = from != to || task.score.has_newcomers;
                is_due.then(|| {
                    Some((
                        id.clone(),
                        task.handles.cgroup().cloned()?,
                        Change { from, to },
                    ))
                })?
            })
            .collect();
        for (id, cgroup, change) in due {
            let Some(task) = self.tasks.get_mut(&id) else {
                continue;
            };
            let superseded = Arc::new(Notify::new());
            task.score.busy = Some(Busy {
                to: change.to,
                superseded: Arc::clone(&superseded),
            });
            task.score.has_newcomers = false;
            let work = async move {
                let outcome = cgroup.change_scores(change, &superseded).await;
                Ok::<_, Panicked>(outcome)
            };
            self.operate(
                &id,
                Wanted::UntilDeleted,
                work,
                move |actor, id, outcome| {
                    let outcome =
                        outcome.unwrap_or_else(|panicked| Err(EngineError::failed(panicked)));
                    actor.score_changed(id, change, outcome);
                },
            );
        }
    }

    fn score_changed(
        &mut self,
        id: &ContainerId,
        change: Change,
        outcome: Result<ScoreOutcome, EngineError>,
    ) {
        if let Some(task) = self.tasks.get_mut(id) {
            task.score.busy = None;
            task.score.given = change.to;
        }
        self.score_log.changed(id, change, outcome);
    }
}

impl ScoreLog {
    /// Logs the outcome of a change. A refusal by the kernel is logged only once for the pod.
    fn changed(
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
    /// Creates the score of a container whose bundle has the score `own`.
    pub fn new(own: i32) -> Score {
        Score {
            in_bundle: own,
            given: own,
            ..Score::default()
        }
    }
}
