//! Kill, and the end of a container's init process.

use std::io;
use std::time::{Duration, SystemTime};

use crate::cgroup::Cgroup;
use crate::lifecycle::{ContainerId, Kill};
use crate::plan::Signal;
use crate::process::ExitStatus;
use crate::record::What;
use crate::runtime::{await_execution, insist};
use crate::sys;

use super::actor::RELEASES_WITHIN;
use super::exec::exit_event;
use super::process::Freezer;
use super::{Actor, CallError, KillCall, Kind, Panicked, Reply};

/// How long the exit of a container waits for those of its execs, which the kernel kills with it.
const EXECS_END_WITHIN: Duration = Duration::from_secs(2);

/// How long the OCI runtime may take to kill what is left of a container whose exit waits for that.
const KILLS_WITHIN: Duration = Duration::from_secs(1);

/// How often what is left of a container is looked for, and killed, when its init has ended.
const REST_LOOKS: u32 = 200;
const REST_LOOKS_APART: Duration = Duration::from_millis(10);

impl Actor {
    /// Sends a signal to a container or one of its execs.
    pub fn kill(&mut self, call: KillCall, reply: Reply<()>) {
        if call.signal == 0 {
            return drop(reply.send(self.is_alive(&call)));
        }
        let Some(signal) = i32::try_from(call.signal).ok().and_then(Signal::new) else {
            let message = format!("signal {} is none, expected 0 to 64", call.signal);
            return drop(reply.send(Err(CallError::new(Kind::InvalidArgument, message))));
        };
        if !call.exec_id.is_empty() {
            return self.kill_exec(call, signal, reply);
        }
        if let Err(error) = self.task(&call.id) {
            return drop(reply.send(Err(error)));
        }
        let request = self.next_request();
        self.kills.insert(request, reply);
        let kill = Kill {
            signal,
            all: call.all,
            patience: call.patience,
        };
        let (now, id) = (self.now(), ContainerId::from(call.id.as_str()));
        let is_stop = self.core.is_stop(&id, signal);
        self.record.note(now, &id, What::Asked { signal, is_stop });
        self.core.handle_kill(now, &id, request, kill);
    }

    /// Signal 0 stops nothing: it asks whether the process is there (`kill(2)`).
    fn is_alive(&self, call: &KillCall) -> Result<(), CallError> {
        let (task, process) = self.process(&call.id, &call.exec_id)?;
        let has_ended = process.exit.is_some() || call.exec_id.is_empty() && task.ended.is_some();
        match has_ended {
            true => Err(CallError::finished(&call.id)),
            false => Ok(()),
        }
    }

    /// Its Start is answered when runc is done with it, which is a moment before its program is
    /// executed: until then runc's own code would take a signal for itself.
    fn kill_exec(&mut self, call: KillCall, signal: Signal, reply: Reply<()>) {
        let pid = match self.pid_of_exec(&call) {
            Ok(pid) if signal == Signal::KILL => {
                return drop(reply.send(self.kill_process(pid, signal, &call.exec_id)));
            }
            Ok(pid) => pid,
            Err(error) => return drop(reply.send(Err(error))),
        };
        let executed = async move {
            await_execution(pid).await;
            Ok::<_, Panicked>(())
        };
        self.job(executed, move |actor, _| {
            // It may have ended meanwhile, and its number may be another's.
            let still = actor.pid_of_exec(&call).is_ok_and(|now| now == pid);
            let _ = reply.send(match still {
                true => actor.kill_process(pid, signal, &call.exec_id),
                false => Err(CallError::finished(&call.exec_id)),
            });
        });
    }

    fn pid_of_exec(&self, call: &KillCall) -> Result<i32, CallError> {
        let exec = self.task(&call.id)?.execs.get(&call.exec_id);
        let exec = exec.ok_or_else(|| CallError::not_found(&call.id, &call.exec_id))?;
        if exec.process.exit.is_some() {
            return Err(CallError::finished(&call.exec_id));
        }
        if exec.process.pid == 0 {
            let message = format!(
                "process {} of task {} is not started",
                call.exec_id, call.id
            );
            return Err(CallError::new(Kind::FailedPrecondition, message));
        }
        Ok(exec.process.pid)
    }

    /// Sends a signal to a process of ours; `name` is what the caller knows it by.
    pub(super) fn kill_process(
        &self,
        pid: i32,
        signal: Signal,
        name: &str,
    ) -> Result<(), CallError> {
        let killed = self.reaper.kill(pid, signal.number());
        killed.map_err(|error| match error.raw_os_error() {
            Some(nix::libc::ESRCH) => CallError::finished(name),
            _ => CallError::unknown(error),
        })
    }

    /// Ends a process, which may have ended already.
    pub(super) fn end_process(&self, pid: i32) {
        if let Err(error) = self.reaper.kill(pid, Signal::KILL.number()) {
            tracing::debug!(pid, %error, "it has ended already");
        }
    }

    /// How a process ended that was waited for. One that cannot be waited for any more is ended: what
    /// nobody would hear of must not run on.
    pub(super) fn known_end(&self, pid: i32, outcome: io::Result<ExitStatus>) -> ExitStatus {
        outcome.unwrap_or_else(|error| {
            tracing::error!(pid, %error, "it cannot be waited for, and is ended");
            self.end_process(pid);
            ExitStatus::Signal(Signal::KILL.number())
        })
    }

