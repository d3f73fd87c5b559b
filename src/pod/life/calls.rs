//! Which call of a task is legal when.
//!
//! `-` is refused with the state in a sentence:
//!
//! | | Pause | Resume | Exec | Checkpoint | Update | Pids | Delete | Kill 0 |
//! |---|---|---|---|---|---|---|---|---|
//! | to be restored, or lost | - | - | - | - | - | - | yes | yes |
//! | restoring | - | - | - | - | - | - | - | yes |
//! | created | - | - | yes | - | yes | yes | yes | yes |
//! | running | yes | - | yes | yes | yes | yes | - | yes |
//! | being paused | - | yes | yes | yes | yes | yes | - | yes |
//! | paused | - | yes | - | yes | yes | yes | - | yes |
//! | between two lives | - | - | yes | - | yes | yes | - | - |
//! | gone without a start | - | - | yes | - | yes | yes | yes | - |
//! | stopping: exit not published | - | - | - | - | yes | yes | - | - |
//! | stopping without a start | - | - | - | - | yes | yes | yes | - |
//! | stopped | - | - | - | - | yes | - | yes | - |
//! | being deleted | | | | | | | yes | |
//! | being checkpointed, with which it ends | | | | - | | | | |
//!
//! A Delete joins one that is under way. While its exit is not published it reads as before, and is dead to
//! what would need a process.
//!
//! While it is being made it does not exist for anybody, but for a Delete, which waits for that. That the
//! core has a say of its own in Start, Kill and Exec is not in this table.

use crate::pod::{CallError, Kind};

use super::Life;
use super::stage::{Freezer, Stage};

/// What a caller asks of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call<'a> {
    Pause,
    Resume,
    /// By the name of the process.
    Exec(&'a str),
    Checkpoint,
    Update,
    Pids,
    Delete,
    /// A signal that only asks whether it is there.
    KillZero,
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unborn,
    Restoring,
    Created,
    Running,
    Pausing,
    Paused,
    BetweenLives,
    Gone,
    Stopping,
    StoppingUnstarted,
    Stopped,
}

impl Life {
    /// Whether a call is legal now for the task with this id.
    ///
    /// # Errors
    ///
    /// One sentence that names the task and how it is.
    pub fn allows(&self, call: Call<'_>, id: &str) -> Result<(), CallError> {
        let state = self.state();
        let is_allowed = match call {
            Call::Delete if self.is_going || self.has_deleter() => true,
            Call::Checkpoint if !self.has_ended() && self.is_being_forgotten() => {
                return Err(refusal(call, id, "being checkpointed"));
            }
            Call::Pause => state == State::Running,
            Call::Resume => matches!(state, State::Pausing | State::Paused),
            Call::Exec(_) => !matches!(
                state,
                State::Unborn
                    | State::Restoring
                    | State::Paused
                    | State::Stopping
                    | State::StoppingUnstarted
                    | State::Stopped
            ),
            Call::Checkpoint => {
                matches!(state, State::Running | State::Pausing | State::Paused)
            }
            Call::Update => !matches!(state, State::Unborn | State::Restoring),
            Call::Pids => !matches!(state, State::Unborn | State::Restoring | State::Stopped),
            Call::Delete => matches!(
                state,
                State::Unborn
                    | State::Created
                    | State::Gone
                    | State::StoppingUnstarted
                    | State::Stopped
            ),
            Call::KillZero => !self.has_ended(),
        };
        match is_allowed {
            true => Ok(()),
            false => Err(refusal(call, id, state.word())),
        }
    }

    fn state(&self) -> State {
        match (&self.stage, self.is_started) {
            (Stage::Making | Stage::ToRestore(_) | Stage::Lost, _) => State::Unborn,
            (Stage::Restoring(_), _) => State::Restoring,
            (Stage::Alive(alive), is_started) => match (alive.freezer, is_started) {
                (Freezer::Freezing, _) => State::Pausing,
                (Freezer::Frozen, _) => State::Paused,
                (Freezer::Thawed, true) => State::Running,
                (Freezer::Thawed, false) => State::Created,
            },
            (Stage::Ended(..), true) => State::BetweenLives,
            (Stage::Ended(..), false) => State::Gone,
            (Stage::Reported { .. }, true) => State::Stopping,
            (Stage::Reported { .. }, false) => State::StoppingUnstarted,
            (Stage::Exited(..), _) => State::Stopped,
        }
    }
}

