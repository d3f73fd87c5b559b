//! Delete: what is left of a container, or of an exec, goes away.

use std::path::Path;
use std::time::Duration;

use containerd_shim_protos::events::task::TaskDelete;
use containerd_shim_protos::protobuf::MessageField;

use crate::cgroup::{self, remains};
use crate::lifecycle::ContainerId;
use crate::runtime::{Bundle, OciRuntime, RuntimeError, insist};
use crate::{rootfs, stdio};

use super::process::{Deleted, Exit, Remains, Task};
use super::{Actor, CallError, Kind, Panicked, Reply};

impl Actor {
    /// Deletes a task that has ended, or was never started, or an exec.
    pub fn delete(&mut self, id: &str, exec_id: &str, reply: Reply<Deleted>) {
        if !exec_id.is_empty() {
            return self.delete_exec(id, exec_id, reply);
        }
        let task = match self.task_mut(id) {
            Ok(task) => task,
            Err(error) => return drop(reply.send(Err(error))),
        };
        let refuse = |state: &str| {
            let message =
                format!("cannot delete task {id}: it is {state}, expected stopped or created");
            Err(CallError::new(Kind::FailedPrecondition, message))
        };
        if task.deleting || task.delete.is_some() {
            return drop(reply.send(refuse("being deleted")));
        }
        let Some(reply) = self.delete_unborn(id, reply) else {
            return;
        };
        let Ok(task) = self.task_mut(id) else { return };
        match (task.init.exit, task.init.started) {
            (Some(_), _) => self.begin_delete(&ContainerId::from(id), reply),
            (None, _) if task.unpublished.is_some() => {
                task.delete = Some(reply);
                self.publish_exit_if_due(&ContainerId::from(id));
            }
            (None, true) => drop(reply.send(refuse("running"))),
            (None, false) => {
                // Its end is published before its deletion, as for any other.
                task.delete = Some(reply);
                task.runtime.halt();
                let id = ContainerId::from(id);
                if let Some(task) = self.tasks.get(&id)
                    && let Err(error) = self.kill_init(&id, task)
                {
                    tracing::debug!(container = %id, %error, "it has ended already");
                }
            }
        }
    }

    /// Has the OCI runtime forget a container that has ended, while the news of its end are still on
    /// their way to whoever will ask for its deletion. Nothing of it is needed any more: what is
    /// known of an ended container is known here. Hooks that run at its deletion wait for that.
    pub(super) fn clear_away(&mut self, id: &ContainerId) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        // An exec that is being started may still be in the cgroup.
        let is_going = task.remains == Remains::Going;
        let is_busy = is_going || task.creating || task.deleting || task.has_live_execs();
        if is_busy || task.facts.has_poststop_hooks {
            return;
        }
        task.remains = Remains::Going;
        let (runtime, name) = (task.runtime.clone(), id.to_string());
        let id = id.clone();
        self.job(
            async move { runtime.delete(&name, false).await },
            move |actor, outcome| actor.cleared_away(&id, outcome),
        );
    }

    fn cleared_away(&mut self, id: &ContainerId, outcome: Result<(), RuntimeError>) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        task.remains = match outcome {
            Ok(()) => Remains::Gone,
            Err(error) => {
                // Its deletion will try again, and say so. Who waits for that already has waited for
                // as long as it could.
                tracing::warn!(container = %id, %error, "not cleared away");
                if error.is_cut_short()
                    && let Some(reply) = task.delete.take()
                {
                    let _ = reply.send(Err(CallError::unknown(error)));
                }
                Remains::All
            }
        };
        if task.restart_due {
            return self.restart(id);
        }
        if task.init.exit.is_some()
            && let Some(reply) = task.delete.take()
        {
            self.begin_delete(id, reply);
        }
    }

    pub(super) fn begin_delete(&mut self, id: &ContainerId, reply: Reply<Deleted>) {
        let Some(task) = self.tasks.get_mut(id) else {
            return drop(reply.send(Err(CallError::not_found(id.as_str(), ""))));
        };
        let Some(exit) = task.init.exit else { return };
        if task.remains == Remains::Going {
            task.delete = Some(reply);
            return;
        }
        task.deleting = true;
        let pid = task.init.pid;
        let removal = remove(id.to_string(), task, false);
        let id = id.clone();
        self.job(removal, move |actor, outcome| match outcome {
            Ok(()) => actor.deleted(&id, Deleted { pid, exit }, reply),
            Err(error) => {
                // It can be tried again.
                if let Some(task) = actor.tasks.get_mut(&id) {
                    task.deleting = false;
                }
                let _ = reply.send(Err(CallError::unknown(error)));
            }
        });
    }

    pub(super) fn deleted(&mut self, id: &ContainerId, deleted: Deleted, reply: Reply<Deleted>) {
        self.forget(id);
        let Deleted { pid, exit } = deleted;
        self.publisher.publish(TaskDelete {
            container_id: id.to_string(),
            pid: u32::try_from(pid).unwrap_or_default(),
            exit_status: exit.code,
            exited_at: MessageField::some(crate::events::timestamp(exit.at)),
            ..TaskDelete::new()
        });
        let _ = reply.send(Ok(deleted));
    }

    fn delete_exec(&mut self, id: &str, exec_id: &str, reply: Reply<Deleted>) {
        let task = match self.task_mut(id) {
            Ok(task) => task,
            Err(error) => return drop(reply.send(Err(error))),
        };
        let Some(exec) = task.execs.get(exec_id) else {
            return drop(reply.send(Err(CallError::not_found(id, exec_id))));
        };
        if exec.process.is_running() {
            let message = format!(
                "cannot delete process {exec_id} of task {id}: it is running, expected stopped or created"
            );
            return drop(reply.send(Err(CallError::new(Kind::FailedPrecondition, message))));
        }
        let Some(mut exec) = task.execs.remove(exec_id) else {
            return;
        };
        let container = ContainerId::from(id);
        self.exec_over(&container, exec_id);
        self.publish_exit_if_due(&container);
        // An exec that never ran has no exit; containerd takes 0 for unknown.
        let exit = exec.process.exit.unwrap_or(Exit {
            code: 0,
            at: std::time::UNIX_EPOCH,
        });
        let deleted = Deleted {
            pid: exec.process.pid,
            exit,
        };
        match exec.starting.take() {
            Some((_, runtime)) => {
                runtime.halt();
                exec.process.never_ran(&CallError::not_found(id, exec_id));
            }
            None => exec.process.ended(exit),
        }
        let streams = exec.process.streams.take();
        let drain = async move {
            stdio::drain(streams).await;
            Ok::<_, Panicked>(())
        };
        self.job(drain, move |_, _| {
            let _ = reply.send(Ok(deleted));
        });
    }
}

