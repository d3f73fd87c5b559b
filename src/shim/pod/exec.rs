//! The Exec call: adds further processes to a container.

use std::sync::Arc;

use containerd_shim_protos::events::task::{TaskExecAdded, TaskExecStarted, TaskExit};
use containerd_shim_protos::protobuf::MessageField;
use serde::Deserialize;

use usher_core::lifecycle::{self, ContainerId, Wanted};
use usher_core::plan::Signal;
use usher_core::process::ExitStatus;
use usher_engine::Panicked;
use usher_engine::{CancelToken, ExecOrder, Init, NewExec, Process as Executable, SignalProgress};
use usher_linux::stdio::Unread;

use super::operations::Caller;
use super::process::{Exec, Exit, Process};
use super::stop::known_end;
use super::{Actor, CallError, ExecCall, Kind, Reply};

/// The fields that the shim needs of a process in the OCI specification.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    args: Vec<String>,
}

impl Actor {
    /// Adds a process to a container. A later Start executes the process.
    pub fn exec(&mut self, call: ExecCall, reply: Reply<()>) {
        let _ = reply.send(self.add_exec(call));
    }

    fn add_exec(&mut self, call: ExecCall) -> Result<(), CallError> {
        let invalid = |error: String| CallError::new(Kind::InvalidArgument, error);
        let spec: Spec = serde_json::from_slice(&call.spec).map_err(|error| {
            invalid(format!(
                "exec {:?}: its spec is not an OCI process: {error}",
                call.exec_id
            ))
        })?;
        self.task(&call.id)?;
        let (now, id) = (self.now(), ContainerId::from(call.id.as_str()));
        let exec = lifecycle::Exec {
            id: &call.exec_id,
            argv: &spec.args,
            has_deadline: call.has_deadline,
            is_interactive: call.paths.terminal || !call.paths.stdin.is_empty(),
        };
        self.core.handle_exec(now, &id, &exec)?;
        let is_post_start = self.core.is_post_start(&id, &call.exec_id);
        let task = self.task_mut(&call.id)?;
        if is_post_start {
            task.carryover.keep_post_start(call.spec.clone());
        }
        // Prepare for the caller's Start of this exec, which comes next.
        let init = task.handles.init();
        let fifos = init.map(|init| init.prepare_for_exec(&call.paths));
        let exec = Exec {
            spec: call.spec,
            fifos: fifos.unwrap_or_default(),
            starting: None,
            handle: None,
            exited_at: None,
            process: Process::new(call.paths),
        };
        task.execs.insert(call.exec_id.clone(), exec);
        self.node.publish(TaskExecAdded {
            container_id: call.id,
            exec_id: call.exec_id,
            ..TaskExecAdded::new()
        });
        Ok(())
    }

    /// Executes a process that an Exec call has added; answers with its process id.
    pub fn start_exec(&mut self, id: &str, exec_id: &str, reply: Reply<i32>) {
        let (token, execution) = match self.begin_exec(id, exec_id) {
            Ok(begun) => begun,
            Err(error) => return drop(reply.send(Err(error))),
        };
        let (id, key) = (ContainerId::from(id), exec_id.to_owned());
        let caller = Caller {
            reply,
            cancels: Some(token.clone()),
        };
        let work = execution.run(token.clone());
        let wanted = Wanted::UntilDeleted;
        let operation = self.operate_for(
            &id,
            wanted,
            caller,
            work,
            move |actor, id, outcome, reply| {
                let answer = match outcome {
                    Ok(executed) => {
                        if reply.is_closed() {
                            // Kill the process: its caller no longer waits, so nothing else would
                            // end it.
                            kill_executed(&executed.process);
                        }
                        actor.exec_started(id, &key, executed)
                    }
                    Err(error) => {
                        actor.exec_not_started(id, &key, &error);
                        Err(error)
                    }
                };
                let _ = reply.send(answer);
            },
        );
        if let Some(exec) = self.exec_mut(&id, exec_id) {
            exec.starting = Some((operation, token));
        }
    }

    fn begin_exec(
        &mut self,
        id: &str,
        exec_id: &str,
    ) -> Result<(CancelToken, Execution), CallError> {
        let key = ContainerId::from(id);
        self.task(id)?;
        self.core.handle_exec_start(&key, exec_id)?;
        let score = self.core.oom_score(&key);
        let has_exited = self.core.has_exited(&key);
        let task = self.task_mut(id)?;
        let exec = task.execs.get_mut(exec_id);
        let exec = exec.ok_or_else(|| CallError::not_found(id, exec_id))?;
        let token = task.handles.cancel_token().child();
        let order = ExecOrder {
            exec_id: exec_id.to_owned(),
            spec: std::mem::take(&mut exec.spec),
            size: exec.process.streams.size(),
            oom_score: score,
            paths: exec.process.paths.clone(),
            fifos: std::mem::take(&mut exec.fifos),
        };
        let execution = Execution {
            id: id.to_owned(),
            order,
            init: task.handles.init().filter(|_| !has_exited).cloned(),
        };
        Ok((token, execution))
    }

