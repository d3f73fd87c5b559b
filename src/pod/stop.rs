//! Kill, and the end of a container's init process.

use std::time::{Duration, SystemTime};

use crate::lifecycle::{ContainerId, ExitStatus, Kill};
use crate::plan::Signal;

use super::exec::exit_event;
use super::process::Exit;
use super::{Actor, CallError, KillCall, Kind, Reply};

/// How long the exit of a container waits for those of its execs, which the kernel kills with it.
const EXECS_END_WITHIN: Duration = Duration::from_secs(2);

impl Actor {
    /// Sends a signal to a container or one of its execs.
    pub fn kill(&mut self, call: KillCall, reply: Reply<()>) {
        let Some(signal) = i32::try_from(call.signal).ok().and_then(Signal::new) else {
            let message = format!("signal {} is none, expected 1 to 64", call.signal);
            return drop(reply.send(Err(CallError::new(Kind::InvalidArgument, message))));
        };
        if !call.exec_id.is_empty() {
            return drop(reply.send(self.kill_exec(&call, signal)));
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
        let now = self.now();
        self.core
            .handle_kill(now, &ContainerId::from(call.id.as_str()), request, kill);
    }

    fn kill_exec(&mut self, call: &KillCall, signal: Signal) -> Result<(), CallError> {
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
        let killed = self.reaper.kill(exec.process.pid, signal.number());
        killed.map_err(|error| match error.raw_os_error() {
            Some(nix::libc::ESRCH) => CallError::finished(&call.exec_id),
            _ => CallError::unknown(error),
        })
    }

    pub(super) fn init_ended(&mut self, id: &ContainerId, status: ExitStatus) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        task.ended = Some(SystemTime::now());
        task.paused = false;
        // A release that is still waiting ends with it.
        task.alive = None;
        if !task.facts.has_own_pid_namespace {
            // Nobody but us will end what it leaves behind.
            let (runtime, name) = (task.runtime.clone(), id.to_string());
            let kill_all = async move { runtime.kill(&name, Signal::KILL.number(), true).await };
            let id = id.clone();
            self.job(kill_all, move |_, outcome| {
                if let Err(error) = outcome {
                    tracing::debug!(container = %id, %error, "nothing left to kill");
                }
            });
        }
        let now = self.now();
        self.core.handle_exit(now, id, status);
    }

    /// Publishes the exit of a container when it is known and those of its execs are published.
    pub(super) fn publish_exit_if_due(&mut self, id: &ContainerId) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        let Some(code) = task.unpublished else { return };
        if task.has_running_execs() {
            let id = id.clone();
            let patience = tokio::time::sleep(EXECS_END_WITHIN);
            return self.job(patience, move |actor, ()| actor.publish_exit(&id, code));
        }
        self.publish_exit(&id.clone(), code);
    }

    fn publish_exit(&mut self, id: &ContainerId, code: u32) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        if task.unpublished.take().is_none() {
            return;
        }
        if task.creating {
            // It is being undone: nobody has heard of it.
            return;
        }
        let exit = Exit {
            code,
            at: Actor::end_of(task),
        };
        self.publisher
            .publish(exit_event(id, id.as_str(), task.init.pid, exit));
        task.init.ended(exit);
        tracing::info!(container = %id, code, "exited");
        if let Some(reply) = task.delete.take() {
            self.begin_delete(id, reply);
        }
    }
}
