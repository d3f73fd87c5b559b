//! The calls State, Wait, Connect, CloseIO, ResizePty, Pause and Resume.

use std::sync::Arc;

use crate::calls::{CallError, Exit, Reply, StateAnswer, Status};
use crate::events;
use crate::task_table::{Process, Task};
use usher_core::lifecycle::{Call, ContainerId, Wanted};
use usher_engine::{CancelToken, Init};
use usher_linux::stdio;

use super::Actor;

impl Actor {
    /// Answers with the state of a task or one of its execs.
    pub fn state(&mut self, id: &str, exec_id: &str, reply: Reply<StateAnswer>) {
        let answer = self.process(id, exec_id).map(|(task, process)| {
            let status = self.status_of(&ContainerId::from(id), exec_id, process);
            StateAnswer {
                bundle: task.bundle.clone(),
                pid: process.pid,
                status,
                paths: process.paths.clone(),
            }
        });
        let _ = reply.send(answer);
    }

    /// The state that the shim reports for a task, or for an exec if `exec_id` is not empty. The
    /// core knows the state; `process`, the entry in the actor's table, has the exit.
    pub(super) fn status_of(&self, id: &ContainerId, exec_id: &str, process: &Process) -> Status {
        let status = match exec_id {
            "" => self.core.task_status(id),
            exec_id => self.core.exec_status(id, exec_id),
        };
        Status::new(status, process.exit())
    }

    /// Answers with the exit of a task or exec when the exit is published, or at once if it was
    /// published before. A restart in place publishes no exit, so the Wait stays open. If the
    /// process will never run, the answer is an error.
    pub fn wait(&mut self, id: &str, exec_id: &str, reply: Reply<Exit>) {
        match self.process_mut(id, exec_id) {
            Err(error) => drop(reply.send(Err(error))),
            Ok(process) => process.add_wait(reply),
        }
    }

    /// Answers with the process id of a task's init, or zero while the task has no init. A Connect
    /// for an unknown task comes from `start`, and announces that a Create for this task will come
    /// to this shim.
    pub fn connect(&mut self, id: &str, reply: Reply<i32>) {
        self.announce(id);
        let _ = reply.send(Ok(self.task(id).map_or(0, |task| task.init.pid)));
    }

    /// Closes the stdin of a process. For a process that is not started yet, the shim remembers the
    /// request until the start.
    pub fn close_stdin(&mut self, id: &str, exec_id: &str, reply: Reply<()>) {
        let process = self.process_mut(id, exec_id);
        let _ = reply.send(process.map(|process| process.streams.close_stdin()));
    }

    /// Changes the size of a process's terminal. For a process that is not started yet, the shim
    /// remembers the request until the start. The call succeeds for a process that has exited,
    /// because clients make it as soon as a program runs, even if the program exits at once.
    pub fn resize(&mut self, id: &str, exec_id: &str, size: stdio::Size, reply: Reply<()>) {
        let resized = self.process_mut(id, exec_id).and_then(|process| {
            let resized = process.streams.resize(size);
            resized.map_err(CallError::unknown)
        });
        let _ = reply.send(resized);
    }

    /// Freezes a container. A held container can be frozen too, because the caller sees a held
    /// container as started.
    pub fn pause(&mut self, id: &str, reply: Reply<()>) {
        // As for all calls, check first that the task exists.
        let known = self.task(id).map(drop);
        let paused = known.and_then(|()| Ok(self.core.handle_pause(&ContainerId::from(id))?));
        let init = paused.and_then(|()| self.task(id)?.handles.init_and_cancel_token());
        self.freeze(id, true, init, reply);
    }

    /// Thaws a container that the caller has paused.
    pub fn resume(&mut self, id: &str, reply: Reply<()>) {
        let init = self.task(id).and_then(|task| {
            self.core.allows(&ContainerId::from(id), Call::Resume)?;
            task.handles.init_and_cancel_token()
        });
        self.freeze(id, false, init, reply);
    }

    fn freeze(
        &mut self,
        id: &str,
        freeze: bool,
        init: Result<(Arc<dyn Init>, CancelToken), CallError>,
        reply: Reply<()>,
    ) {
        let (init, token) = match init {
            Ok(living) => living,
            Err(error) => return drop(reply.send(Err(error))),
        };
        let work = async move {
            match freeze {
                true => init.pause(&token).await,
                false => init.resume(&token).await,
            }
        };
        let then = move |actor: &mut Actor, id: &ContainerId, outcome: Result<_, _>, reply| {
            actor.frozen(id, freeze, outcome.is_ok());
            let _ = Reply::send(reply, outcome.map_err(CallError::unknown));
        };
        let id = ContainerId::from(id);
        self.operate_for(&id, Wanted::UntilExit, reply.into(), work, then);
    }

    fn frozen(&mut self, id: &ContainerId, paused: bool, is_done: bool) {
        let now = self.now();
        match paused {
            true => self.core.handle_paused(now, id, is_done),
            false => self.core.handle_resumed(now, id, is_done),
        }
        match (is_done, paused) {
            (false, _) => {}
            (true, true) => self.node.publish(events::task::paused(id)),
            (true, false) => self.node.publish(events::task::resumed(id)),
        }
    }

    pub(super) fn task(&self, id: &str) -> Result<&Task, CallError> {
        let key = ContainerId::from(id);
        let task = self.tasks.get(&key).filter(|_| self.core.is_known(&key));
        task.ok_or_else(|| CallError::not_found(id, ""))
    }

    pub(super) fn task_mut(&mut self, id: &str) -> Result<&mut Task, CallError> {
        let key = ContainerId::from(id);
        let task = self.tasks.get_mut(&key);
        let task = task.filter(|_| self.core.is_known(&key));
        task.ok_or_else(|| CallError::not_found(id, ""))
    }

    pub(super) fn process(&self, id: &str, exec_id: &str) -> Result<(&Task, &Process), CallError> {
        let task = self.task(id)?;
        let process = task.process(exec_id);
        let process = process.ok_or_else(|| CallError::not_found(id, exec_id))?;
        Ok((task, process))
    }

    fn process_mut(&mut self, id: &str, exec_id: &str) -> Result<&mut Process, CallError> {
        let task = self.task_mut(id)?;
        let process = task.process_mut(exec_id);
        process.ok_or_else(|| CallError::not_found(id, exec_id))
    }
}
