//! The execs of a container: further processes. The container's exit is published after theirs, or
//! after a time limit.
//!
//! ```text
//!   Added --> Starting --> Running --> Exiting --> Exited
//!                 '-----> NeverRan
//! ```
//!
//! The state of an exec determines what the caller reads, and which call is legal. `-`: refused.
//!
//! | | Start | Kill | Kill 0 | Delete |
//! |---|---|---|---|---|
//! | added | yes | - | yes | yes |
//! | starting | - | - | yes | yes |
//! | running | - | yes | yes | - |
//! | exiting | - | - | - | - |
//! | exited | - | - | - | yes |
//! | never ran | - | - | yes | yes |
//!
//! A Delete of an exec that is being started cancels the start.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::lifecycle::Pod;
use crate::lifecycle::action::{Action, ContainerId, Refusal};
use crate::lifecycle::container::Container;
use crate::lifecycle::effects::ContainerContext;
use crate::lifecycle::state::Freezer;
use crate::lifecycle::time::Time;
use crate::process::ExitStatus;

use super::TaskStatus;

/// The execs of a container by id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(in crate::lifecycle) struct Execs(BTreeMap<String, Exec>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Exec {
    Added,
    Starting,
    Running,
    /// The process has exited with this code; the exit is not published yet.
    Exiting(u32),
    /// The exit is published.
    Exited,
    /// The process could not be started.
    NeverRan,
}

/// A call of the Task API for an exec. The state of the exec determines if the call is legal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExecCall {
    Start,
    Kill,
    /// Signal 0, which tests if the process exists (`kill(2)`).
    KillZero,
    Delete,
}

/// A call that the state of the exec does not allow.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IllegalExecCall {
    call: ExecCall,
    id: ContainerId,
    exec_id: String,
    exec: Exec,
}

impl Exec {
    /// True if the table allows the call.
    fn allows(self, call: ExecCall) -> bool {
        use Exec::*;
        match call {
            ExecCall::Start => self == Added,
            ExecCall::Kill => self == Running,
            ExecCall::KillZero => matches!(self, Added | Starting | Running | NeverRan),
            ExecCall::Delete => matches!(self, Added | Starting | Exited | NeverRan),
        }
    }

    fn has_exited(self) -> bool {
        matches!(self, Exec::Exiting(_) | Exec::Exited)
    }
}

impl IllegalExecCall {
    /// True if a Kill was refused because the process of the exec has exited. False for any other
    /// call.
    pub fn is_finished(&self) -> bool {
        let is_kill = matches!(self.call, ExecCall::Kill | ExecCall::KillZero);
        is_kill && self.exec.has_exited()
    }
}

impl fmt::Display for IllegalExecCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, exec_id) = (&self.id, &self.exec_id);
        match self.call {
            ExecCall::Start => write!(f, "process {exec_id} of task {id} was started before"),
            ExecCall::Kill | ExecCall::KillZero if self.is_finished() => {
                write!(f, "{exec_id}: process already finished")
            }
            ExecCall::Kill | ExecCall::KillZero => {
                write!(f, "process {exec_id} of task {id} is not started")
            }
            ExecCall::Delete => write!(
                f,
                "cannot delete process {exec_id} of task {id}: it is running, expected stopped or created"
            ),
        }
    }
}

impl Execs {
    /// True if an exec runs or is being started.
    pub fn has_live(&self) -> bool {
        let mut execs = self.0.values();
        execs.any(|exec| matches!(exec, Exec::Starting | Exec::Running))
    }

    pub fn has_running(&self) -> bool {
        self.0.values().any(|exec| *exec == Exec::Running)
    }

    /// True if an exec has exited and its exit is not published yet.
    pub fn has_exiting(&self) -> bool {
        let mut execs = self.0.values();
        execs.any(|exec| matches!(exec, Exec::Exiting(_)))
    }

    /// True if the caller has added the exec and not started it.
    pub fn is_unstarted(&self, exec_id: &str) -> bool {
        self.0.get(exec_id) == Some(&Exec::Added)
    }

    pub fn contains(&self, exec_id: &str) -> bool {
        self.0.contains_key(exec_id)
    }

    pub fn add(&mut self, exec_id: &str) {
        self.0.insert(exec_id.to_owned(), Exec::Added);
    }

    /// Records the end of an exec's process, whose exit is then to be published. `None` means that
    /// the process could not be started.
    pub fn exit(&mut self, exec_id: &str, status: Option<ExitStatus>) {
        let exit = status.map_or(Exec::NeverRan, |status| Exec::Exiting(status.code()));
        self.set(exec_id, exit);
    }

    /// Marks all pending exits as published. Returns their execs and codes, which the caller of
    /// this method publishes.
    pub fn publish_all(&mut self) -> Vec<(String, u32)> {
        let execs = self.0.iter_mut();
        execs
            .filter_map(|(exec_id, exec)| Some((exec_id.clone(), exec.publish()?)))
            .collect()
    }

    fn set(&mut self, exec_id: &str, to: Exec) {
        if let Some(exec) = self.0.get_mut(exec_id) {
            *exec = to;
        }
    }

    /// Checks that a call for an exec of task `id` is legal now.
    fn check(&self, id: &ContainerId, exec_id: &str, call: ExecCall) -> Result<(), Refusal> {
        let (id, exec_id) = (id.clone(), exec_id.to_owned());
        match self.0.get(&exec_id) {
            None => Err(Refusal::ExecNotFound { id, exec_id }),
            Some(exec) if exec.allows(call) => Ok(()),
            Some(exec) => Err(Refusal::IllegalExecCall(IllegalExecCall {
                call,
                id,
                exec_id,
                exec: *exec,
            })),
        }
    }
}