    pub(super) fn init_ended(&mut self, id: &ContainerId, status: ExitStatus) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        task.ended = Some(SystemTime::now());
        task.freezer = Freezer::Thawed;
        task.end_watch();
        // A release that is still waiting ends with it.
        let was_releasing = task.releasing.take().is_some();
        let now = self.now();
        self.record.note(now, id, What::Exited(status.code()));
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        if !task.facts.has_own_pid_namespace {
            task.keep_figures();
            // Nobody but us will end what it leaves behind. Its exit is told afterwards: as soon as
            // it can be deleted another container of the same id may come, which must not be hit.
            let (mut runtime, name) = (task.runtime.clone(), id.to_string());
            runtime.within(KILLS_WITHIN);
            // One of its own, by its name: in any other there may be anybody.
            let cgroup = task
                .cgroup
                .clone()
                .filter(|cgroup| cgroup.is_named_after(id.as_str()));
            let kill_all = async move {
                let killed = insist(|| runtime.kill(&name, Signal::KILL.number(), true)).await;
                if let Some(cgroup) = cgroup {
                    end_the_rest(&cgroup).await;
                }
                killed
            };
            let id = id.clone();
            return self.job(kill_all, move |actor, outcome| {
                if let Err(error) = outcome {
                    tracing::debug!(container = %id, %error, "nothing left to kill");
                }
                let now = actor.now();
                actor.core.handle_exit(now, &id, status);
            });
        }
        let now = self.now();
        self.core.handle_exit(now, id, status);
        if self.core.is_about_to_go_on() && !self.core.may_restart_in_place(id) {
            return self.leave_cgroup_later(id);
        }
        if let Some(task) = self.tasks.get_mut(id) {
            task.keep_figures();
        }
        if !was_releasing {
            self.clear_away(id);
        }
    }

    /// Something else has waited for this end: until that is done it has the machine to itself.
    fn leave_cgroup_later(&self, id: &ContainerId) {
        let Some(init) = self.tasks.get(id).map(|task| task.init.pid) else {
            return;
        };
        let pause = async {
            tokio::time::sleep(RELEASES_WITHIN).await;
            Ok::<_, Panicked>(())
        };
        let id = id.clone();
        self.job(pause, move |actor, _| {
            // Another container may have the id by now.
            let task = actor.tasks.get_mut(&id);
            if let Some(task) = task.filter(|task| task.init.pid == init && !task.deleting) {
                task.keep_figures();
                actor.clear_away(&id);
            }
        });
    }

    /// Publishes the exit of a container when it is known and those of its execs are published.
    pub(super) fn publish_exit_if_due(&mut self, id: &ContainerId) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        // Who wants it deleted need not wait for an exec that has no process yet.
        let has_execs = match task.delete {
            Some(_) => task.has_running_execs(),
            None => task.has_live_execs(),
        };
        if task.unpublished.is_none() || !has_execs {
            return self.publish_exit(id);
        }
        if !std::mem::replace(&mut task.exit_delayed, true) {
            let (id, init) = (id.clone(), task.init.pid);
            let patience = async {
                tokio::time::sleep(EXECS_END_WITHIN).await;
                Ok::<_, Panicked>(())
            };
            self.job(patience, move |actor, _| {
                // Another container may have the id by now.
                if actor
                    .tasks
                    .get(&id)
                    .is_some_and(|task| task.init.pid == init)
                {
                    actor.publish_exit(&id);
                }
            });
        }
    }

    fn publish_exit(&mut self, id: &ContainerId) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        let exit = task.exit();
        let (Some(exit), Some(code)) = (exit, task.unpublished.take()) else {
            return;
        };
        if task.creating {
            // It is being undone: nobody has heard of it.
            return;
        }
        self.publisher
            .publish(exit_event(id, id.as_str(), task.init.pid, exit));
        task.init.ended(exit);
        // Where it had no second life there is no first one to be remembered.
        if let Some(first) = task.first_pid.take_if(|first| *first == task.init.pid) {
            self.reaper.free(first);
        }
        tracing::info!(container = %id, code, "exited");
        let delete = task.delete.take();
        let now = self.now();
        self.record.note(now, id, What::Reported(code));
        if let Some(reply) = delete {
            self.begin_delete(id, reply);
        }
    }
}

/// Kills what the OCI runtime has left in the cgroups of a container whose init has ended: crun
/// kills nothing in those below the container's own, and from 1.2 on runc nothing at all where the
/// init is gone.
async fn end_the_rest(cgroup: &Cgroup) {
    for _ in 0..REST_LOOKS {
        match cgroup.processes() {
            Ok(processes) if processes.is_empty() => return,
            Ok(processes) => {
                // A command that was ended may have frozen them.
                cgroup.thaw();
                for pid in processes
                    .into_iter()
                    .filter_map(|pid| i32::try_from(pid).ok())
                {
                    // It may have ended by itself just now.
                    let _ = sys::kill(pid, Signal::KILL.number());
                }
            }
            Err(error) => tracing::debug!(%error, "what is left is not known yet"),
        }
        tokio::time::sleep(REST_LOOKS_APART).await;
    }
    tracing::warn!("processes are left in the cgroup of a container that has ended");
}
