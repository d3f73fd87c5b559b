//! Restart in place: another process in the same container, as far as anybody can see.
//!
//! The OCI runtime knows no second life: the container is deleted there and created again, from the
//! same bundle, on the root file system that is still mounted, with the streams of the first.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::oneshot;

use crate::cgroup::Cgroup;
use crate::lifecycle::ContainerId;
use crate::reaper::{Child, Reaper};
use crate::record::What;
use crate::runtime::{Namespaces, OciRuntime, release};
use crate::stdio::{Owner, Paths, Setting, Streams};

use super::delete::discard;
use super::process::Remains;
use super::{Actor, Panicked, scores};

/// How long what is left of the last life may take to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// What the next life of a container is made of.
struct NextLife {
    id: String,
    namespace: String,
    bundle: PathBuf,
    owner: Owner,
    paths: Paths,
    runtime: OciRuntime,
    reaper: Reaper,
    /// Where its processes were.
    cgroup: Option<Arc<Cgroup>>,
    /// The OCI runtime does not know it any more.
    is_deleted: bool,
    /// What the caller has changed of its resources.
    resources: Option<Value>,
    /// The namespaces that it is to be in, as the first was.
    joins: Namespaces,
}

impl Actor {
    /// Begins the next life of a container whose process has ended.
    pub(super) fn restart(&mut self, id: &ContainerId) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        task.restart_due = task.remains == Remains::Going;
        if task.restart_due {
            return;
        }
        task.runtime.begin_anew();
        let life = NextLife {
            id: id.to_string(),
            namespace: self.namespace.clone(),
            bundle: task.bundle.clone(),
            owner: task.facts.owner,
            paths: task.init.paths.clone(),
            runtime: task.runtime.clone(),
            reaper: self.reaper.clone(),
            cgroup: task.cgroup.clone(),
            is_deleted: task.remains == Remains::Gone,
            resources: task.resources.clone(),
            joins: task.facts.joins.clone(),
        };
        let score = self.score_for_bundle(id);
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        // The OCI runtime may know something of it again, whatever comes of this.
        task.remains = Remains::All;
        scores::write(&task.bundle, score);
        // What the caller wants of them meanwhile is asked of others in their place.
        let streams = task.init.streams.replace(Streams::default());
        let mut streams = streams.unwrap_or_default();
        let work = async move {
            let created = life.create(&mut streams).await;
            Ok::<_, Panicked>((streams, created))
        };
        let id = id.clone();
        self.job(work, move |actor, outcome| match outcome {
            Ok((mut streams, created)) => {
                if let Some(task) = actor.tasks.get_mut(&id) {
                    streams.catch_up(task.init.streams.take());
                    task.init.streams = Some(streams);
                }
                actor.created_again(&id, created);
            }
            Err(panicked) => actor.created_again(&id, Err(panicked.to_string())),
        });
    }

    /// The next life of a container is not to be: whatever of it is there ends, and whatever is under
    /// way for it.
    pub(super) fn halt(&mut self, id: &ContainerId) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        task.runtime.halt();
        if std::mem::take(&mut task.restart_due) {
            return self.restarted(id, Err("it is not wanted any more".to_owned()));
        }
        if let Some(task) = self.tasks.get(id)
            && task.releasing.is_some()
            && let Err(error) = self.kill_init(id, task)
        {
            tracing::debug!(container = %id, %error, "it has ended already");
        }
    }

    /// The next init process of a container is parked, or could not be made.
    fn created_again(&mut self, id: &ContainerId, created: Result<Child, String>) {
        let (Some(task), Ok(child)) = (self.tasks.get_mut(id), &created) else {
            return self.restarted(id, created.map(drop));
        };
        let pid = child.pid();
        task.ended = None;
        task.last_figures = None;
        task.remains = Remains::All;
        let (releasing, gone) = oneshot::channel::<()>();
        task.releasing = Some(releasing);
        let (runtime, hooks) = (task.runtime.clone(), task.facts.has_poststart_hooks);
        if let Ok(child) = created {
            self.born(id, child);
        }
        let name = id.clone();
        let release = async move { release(&runtime, name.as_str(), pid, hooks, gone).await };
        let id = id.clone();
        self.job(release, move |actor, outcome| {
            if let Some(task) = actor.tasks.get_mut(&id) {
                task.releasing = None;
            }
            if outcome.is_err() {
                // It is parked, and nobody will release it.
                actor.end_process(pid);
            }
            actor.restarted(&id, outcome);
        });
    }

    fn restarted(&mut self, id: &ContainerId, outcome: Result<(), String>) {
        let now = self.now();
        if outcome.is_ok() {
            self.record.note(now, id, What::Executed);
        }
        self.core.handle_restarted(now, id, outcome);
    }
}

