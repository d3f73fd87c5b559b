//! Calls of the Task API, and the states in which each is legal.
//!
//! `-`: refused, with an error that names the state. An empty cell: the row of the state applies.
//!
//! | | Pause | Resume | Exec | Checkpoint | Update | Pids | Delete | Kill 0 |
//! |---|---|---|---|---|---|---|---|---|
//! | to be restored, or unrestorable | - | - | - | - | - | - | yes | yes |
//! | restoring | - | - | - | - | - | - | - | yes |
//! | created | - | - | yes | - | yes | yes | yes | yes |
//! | running | yes | - | yes | yes | yes | yes | - | yes |
//! | being paused | - | yes | yes | yes | yes | yes | - | yes |
//! | paused | - | yes | - | yes | yes | yes | - | yes |
//! | between two processes | - | - | yes | - | yes | yes | - | - |
//! | exited without a start | - | - | yes | - | yes | yes | yes | - |
//! | stopping: exit not published | - | - | - | - | yes | yes | - | - |
//! | stopping without a start | - | - | - | - | yes | yes | yes | - |
//! | stopped | - | - | - | - | yes | - | yes | - |
//! | being deleted | | | | | | | yes | |
//! | being checkpointed, with which it exits | | | | - | | | | |
//!
//! A second Delete joins the one under way. Until its exit is published, the caller sees a task as
//! before, but calls that need a process fail.
//!
//! A task that is being created does not exist for its caller, except for a Delete, which waits.
//! Start, Kill and Exec depend on the pod as well, which is not in this table.

use std::fmt;

use crate::lifecycle::Pod;
use crate::lifecycle::action::{ContainerId, Refusal};
use crate::lifecycle::container::Container;
use crate::lifecycle::state::Freezer;

/// A call of the Task API that needs a certain state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    Pause,
    Resume,
    /// Contains the id of the new exec.
    Exec(String),
    Checkpoint,
    Update,
    Pids,
    Delete,
    /// Signal 0, which tests if the process exists (`kill(2)`).
    KillZero,
}

/// A call that the state of the task does not allow.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IllegalCall {
    call: Call,
    id: ContainerId,
    state: State,
}

/// The state of a task, as a row of the module's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    ToRestore,
    Restoring,
    Created,
    Running,
    Pausing,
    Paused,
    BetweenProcesses,
    ExitedUnstarted,
    Stopping,
    StoppingUnstarted,
    Stopped,
    BeingCheckpointed,
}

impl Pod {
    /// Checks that a call is legal now. Changes nothing. The driver itself refuses calls for a task
    /// that is still being created.
    ///
    /// # Errors
    ///
    /// [`Refusal::NotFound`], and [`Refusal::IllegalCall`] with the state of the task.
    pub fn allows(&self, id: &ContainerId, call: Call) -> Result<(), Refusal> {
        self.known(id)?.allows(id, call)
    }
}

impl Container {
    pub(in crate::lifecycle) fn allows(&self, id: &ContainerId, call: Call) -> Result<(), Refusal> {
        let state = match call {
            Call::Checkpoint if !self.state.has_exited() && self.is_cleanup_under_way() => {
                State::BeingCheckpointed
            }
            _ => self.task_state(),
        };
        let is_joined = call == Call::Delete && self.is_removal_wanted();
        if is_joined || state.allows(&call) {
            return Ok(());
        }
        let id = id.clone();
        Err(Refusal::IllegalCall(IllegalCall { call, id, state }))
    }

    fn task_state(&self) -> State {
        let (state, was_started) = (&self.state, self.state.was_started());
        match state.freezer() {
            _ if state.is_published() => State::Stopped,
            _ if state.is_exited() && was_started => State::Stopping,
            _ if state.is_exited() => State::StoppingUnstarted,
            _ if state.is_being_restored() => State::Restoring,
            _ if state.is_creating() || state.has_no_process_yet() => State::ToRestore,
            Some(Freezer::Freezing) => State::Pausing,
            Some(Freezer::Frozen) => State::Paused,
            Some(Freezer::Thawed) if was_started => State::Running,
            Some(Freezer::Thawed) => State::Created,
            None if was_started => State::BetweenProcesses,
            None => State::ExitedUnstarted,
        }
    }
}

impl State {
    /// True if the table allows the call.
    fn allows(self, call: &Call) -> bool {
        use State::*;
        match call {
            Call::Pause => self == Running,
            Call::Resume => matches!(self, Pausing | Paused),
            Call::Exec(_) => {
                matches!(
                    self,
                    Created | Running | Pausing | BetweenProcesses | ExitedUnstarted
                )
            }
            Call::Checkpoint => matches!(self, Running | Pausing | Paused),
            Call::Update => !matches!(self, ToRestore | Restoring),
            Call::Pids => !matches!(self, ToRestore | Restoring | Stopped),
            Call::Delete => matches!(
                self,
                ToRestore | Created | ExitedUnstarted | StoppingUnstarted | Stopped
            ),
            Call::KillZero => matches!(
                self,
                ToRestore | Restoring | Created | Running | Pausing | Paused
            ),
        }
    }

    /// The state as a word for error messages.
    fn word(self) -> &'static str {
        match self {
            State::ToRestore => "still to be restored",
            State::Restoring => "being restored",
            State::Created => "created",
            State::Running => "running",
            State::Pausing => "being paused",
            State::Paused => "paused",
            State::BetweenProcesses | State::ExitedUnstarted => "without a process",
            State::Stopping | State::StoppingUnstarted | State::Stopped => "stopped",
            State::BeingCheckpointed => "being checkpointed",
        }
    }

    /// The state as the caller sees it: running until the exit is published.
    fn word_for_caller(self) -> &'static str {
        match self {
            State::ToRestore | State::Restoring | State::Created => self.word(),
            _ => "running",
        }
    }
}

