//! OOM scores, chosen so that a sidecar is not killed before the apps that it serves.
//!
//! KEP-753: the OOM score adjustment of a sidecar matches the regular containers of its pod.
//! kubelet derives scores from requests, and the requests of sidecars are small.

use crate::plan::OomScore;

use super::Pod;
use super::action::ContainerId;

impl Pod {
    /// The `oom_score_adj` for the processes of a sidecar: the lowest of the scores that the caller
    /// has set for the sidecar and for the living apps. `None` if the container is no sidecar or is
    /// unknown, or if the setting `oom-score` is off: then the shim changes no score.
    pub fn oom_score(&self, id: &ContainerId) -> Option<i32> {
        let plan = self.plan.as_ref()?;
        let sidecar = self.known(id).ok()?;
        if !sidecar.role_policy().is_helper || plan.settings().oom_score == OomScore::Off {
            return None;
        }
        let apps = self
            .containers
            .values()
            .filter(|container| container.role_policy().is_work && !container.state.is_exited());
        let scores = apps
            .map(|app| app.demands.oom_score)
            .chain([sidecar.demands.oom_score]);
        scores.min()
    }
}
