//! postStart, once more: what kubelet has executed in a container when it had started it is executed
//! again when the shim restarts it in place.

use crate::lifecycle::{ContainerId, Wanted};

use super::Actor;

impl Actor {
    /// Executes it in that life of the container, and tells the core what becomes of it.
    pub(super) fn post_start(&mut self, id: ContainerId, life: u64) {
        let task = self.tasks.get(&id);
        let kept = task.and_then(|task| {
            let init = task.handles.init_and_halt().ok()?;
            Some((init, task.lives.post_start()?.to_owned()))
        });
        let Some(((init, halt), process)) = kept else {
            // Its bundle was made before anybody could keep it: it is not held against the container.
            tracing::warn!(container = %id, "its postStart is not known, and not run again");
            return self.core.handle_post_started(self.now(), &id, life, Ok(()));
        };
        let score = self.core.oom_score(&id);
        let run = async move { init.post_start(process, score, &halt).await };
        self.operate(
            &id,
            Wanted::UntilReplaced,
            run,
            move |actor, id, outcome| {
                let now = actor.now();
                actor.core.handle_post_started(now, id, life, outcome);
            },
        );
    }
}