impl State {
    /// For a sentence: it is so.
    fn word(self) -> &'static str {
        match self {
            State::Unborn => "still to be restored",
            State::Restoring => "being restored",
            State::Created => "created",
            State::Running => "running",
            State::Pausing => "being paused",
            State::Paused => "paused",
            State::BetweenLives | State::Gone => "without a process",
            State::Stopping | State::StoppingUnstarted | State::Stopped => "stopped",
        }
    }
}

fn refusal(call: Call<'_>, id: &str, word: &str) -> CallError {
    let message = match call {
        Call::KillZero => return CallError::finished(id),
        Call::Pause => format!("cannot pause task {id}: it is {word}, expected running"),
        Call::Resume => format!("cannot resume task {id}: it is not paused"),
        Call::Exec(exec_id) => format!("exec {exec_id:?}: task {id} is {word}"),
        Call::Checkpoint => {
            format!("cannot checkpoint task {id}: it is {word}, expected running or paused")
        }
        Call::Update => format!("cannot update task {id}: it is {word}"),
        Call::Pids => format!("task {id} has no processes: it is not running"),
        Call::Delete => {
            let word = match word {
                // As its caller sees it.
                "being paused" | "paused" | "without a process" | "stopped" => "running",
                word => word,
            };
            format!("cannot delete task {id}: it is {word}, expected stopped or created")
        }
    };
    CallError::new(Kind::FailedPrecondition, message)
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use tokio::sync::oneshot;

    use super::*;
    use crate::engine::sim::SimEngine;

    /// A life that has come as far as a row of the table says.
    async fn life(row: &str) -> Life {
        let mut life = Life::new();
        life.made_known();
        let is_born = match row {
            "to be restored, or lost" => {
                life.stage = Stage::Lost;
                false
            }
            "restoring" => {
                life.stage = Stage::Restoring(Vec::new());
                false
            }
            _ => true,
        };
        if is_born {
            life.born(SimEngine::default().parked("web").await);
        }
        if !matches!(
            row,
            "created" | "gone without a start" | "stopping without a start"
        ) {
            life.started();
        }
        match row {
            "to be restored, or lost" | "restoring" | "created" | "running" => {}
            "being deleted" => life.goes(),
            "being checkpointed, with which it ends" => drop(life.begin_forgetting()),
            "being paused" => life.freezes(),
            "paused" => life.frozen(true, true),
            "between two lives" | "gone without a start" => drop(life.ended(UNIX_EPOCH)),
            "stopping: exit not published" | "stopping without a start" => {
                life.reported(0, UNIX_EPOCH);
            }
            "stopped" => {
                life.reported(0, UNIX_EPOCH);
                life.publishes();
            }
            row => panic!("row {row:?} is unknown"),
        }
        life
    }

    #[tokio::test(start_paused = true)]
    async fn the_table_says_what_is_allowed() {
        let calls = [
            Call::Pause,
            Call::Resume,
            Call::Exec("e"),
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
            let life = life(name).await;
            for (call, cell) in calls.into_iter().zip(cells) {
                let allowed = life.allows(call, "web");
                match cell {
                    "yes" => assert_eq!(allowed, Ok(()), "{name}: {call:?}"),
                    "-" => assert!(allowed.is_err(), "{name}: {call:?}"),
                    // Whatever it is beside that decides.
                    _ => {}
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_delete_of_a_running_task_is_refused_until_another_one_is_under_way() {
        let mut life = life("running").await;
        let refused = life.allows(Call::Delete, "web").unwrap_err();
        assert_eq!(
            refused.message,
            "cannot delete task web: it is running, expected stopped or created"
        );
        let (deleter, _deleted) = oneshot::channel();
        life.is_to_go(deleter);
        assert_eq!(life.allows(Call::Delete, "web"), Ok(()));
        assert_eq!(life.take_deleters().len(), 1);
        assert!(life.allows(Call::Delete, "web").is_err());
    }
}
