//! Gives sidecars the OOM scores that the core wants.

use usher_core::lifecycle::{ContainerId, Wanted};
use usher_engine::{Change, EngineError, ScoreOutcome};

use super::Actor;

impl Actor {
    /// Returns the score to write into a container's bundle before its next process is created, and
    /// notes that the bundle has this score. `None` if the bundle has it already, or if the core
    /// sets no score for this container.
    pub(super) fn score_for_bundle(&mut self, id: &ContainerId) -> Option<i32> {
        let wanted = self.core.oom_score(id)?;
        let score = &mut self.tasks.get_mut(id)?.score;
        let allowed = self.node.engine.allowed_score(wanted, score.in_bundle());
        score.set_in_bundle(allowed).then_some(allowed)
    }

    /// Begins to give the processes of all sidecars the score that the core wants now, unless they
    /// have it. Called after each message and timer.
    pub(super) fn settle_scores(&mut self) {
        let mut begun = Vec::new();
        for (id, task) in &mut self.tasks {
            if !self.core.is_known(id) || self.core.has_exited(id) {
                continue;
            }
            if let Some(to) = self.core.oom_score(id)
                && let Some(cgroup) = task.handles.cgroup().cloned()
                && let Some((change, superseded)) = task.score.begin_change(to)
            {
                let work = async move { cgroup.change_scores(change, &superseded).await };
                begun.push((id.clone(), change, work));
            }
        }
        for (id, change, work) in begun {
            let wanted = Wanted::UntilDeleted;
            self.operate(&id, wanted, work, move |actor, id, outcome| {
                actor.finish_score_change(id, change, outcome);
            });
        }
    }

    fn finish_score_change(
        &mut self,
        id: &ContainerId,
        change: Change,
        outcome: Result<ScoreOutcome, EngineError>,
    ) {
        if let Some(task) = self.tasks.get_mut(id) {
            task.score.end_change(change.to);
        }
        self.score_log.note(id, change, outcome);
    }
}