/// How long the OCI runtime may take to forget what was ended in the middle.
const DISCARDED_WITHIN: Duration = Duration::from_secs(2);

/// How long it may take to delete a container with hooks that run then: nobody runs them again.
const HOOKS_END_WITHIN: Duration = Duration::from_secs(100);

/// Removes what the creation of a container has left that came to nothing: some runtimes leave something
/// when they fail, and one that was ended in the middle leaves cgroups that nobody knows of.
pub(super) async fn discard(
    runtime: &OciRuntime,
    id: &str,
    bundle: &Path,
) -> Result<(), RuntimeError> {
    let config = Bundle::read(bundle).unwrap_or_default();
    let mut cgroups = remains::of_container(&runtime.state_dir(id), config.cgroups_path());
    // One of its own, by its name: in any other there may be anybody.
    cgroups.retain(|directory| cgroup::is_named_after(directory, id));
    let deleted = match runtime.is_halted() {
        false => insist(|| runtime.delete(id, true)).await,
        // Somebody waits for the end, and what runs there is ended below.
        true => {
            let mut runtime = runtime.clone();
            runtime.within(DISCARDED_WITHIN);
            runtime.delete(id, true).await
        }
    };
    remains::raze(&cgroups).await;
    deleted
}

/// Removes what the OCI runtime and the kernel know of a container.
pub(super) fn remove(
    id: String,
    task: &mut Task,
    force: bool,
) -> impl Future<Output = Result<(), RuntimeError>> + Send + 'static {
    let (mut runtime, bundle) = (task.runtime.clone(), task.bundle.clone());
    if task.facts.has_poststop_hooks {
        runtime.within(HOOKS_END_WITHIN);
    }
    // What is still to be done in it, or with it.
    runtime.halt();
    let is_gone = task.remains == Remains::Gone;
    let streams = task.init.streams.take();
    let execs: Vec<_> = task
        .execs
        .values_mut()
        .filter_map(|exec| exec.process.streams.take())
        .collect();
    async move {
        // Whatever comes of it, no output is lost and nothing stays mounted.
        let deleted = match (is_gone, force) {
            (true, _) => Ok(()),
            (false, false) => runtime.delete(&id, false).await,
            // Nobody would ask again.
            (false, true) => discard(&runtime, &id, &bundle).await,
        };
        stdio::drain(streams.into_iter().chain(execs)).await;
        rootfs::unmount(&bundle);
        deleted
    }
}
