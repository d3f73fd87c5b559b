//! postStart, once more: what kubelet has executed in a container when it had started it is executed
//! again when the shim restarts it in place.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::lifecycle::ContainerId;
use crate::process::ExitStatus;

use super::{Actor, scores};

/// How long the OCI runtime may take to execute it. What it does has no limit, as with kubelet.
const RUNTIME_TAKES: Duration = Duration::from_secs(10);

impl Actor {
    /// Executes it in that life of the container, and tells the core what becomes of it.
    pub(super) fn post_start(&mut self, id: ContainerId, life: u64) {
        let task = self.tasks.get(&id);
        let kept = task.and_then(|task| Some((task.runtime.clone(), task.post_start.clone()?)));
        let Some((runtime, process)) = kept else {
            // Its bundle was made before anybody could keep it: it is not held against the container.
            tracing::warn!(container = %id, "its postStart is not known, and not run again");
            return self.core.handle_post_started(self.now(), &id, life, Ok(()));
        };
        let name = id.clone();
        let score = self.core.oom_score(&id);
        let run = async move {
            let process = with_score(process, score).map_err(|error| error.to_string())?;
            let executed = runtime.exec_again(name.as_str(), &process, RUNTIME_TAKES);
            let mut process = executed.await.map_err(|error| error.to_string())?;
            match process.wait().await {
                Ok(ExitStatus::Code(0)) => Ok(()),
                Ok(status) => Err(format!("the command ended with {}", status.code())),
                Err(error) => Err(error.to_string()),
            }
        };
        self.job(run, move |actor, outcome| {
            let now = actor.now();
            actor.core.handle_post_started(now, &id, life, outcome);
        });
    }
}

/// The process with an OOM score that is no higher.
fn with_score(process: Vec<u8>, score: Option<i32>) -> serde_json::Result<Vec<u8>> {
    let Some(score) = score else {
        return Ok(process);
    };
    let mut spec: Map<String, Value> = serde_json::from_slice(&process)?;
    match scores::lower(&mut spec, score) {
        true => serde_json::to_vec(&spec),
        false => Ok(process),
    }
}