impl IllegalCall {
    /// True if a Kill with signal 0 was refused: the process has exited. False for any other call.
    pub fn is_finished(&self) -> bool {
        self.call == Call::KillZero
    }
}

impl fmt::Display for IllegalCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, word) = (&self.id, self.state.word());
        match &self.call {
            Call::Pause => write!(f, "cannot pause task {id}: it is {word}, expected running"),
            Call::Resume => write!(f, "cannot resume task {id}: it is {word}, expected paused"),
            Call::Exec(exec_id) => write!(f, "exec {exec_id:?}: task {id} is {word}"),
            Call::Checkpoint => write!(
                f,
                "cannot checkpoint task {id}: it is {word}, expected running or paused"
            ),
            Call::Update => write!(f, "cannot update task {id}: it is {word}"),
            Call::Pids => write!(f, "task {id} has no processes: it is not running"),
            Call::Delete => write!(
                f,
                "cannot delete task {id}: it is {}, expected stopped or created",
                self.state.word_for_caller()
            ),
            Call::KillZero => write!(f, "{id}: process already finished"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::lifecycle::container::{Demands, NewContainer};
    use crate::lifecycle::task::BundleFacts;
    use crate::lifecycle::{RequestId, Time};
    use crate::plan::{ContainerKind, KubeletFacts};
    use crate::process::ExitStatus;

    const NOW: Time = Time::from_origin(Duration::from_secs(1));

    fn web() -> ContainerId {
        ContainerId::from("web")
    }

    /// Creates a pod whose task is in the state that a row of the table names.
    fn pod(row: &str) -> Pod {
        let mut pod = Pod::default();
        let new = NewContainer {
            name: "web".to_owned(),
            kind: ContainerKind::Workload,
            facts: KubeletFacts::default(),
            demands: Demands::default(),
            is_ungrouped: false,
            bundle: BundleFacts {
                // A container with its own PID namespace exits together with its init process. Two
                // rows of the table are about the time between these two exits.
                has_own_pid_namespace: !row.ends_with("two processes")
                    && row != "exited without a start",
                has_poststop_hooks: false,
            },
        };
        pod.handle_create(NOW, &web(), new, None, None).unwrap();
        if matches!(row, "to be restored, or unrestorable" | "restoring") {
            pod.handle_created_to_restore(NOW, &web());
            if row == "restoring" {
                pod.handle_start(NOW, &web(), RequestId(1), None);
                assert!(pod.handle_restore_begun(&web()));
            }
            return pod;
        }
        pod.handle_created(NOW, &web());
        let is_unstarted = matches!(
            row,
            "created" | "exited without a start" | "stopping without a start" | "being deleted"
        );
        if !is_unstarted {
            pod.handle_start(NOW, &web(), RequestId(1), None);
            pod.handle_released(NOW, &web(), Ok(()));
        }
        let exit = |pod: &mut Pod| pod.handle_container_exited(NOW, &web(), ExitStatus::Code(0));
        match row {
            "created" | "running" => {}
            "being paused" => pod.handle_pause(&web()).unwrap(),
            "paused" => {
                pod.handle_pause(&web()).unwrap();
                pod.handle_paused(NOW, &web(), true);
            }
            "between two processes" | "exited without a start" => {
                pod.handle_init_exited(NOW, &web(), ExitStatus::Code(0));
            }
            "stopping: exit not published" | "stopping without a start" => exit(&mut pod),
            "stopped" => {
                exit(&mut pod);
                pod.handle_output_read(NOW, &web());
            }
            "being deleted" => pod.handle_delete(NOW, &web()).unwrap(),
            "being checkpointed, with which it exits" => {
                pod.handle_checkpoint(&web(), true).unwrap();
            }
            row => panic!("row {row:?} is unknown"),
        }
        pod
    }

    #[test]
    fn calls_are_allowed_as_the_table_says() {
        let calls = [
            Call::Pause,
            Call::Resume,
            Call::Exec("e".to_owned()),
            Call::Checkpoint,
            Call::Update,
            Call::Pids,
            Call::Delete,
            Call::KillZero,
        ];
        let page = include_str!("calls.rs").lines();
        let table = page.filter_map(|line| line.strip_prefix("//! | "));
        let rows: Vec<_> = table.filter(|row| !row.starts_with('|')).collect();
        assert_eq!(rows.len(), 13);
        for row in rows {
            let mut cells = row.trim_end_matches('|').split('|').map(str::trim);
            let name = cells.next().unwrap();
            let pod = pod(name);
            for (call, cell) in calls.iter().zip(cells) {
                let allowed = pod.allows(&web(), call.clone());
                match cell {
                    "yes" => assert_eq!(allowed, Ok(()), "{name}: {call:?}"),
                    "-" => assert!(allowed.is_err(), "{name}: {call:?}"),
                    // An empty cell has no rule. The row of the task's state has it.
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn a_refused_call_names_the_state_of_the_task() {
        let refused = pod("running").allows(&web(), Call::Delete).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "cannot delete task web: it is running, expected stopped or created"
        );
        let refused = pod("running").allows(&web(), Call::Resume).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "cannot resume task web: it is running, expected paused"
        );
    }
}