impl Exec {
    /// Marks a pending exit as published, and returns its code. `None` if no exit is pending.
    fn publish(&mut self) -> Option<u32> {
        let Exec::Exiting(code) = *self else {
            return None;
        };
        *self = Exec::Exited;
        Some(code)
    }
}

impl Pod {
    /// Checks that a call for an exec is legal now.
    ///
    /// # Errors
    ///
    /// [`Refusal::NotFound`], [`Refusal::ExecNotFound`] and [`Refusal::IllegalExecCall`].
    pub fn allows_exec(
        &self,
        id: &ContainerId,
        exec_id: &str,
        call: ExecCall,
    ) -> Result<(), Refusal> {
        self.task(id)?.execs.check(id, exec_id, call)
    }

    /// Moves an exec to Starting: the driver starts its process. The driver reports success with
    /// [`handle_exec_started`](Pod::handle_exec_started), and a failed start or the later exit with
    /// [`handle_exec_over`](Pod::handle_exec_over).
    ///
    /// # Errors
    ///
    /// If [`allows_exec`](Pod::allows_exec) refuses a Start.
    pub fn handle_exec_start(&mut self, id: &ContainerId, exec_id: &str) -> Result<(), Refusal> {
        self.allows_exec(id, exec_id, ExecCall::Start)?;
        self.with_container(id, |context| {
            context.container.execs.set(exec_id, Exec::Starting);
        });
        Ok(())
    }

    /// Records that the process of an exec runs. Returns false, and records nothing, if the
    /// container's exit is published already. The start then counts as failed: the container may be
    /// deleted before the exec's own exit could be published.
    #[must_use]
    pub fn handle_exec_started(&mut self, id: &ContainerId, exec_id: &str) -> bool {
        let started = self.with_container(id, |context| {
            let is_in_time = !context.container.state.is_published();
            if is_in_time {
                context.container.execs.set(exec_id, Exec::Running);
            }
            is_in_time
        });
        started.unwrap_or(false)
    }

    /// Records that the wait for a reader of the exec's output is over: the client has read all of
    /// it, or was too slow. Publishes the exit of the exec.
    pub fn handle_exec_output_read(&mut self, now: Time, id: &ContainerId, exec_id: &str) {
        self.now = now;
        self.with_container(id, |context| {
            let exec = context.container.execs.0.get_mut(exec_id);
            if let Some(code) = exec.and_then(Exec::publish) {
                context.publish_exec_exit(exec_id.to_owned(), code);
            }
        });
        self.settle(now);
    }

    /// Forgets an exec that its caller deletes. If the exec is being started, the driver cancels
    /// the start.
    ///
    /// # Errors
    ///
    /// If [`allows_exec`](Pod::allows_exec) refuses a Delete, for example while the exec runs.
    pub fn handle_exec_delete(
        &mut self,
        now: Time,
        id: &ContainerId,
        exec_id: &str,
    ) -> Result<(), Refusal> {
        self.allows_exec(id, exec_id, ExecCall::Delete)?;
        self.now = now;
        self.with_container(id, |context| {
            context.record_exec_end(exec_id, None);
            context.container.execs.0.remove(exec_id);
        });
        self.settle(now);
        Ok(())
    }

    /// The state of an exec as the caller reads it, or `None` if there is no such exec.
    pub fn exec_status(&self, id: &ContainerId, exec_id: &str) -> Option<TaskStatus> {
        let container = self.task(id).ok()?;
        let exec = container.execs.0.get(exec_id)?;
        Some(match (exec, container.state.freezer()) {
            (Exec::Exited, _) => TaskStatus::Stopped,
            (_, Some(Freezer::Freezing)) => TaskStatus::Pausing,
            (_, Some(Freezer::Frozen)) => TaskStatus::Paused,
            (Exec::Running | Exec::Exiting(_), _) => TaskStatus::Running,
            (Exec::Added | Exec::Starting | Exec::NeverRan, _) => TaskStatus::Created,
        })
    }

    /// The container with this id. Returns [`Refusal::NotFound`] also while the container is being
    /// created: it does not exist for the caller yet.
    pub(super) fn task(&self, id: &ContainerId) -> Result<&Container, Refusal> {
        let task = self.known(id)?;
        let is_known = task.is_known();
        is_known
            .then_some(task)
            .ok_or_else(|| Refusal::NotFound { id: id.clone() })
    }
}

impl ContainerContext<'_> {
    pub(super) fn publish_exec_exit(&mut self, exec_id: String, code: u32) {
        self.out.push(Action::PublishExecExit {
            id: self.id.clone(),
            exec_id,
            code,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_for_execs_are_allowed_as_the_table_says() {
        let calls = [
            ExecCall::Start,
            ExecCall::Kill,
            ExecCall::KillZero,
            ExecCall::Delete,
        ];
        let page = include_str!("execs.rs").lines();
        let table = page.filter_map(|line| line.strip_prefix("//! | "));
        let rows: Vec<_> = table.filter(|row| !row.starts_with('|')).collect();
        assert_eq!(rows.len(), 6);
        for row in rows {
            let mut cells = row.trim_end_matches('|').split('|').map(str::trim);
            let exec = match cells.next().unwrap() {
                "added" => Exec::Added,
                "starting" => Exec::Starting,
                "running" => Exec::Running,
                "exiting" => Exec::Exiting(0),
                "exited" => Exec::Exited,
                "never ran" => Exec::NeverRan,
                row => panic!("row {row:?} is unknown"),
            };
            for (call, cell) in calls.into_iter().zip(cells) {
                assert_eq!(exec.allows(call), cell == "yes", "{row}: {call:?}");
            }
        }
    }
}