impl NextLife {
    async fn create(self, streams: &mut Streams) -> Result<Child, String> {
        if !self.is_deleted {
            let deleted = self.runtime.clear(&self.id).await;
            deleted.map_err(|error| error.to_string())?;
        }
        self.await_end_of_the_last().await?;
        let setting = Setting {
            id: &self.id,
            namespace: &self.namespace,
            bundle: &self.bundle,
            owner: self.owner,
            reaper: &self.reaper,
            is_shared: true,
        };
        let handed_over = streams.hand_over(&self.paths, &setting).await;
        let stdio = handed_over.map_err(|error| error.to_string())?;
        let created = self.runtime.create(&self.id, stdio).await;
        let completed = match created {
            Ok(child) => {
                let is_there = self.runtime.is_in(&self.id, &child, &self.joins);
                let is_there = is_there.map_err(|error| error.to_string());
                let completed = match is_there {
                    Ok(()) => self.complete(streams).await,
                    Err(elsewhere) => Err(elsewhere),
                };
                completed.map(|()| child)
            }
            Err(error) => Err(error.to_string()),
        };
        if completed.is_err()
            && let Err(error) = discard(&self.runtime, &self.id, &self.bundle).await
        {
            tracing::warn!(container = self.id, %error, "not deleted");
        }
        completed
    }

    /// What a container gets between its creation and its release.
    async fn complete(&self, streams: &mut Streams) -> Result<(), String> {
        let has_stdin = !self.paths.stdin.is_empty();
        let terminal = streams.receive_terminal(has_stdin).await;
        terminal.map_err(|error| error.to_string())?;
        if self.paths.terminal {
            let connected = streams.connect_stdin(&self.paths.stdin);
            connected.map_err(|error| error.to_string())?;
        }
        let Some(resources) = &self.resources else {
            return Ok(());
        };
        let resources = resources.to_string();
        let updated = self.runtime.update(&self.id, resources.as_bytes()).await;
        updated.map_err(|error| error.to_string())
    }

    /// No process of the last life may be there when the next begins.
    async fn await_end_of_the_last(&self) -> Result<(), String> {
        let Some(cgroup) = &self.cgroup else {
            return Ok(());
        };
        let gone = async {
            while cgroup.processes() != Ok(Vec::new()) {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        let gone = tokio::select! {
            gone = tokio::time::timeout(GONE_WITHIN, gone) => gone,
            () = self.runtime.halted() => return Err("it is not wanted any more".to_owned()),
        };
        gone.map_err(|_| {
            let left = cgroup.processes();
            format!("of its last life there is still in its cgroup: {left:?}")
        })
    }
}

/// Adds to what the caller has changed of a container's resources (`LinuxResources` of the OCI
/// specification) what it changes now. As deep as JSON is parsed, no deeper.
pub(super) fn merge(changed: &mut Option<Value>, change: &[u8]) {
    match serde_json::from_slice(change) {
        Ok(change) => merge_value(changed.get_or_insert(Value::Null), change),
        Err(error) => {
            tracing::warn!(%error, "resources that are no JSON will not be applied again")
        }
    }
}

fn merge_value(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge_value(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_changed_last_counts_and_the_rest_stays() {
        let mut changed = None;
        for change in [
            r#"{"cpu":{"shares":2,"quota":5},"memory":{"limit":1}}"#,
            "nonsense",
            r#"{"cpu":{"shares":9}}"#,
        ] {
            merge(&mut changed, change.as_bytes());
        }
        let expected = r#"{"cpu":{"quota":5,"shares":9},"memory":{"limit":1}}"#;
        assert_eq!(changed.unwrap().to_string(), expected);
    }
}
