//! The Kill call, and the exit of a container's init process.

use std::sync::Arc;

use crate::calls::{CallError, Exit, KillCall, Kind, Reply, signal_answer};
use crate::events;
use crate::record::What;
use usher_core::lifecycle::{Call, ContainerId, ExecCall, Kill, Wanted};
use usher_core::plan::Signal;
use usher_core::process::ExitStatus;
use usher_engine::{Process, SignalProgress};

use super::Actor;
use super::operations::infallible;

impl Actor {
    /// Handles the caller's Kill of a container or one of its execs. An exec gets the signal at
    /// once. For a container the core decides when a signal is delivered and when the call is
    /// answered: a stop may have to wait for its turn. Signal 0 is not sent; it only asks if the
    /// target is alive.
    pub fn kill(&mut self, call: KillCall, reply: Reply<()>) {
        if call.signal == 0 {
            return drop(reply.send(self.is_alive(&call)));
        }
        let Some(signal) = i32::try_from(call.signal).ok().and_then(Signal::new) else {
            let message = format!("invalid signal {}, expected 0 to 64", call.signal);
            return drop(reply.send(Err(CallError::new(Kind::InvalidArgument, message))));
        };
        if !call.exec_id.is_empty() {
            return self.kill_exec(call, signal, reply);
        }
        if let Err(error) = self.task(&call.id) {
            return drop(reply.send(Err(error)));
        }
        let request = self.callers.add_kill(reply);
        let kill = Kill {
            signal,
            all: call.all,
            call_timeout: call.call_timeout,
        };
        let (now, id) = (self.now(), ContainerId::from(call.id.as_str()));
        let is_stop = self.core.is_stop(&id, kill);
        self.record.note(now, &id, What::Asked { signal, is_stop });
        self.core.handle_kill(now, &id, request, kill);
    }

    /// Returns an error if the process does not exist. A Kill with signal 0 only makes this check
    /// (`kill(2)`).
    fn is_alive(&self, call: &KillCall) -> Result<(), CallError> {
        self.task(&call.id)?;
        let id = ContainerId::from(call.id.as_str());
        match call.exec_id.as_str() {
            "" => self.core.allows(&id, Call::KillZero)?,
            exec_id => self.core.allows_exec(&id, exec_id, ExecCall::KillZero)?,
        }
        Ok(())
    }

    fn kill_exec(&mut self, call: KillCall, signal: Signal, reply: Reply<()>) {
        let process = match self.executed(&call) {
            Ok(process) => process,
            Err(error) => return drop(reply.send(Err(error))),
        };
        let name = call.exec_id;
        match process.kill(signal) {
            SignalProgress::Done(killed) => drop(reply.send(signal_answer(killed, &name))),
            SignalProgress::UnderWay(work) => self.spawn(work, move |_, killed| {
                let _ = reply.send(signal_answer(killed, &name));
            }),
        }
    }

    fn executed(&self, call: &KillCall) -> Result<Arc<dyn Process>, CallError> {
        let task = self.task(&call.id)?;
        let id = ContainerId::from(call.id.as_str());
        self.core.allows_exec(&id, &call.exec_id, ExecCall::Kill)?;
        let exec = task.execs.get(&call.exec_id);
        let process = exec.and_then(|exec| exec.handle.clone());
        process.ok_or_else(|| CallError::not_found(&call.id, &call.exec_id))
    }

    /// Handles the exit of a container's init process (its main process), and passes the exit to
    /// the core. From now on, discards the outcomes of operations that need the process. Also
    /// called for a container that is killed while it waits to be restored. Ignores an unknown
    /// container.
    pub(super) fn handle_init_exit(&mut self, id: &ContainerId, status: ExitStatus) {
        self.operations.cancel_at_exit(id);
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        task.handles.mark_exited(self.node.clock.wall());
        let now = self.now();
        self.record.note(now, id, What::Exited(status.code()));
        self.core.handle_init_exited(now, id, status);
    }

    /// Kills the processes that the init process of a container has left behind, then reports the
    /// container's exit to the core.
    pub(super) fn kill_rest(&mut self, id: &ContainerId, status: ExitStatus) {
        let task = self.tasks.get(id);
        let init = task.and_then(|task| task.handles.init().cloned());
        let killed = infallible(async move {
            if let Some(init) = init {
                init.end_the_rest().await;
            }
        });
        self.operate(id, Wanted::UntilDeleted, killed, move |actor, id, _| {
            actor.core.handle_container_exited(actor.now(), id, status);
        });
    }

    /// Ends the output of a container that has exited for good, and tells the core when the caller
    /// has read all output. Records the exit in the bundle before the exit is published, so that
    /// `delete` reports the same exit if this shim dies.
    pub(super) fn end_output(&mut self, id: &ContainerId, code: u32) {
        let now = self.node.clock.wall();
        let is_known = self.core.is_known(id);
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        let at = task.handles.exited_at(now);
        let unread = task.init.end_streams().filter(|_| is_known);
        if is_known {
            task.container.record_exit(task.init.pid, code, at);
        }
        match unread {
            Some(unread) => {
                let read = infallible(unread.is_read());
                self.operate(id, Wanted::UntilDeleted, read, |actor, id, _| {
                    actor.core.handle_output_read(actor.now(), id);
                });
            }
            None => self.core.handle_output_read(self.now(), id),
        }
    }

    /// Tells the caller that a container has exited: publishes the exit event with `code`, and
    /// answers the Waits. If the task is a sandbox without a pause container, also deletes the
    /// task. Does nothing if the Create was not answered, because the caller does not know the
    /// container.
    pub(super) fn publish_exit(&mut self, id: &ContainerId, code: u32) {
        let (now, wall) = (self.now(), self.node.clock.wall());
        let Some(task) = self.tasks.get_mut(id).filter(|_| self.core.is_known(id)) else {
            return;
        };
        let at = task.handles.exited_at(wall);
        let (exit, pid) = (Exit { code, at }, task.init.pid);
        self.node
            .publish(events::task::exited(id, id.as_str(), pid, exit));
        task.init.answer_waits(Ok(exit));
        task.carryover.release_pid(pid);
        tracing::info!(container = %id, code, "exited");
        self.record.note(now, id, What::Reported(code));
        if !self.core.is_deletion_wanted(id) {
            self.finish_sandbox(id, exit);
        }
    }
}
