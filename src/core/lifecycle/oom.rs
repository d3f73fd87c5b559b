//! Who is killed last when memory runs out: a sidecar not before the apps it serves.
//!
//! KEP-753: the OOM score adjustment of a sidecar matches the regular containers of its pod, because
//! kubelet makes scores of requests, and those of sidecars are small.

use crate::plan::OomScore;

use super::Pod;
use super::action::ContainerId;

impl Pod {
    /// The `oom_score_adj` that the processes of a sidecar are to have: the lower of its own and the
    /// lowest of the apps that there are, each as its caller gave it. None for a container that keeps
    /// what it has.
    pub fn oom_score(&self, id: &ContainerId) -> Option<i32> {
        let plan = self.plan.as_ref()?;
        let sidecar = self.known(id).ok()?;
        if !sidecar.duty().is_helper || plan.settings().oom_score == OomScore::Off {
            return None;
        }
        let apps = self
            .containers
            .values()
            .filter(|container| container.duty().is_work && !container.life.is_exited());
        let scores = apps
            .map(|app| app.demands.oom_score)
            .chain([sidecar.demands.oom_score]);
        scores.min()
    }
}
