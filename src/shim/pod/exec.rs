//! Execs: processes that a caller adds to a container with an Exec call, then starts.

use std::sync::Arc;

use crate::calls::{CallError, Caller, ExecCall, Reply};
use crate::events;
use crate::task_table::outcome::{kill_exec_process, status_or_kill};
use crate::task_table::{Exec, Execution};
use usher_core::lifecycle::{self, ContainerId, Wanted};
use usher_core::plan::Signal;
use usher_core::process::ExitStatus;
use usher_engine::NewExec;

use super::Actor;
use super::operations::infallible;

impl Actor {
    /// Adds a process to a container. A later Start executes the process.
    pub fn exec(&mut self, call: ExecCall, reply: Reply<()>) {
        let _ = reply.send(self.add_exec(call));
    }

    fn add_exec(&mut self, call: ExecCall) -> Result<(), CallError> {
        let argv = call.argv()?;
        self.task(&call.id)?;
        let (now, id) = (self.now(), ContainerId::from(call.id.as_str()));
        let exec = lifecycle::Exec {
            id: &call.exec_id,
            argv: &argv,
            has_deadline: call.has_deadline,
            is_interactive: call.paths.terminal || !call.paths.stdin.is_empty(),
        };
        self.core.handle_exec(now, &id, &exec)?;
        let is_post_start = self.core.is_post_start(&id, &call.exec_id);
        let task = self.task_mut(&call.id)?;
        if is_post_start {
            task.carryover.keep_post_start(call.spec.clone());
        }
        // The caller starts this exec next, so the engine prepares for it now. If all present
        // connections are closed before the Start, probably no Start comes.
        let init = task.handles.init().cloned();
        let fifos = init.map(|init| {
            let caller_gone = Box::pin(self.node.connections.closed());
            init.prepare_for_exec(&call.paths, caller_gone)
        });
        let task = self.task_mut(&call.id)?;
        let exec = Exec::new(call.spec, fifos.unwrap_or_default(), call.paths);
        task.execs.insert(call.exec_id.clone(), exec);
        self.node
            .publish(events::task::exec_added(&id, &call.exec_id));
        Ok(())
    }

    /// Executes a process that an Exec call has added. Answers with its process id or an error. If
    /// the caller stops waiting, the start is canceled. A process that exists already is killed.
    pub fn start_exec(&mut self, id: &str, exec_id: &str, reply: Reply<i32>) {
        let execution = match self.begin_exec(id, exec_id) {
            Ok(execution) => execution,
            Err(error) => return drop(reply.send(Err(error))),
        };
        let (id, key) = (ContainerId::from(id), exec_id.to_owned());
        let token = execution.token.clone();
        let caller = Caller {
            reply,
            cancels: Some(token.clone()),
        };
        let then = move |actor: &mut Actor, id: &ContainerId, outcome, reply: Reply<i32>| {
            if reply.is_closed()
                && let Ok(NewExec { process, .. }) = &outcome
            {
                // Kill the process: its caller no longer waits, so nothing else would end it.
                kill_exec_process(process);
            }
            let answer = match outcome {
                Ok(executed) => actor.finish_exec_start(id, &key, executed),
                Err(error) => {
                    actor.fail_exec_start(id, &key, &error);
                    Err(error)
                }
            };
            let _ = reply.send(answer);
        };
        let operation = self.operate_for(&id, Wanted::UntilDeleted, caller, execution.run(), then);
        if let Some(exec) = self.exec_mut(&id, exec_id) {
            exec.starting = Some((operation, token));
        }
    }

    fn begin_exec(&mut self, id: &str, exec_id: &str) -> Result<Execution, CallError> {
        let key = ContainerId::from(id);
        self.task(id)?;
        self.core.handle_exec_start(&key, exec_id)?;
        let score = self.core.oom_score(&key);
        let has_exited = self.core.has_exited(&key);
        let task = self.task_mut(id)?;
        let exec = task.execs.get_mut(exec_id);
        let exec = exec.ok_or_else(|| CallError::not_found(id, exec_id))?;
        Ok(Execution {
            id: key,
            order: exec.take_order(exec_id, score),
            init: task.handles.init().filter(|_| !has_exited).cloned(),
            token: task.handles.cancel_token().child(),
        })
    }

    fn exec_mut(&mut self, id: &ContainerId, exec_id: &str) -> Option<&mut Exec> {
        self.tasks.get_mut(id)?.execs.get_mut(exec_id)
    }

    fn finish_exec_start(
        &mut self,
        id: &ContainerId,
        exec_id: &str,
        executed: NewExec,
    ) -> Result<i32, CallError> {
        let NewExec {
            process,
            exit_future,
            streams,
        } = executed;
        let pid = process.pid();
        if self.exec_mut(id, exec_id).is_none() {
            kill_exec_process(&process);
            return Err(CallError::not_found(id.as_str(), exec_id));
        }
        if !self.core.handle_exec_started(id, exec_id) {
            kill_exec_process(&process);
            let error = CallError::task_is_stopped(id, exec_id);
            self.fail_exec_start(id, exec_id, &error);
            return Err(error);
        }
        if let Some(exec) = self.exec_mut(id, exec_id) {
            exec.set_started(Arc::clone(&process), streams);
        }
        if let Some(task) = self.tasks.get_mut(id) {
            task.score.note_newcomer();
        }
        self.node
            .publish(events::task::exec_started(id, exec_id, pid));
        let exec_id = exec_id.to_owned();
        let exited = move |actor: &mut Actor, id: &ContainerId, outcome| {
            let status = status_or_kill(outcome, || kill_exec_process(&process));
            actor.finish_exec(id, &exec_id, status);
        };
        self.operate(id, Wanted::UntilDeleted, exit_future.0, exited);
        Ok(pid)
    }

    fn fail_exec_start(&mut self, id: &ContainerId, exec_id: &str, error: &CallError) {
        if let Some(exec) = self.exec_mut(id, exec_id) {
            exec.starting = None;
            exec.process.answer_waits(Err(error.clone()));
            self.core.handle_exec_over(self.now(), id, exec_id, None);
        }
    }

    fn finish_exec(&mut self, id: &ContainerId, exec_id: &str, status: ExitStatus) {
        let (now, at) = (self.now(), self.node.clock.wall());
        self.core.handle_exec_over(now, id, exec_id, Some(status));
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        if let Some(exec) = task.execs.get_mut(exec_id) {
            if status == ExitStatus::Signal(Signal::KILL.number()) {
                task.handles.look_at_memory();
            }
            if let Some(unread) = exec.set_exited(at) {
                let exec_id = exec_id.to_owned();
                let then = move |actor: &mut Actor, id: &ContainerId, _| {
                    let now = actor.now();
                    actor.core.handle_exec_output_read(now, id, &exec_id);
                };
                self.operate(id, Wanted::UntilDeleted, infallible(unread.is_read()), then);
                return;
            }
        }
        self.core.handle_exec_output_read(now, id, exec_id);
    }

    /// Tells the caller that an exec has exited: answers the Waits for the exec, and publishes the
    /// exit event. Called when the exec's output is read, or when the core no longer waits for the
    /// output.
    pub(super) fn publish_exec_exit(&mut self, id: &ContainerId, exec_id: &str, code: u32) {
        let now = self.node.clock.wall();
        let Some(exec) = self.exec_mut(id, exec_id) else {
            return;
        };
        let (exit, pid) = (exec.exit(code, now), exec.process.pid);
        exec.process.answer_waits(Ok(exit));
        self.node
            .publish(events::task::exited(id, exec_id, pid, exit));
    }
}