    fn exec_mut(&mut self, id: &ContainerId, exec_id: &str) -> Option<&mut Exec> {
        self.tasks.get_mut(id)?.execs.get_mut(exec_id)
    }

    fn exec_started(
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
        let Some(exec) = self.exec_mut(id, exec_id) else {
            kill_executed(&process);
            return Err(CallError::not_found(id.as_str(), exec_id));
        };
        exec.starting = None;
        exec.handle = Some(Arc::clone(&process));
        exec.process.pid = pid;
        exec.process.take_streams(streams);
        exec.process.connect_stdin();
        self.core.handle_exec_started(id, exec_id);
        if let Some(task) = self.tasks.get_mut(id) {
            task.score.has_newcomers = true;
        }
        self.node.publish(TaskExecStarted {
            container_id: id.to_string(),
            exec_id: exec_id.to_owned(),
            pid: u32::try_from(pid).unwrap_or_default(),
            ..TaskExecStarted::new()
        });
        let exec_id = exec_id.to_owned();
        self.operate(
            id,
            Wanted::UntilDeleted,
            exit_future.0,
            move |actor, id, outcome| {
                let status = known_end(outcome, || kill_executed(&process));
                actor.exec_ended(id, &exec_id, status);
            },
        );
        Ok(pid)
    }

    fn exec_not_started(&mut self, id: &ContainerId, exec_id: &str, error: &CallError) {
        if let Some(exec) = self.exec_mut(id, exec_id) {
            exec.starting = None;
            exec.process.answer_waits(Err(error.clone()));
            let now = self.now();
            self.core.handle_exec_over(now, id, exec_id, None);
        }
    }

    fn exec_ended(&mut self, id: &ContainerId, exec_id: &str, status: ExitStatus) {
        let (now, at) = (self.now(), self.node.clock.wall());
        self.core.handle_exec_over(now, id, exec_id, Some(status));
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        if let Some(exec) = task.execs.get_mut(exec_id) {
            if status == ExitStatus::Signal(Signal::KILL.number()) {
                task.handles.look_at_memory();
            }
            exec.exited_at = Some(at);
            if let Some(unread) = exec.process.end_streams() {
                let exec_id = exec_id.to_owned();
                let then = move |actor: &mut Actor, id: &ContainerId, _| {
                    let now = actor.now();
                    actor.core.handle_exec_output_read(now, id, &exec_id);
                };
                self.operate(id, Wanted::UntilDeleted, read(unread), then);
                return;
            }
        }
        self.core.handle_exec_output_read(now, id, exec_id);
    }

    /// Tells the caller that an exec has exited: answers its Waits and publishes the exit event.
    pub(super) fn publish_exec_exit(&mut self, id: &ContainerId, exec_id: &str, code: u32) {
        let now = self.node.clock.wall();
        let Some(exec) = self.exec_mut(id, exec_id) else {
            return;
        };
        let at = exec.exited_at.unwrap_or(now);
        let (exit, pid) = (Exit { code, at }, exec.process.pid);
        exec.process.answer_waits(Ok(exit));
        self.node.publish(exit_event(id, exec_id, pid, exit));
    }
}

/// Waits until the caller has read all output of a process.
pub(super) async fn read(unread: Unread) -> Result<(), Panicked> {
    unread.is_read().await;
    Ok(())
}

fn stopped(exec_id: &str, id: &str) -> CallError {
    let message = format!("exec {exec_id:?}: task {id} is stopped");
    CallError::new(Kind::FailedPrecondition, message)
}

/// A process that is to be executed.
struct Execution {
    id: String,
    order: ExecOrder,
    /// The container's init. `None` if the container has exited.
    init: Option<Arc<dyn Init>>,
}

impl Execution {
    async fn run(self, token: CancelToken) -> Result<NewExec, CallError> {
        match self.init {
            Some(init) => Ok(init.exec(self.order, &token).await?),
            None => Err(stopped(&self.order.exec_id, &self.id)),
        }
    }
}

/// Kills an executed process, which may have exited already.
pub(super) fn kill_executed(process: &Arc<dyn Executable>) {
    let outcome = match process.kill(Signal::KILL) {
        SignalProgress::Done(outcome) => outcome,
        // The engine delivers SIGKILL at once.
        SignalProgress::UnderWay(_) => Ok(()),
    };
    if let Err(error) = outcome {
        tracing::debug!(?process, %error, "the process has exited already");
    }
}

/// Builds the TaskExit of an exec or, if `process` is the container's own id, of the container's
/// init.
pub(super) fn exit_event(id: &ContainerId, process: &str, pid: i32, exit: Exit) -> TaskExit {
    TaskExit {
        container_id: id.to_string(),
        id: process.to_owned(),
        pid: u32::try_from(pid).unwrap_or_default(),
        exit_status: exit.code,
        exited_at: MessageField::some(crate::events::timestamp(exit.at)),
        ..TaskExit::new()
    }
}
