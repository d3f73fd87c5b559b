//! The life of a task, as its caller and the engine see it. What is to become of it is the core's to
//! decide, which has a [life](crate::lifecycle) of its own for that.
//!
//! ```text
//!   Making --------> ToRestore -- restore --> Restoring
//!      |               |   ^---- failed: Lost ---'|
//!      | born          |                          | born
//!      v               |                          |
//!    Alive <-----------|--------------------------'      parked, running or frozen
//!    |   ^             |
//!    |   | born        | killed
//!    v   | (again)     v
//!    Ended <-----------'       its process is gone, and its caller does not know
//!      | reported
//!      v
//!   Reported                   how it ended is known; its execs are to end first
//!      | published
//!      v
//!   Exited
//! ```
//!
//! Beside that it has been started, as its caller sees it, or not; and its removal can be under way.
//!
//! Which call is legal when, where `-` is refused with the state in a sentence:
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
//! | stopping: exit not published | - | - | yes | - | yes | - | yes | - |
//! | stopped | - | - | - | - | yes | - | yes | - |
//! | being deleted | | | | | | | - | |
//! | being checkpointed, with which it ends | | | | - | | | | |
//!
//! While it is being made it does not exist for anybody, but for a Delete, which waits for that. That the
//! core has a say of its own in Start, Kill and Exec is not in this table.

use std::time::SystemTime;

use crate::engine::Restoration;

use super::process::{Deleted, Exit, Status};
use super::signals::SignalOrder;
use super::{CallError, Kind, Reply};

/// Where a task is in its life.
#[derive(Debug)]
pub(super) struct Life {
    stage: Stage,
    /// Its caller has been told that it is started.
    is_started: bool,
    /// Its caller knows of it: it is neither being made nor being undone.
    is_known: bool,
    /// Its removal is under way.
    is_going: bool,
    /// Who wants it deleted as soon as it can be.
    deleter: Option<Reply<Deleted>>,
    /// What the engine still knows of it.
    remains: Remains,
}

#[derive(Debug)]
enum Stage {
    Making,
    ToRestore(Box<dyn Restoration>),
    /// With what it is to be sent when it is there.
    Restoring(Vec<SignalOrder>),
    /// It could not be restored, and is not to be tried again.
    Lost,
    Alive(Freezer),
    Ended(SystemTime),
    Reported(Exit),
    Exited(Exit),
}

/// How far a task is frozen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Freezer {
    #[default]
    Thawed,
    Freezing,
    /// Until its thawing is over.
    Frozen,
}

/// What the engine knows of a container: its state and its cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Remains {
    #[default]
    All,
    /// They are being removed.
    Going,
    Gone,
}

/// What a caller asks of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call<'a> {
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
    Stopped,
}

impl Life {
    /// That of a task which is being made.
    pub fn new() -> Life {
        Life {
            stage: Stage::Making,
            is_started: false,
            is_known: false,
            is_going: false,
            deleter: None,
            remains: Remains::default(),
        }
    }

    /// Whether a call is legal now for the task with this id.
    ///
    /// # Errors
    ///
    /// One sentence that names the task and how it is.
    pub fn allows(&self, call: Call<'_>, id: &str) -> Result<(), CallError> {
        let state = self.state();
        let is_allowed = match call {
            Call::Delete if self.is_going || self.deleter.is_some() => {
                return Err(refusal(call, id, "being deleted"));
            }
            Call::Checkpoint if !self.has_ended() && self.remains == Remains::Going => {
                return Err(refusal(call, id, "being checkpointed"));
            }
            Call::Pause => state == State::Running,
            Call::Resume => matches!(state, State::Pausing | State::Paused),
            Call::Exec(_) => !matches!(
                state,
                State::Unborn | State::Restoring | State::Paused | State::Stopped
            ),
            Call::Checkpoint => {
                matches!(state, State::Running | State::Pausing | State::Paused)
            }
            Call::Update => !matches!(state, State::Unborn | State::Restoring),
            Call::Pids => !matches!(
                state,
                State::Unborn | State::Restoring | State::Stopping | State::Stopped
            ),
            Call::Delete => matches!(
                state,
                State::Unborn | State::Created | State::Gone | State::Stopping | State::Stopped
            ),
            Call::KillZero => !self.has_ended(),
        };
        match is_allowed {
            true => Ok(()),
            false => Err(refusal(call, id, state.word())),
        }
    }

    /// What its caller is told.
    pub fn status(&self) -> Status {
        match (&self.stage, self.is_started) {
            (Stage::Reported(exit) | Stage::Exited(exit), _) => Status::Stopped(*exit),
            (Stage::Alive(Freezer::Freezing), _) => Status::Pausing,
            (Stage::Alive(Freezer::Frozen), _) => Status::Paused,
            (_, true) => Status::Running,
            (_, false) => Status::Created,
        }
    }

    /// The same of one of its execs, that has been executed or not, and has not ended.
    pub fn status_of_exec(&self, is_started: bool) -> Status {
        match self.stage {
            Stage::Alive(Freezer::Freezing) => Status::Pausing,
            Stage::Alive(Freezer::Frozen) => Status::Paused,
            _ if is_started => Status::Running,
            _ => Status::Created,
        }
    }

    // === questions ===

    /// Its caller knows of it.
    pub fn is_known(&self) -> bool {
        self.is_known
    }

    /// Its removal is under way.
    pub fn is_going(&self) -> bool {
        self.is_going
    }

    /// It has no process yet, and will be restored in the place of a release.
    pub fn is_unborn(&self) -> bool {
        matches!(
            self.stage,
            Stage::ToRestore(_) | Stage::Restoring(_) | Stage::Lost
        )
    }

    /// Its process has ended, whoever knows.
    pub fn has_ended(&self) -> bool {
        matches!(
            self.stage,
            Stage::Ended(_) | Stage::Reported(_) | Stage::Exited(_)
        )
    }

    /// Its process is gone, and how it ended is not told: another will follow, or it is told later. One
    /// that is restarted has a process again before its program runs (see
    /// [`lifecycle::Pod::is_without_program`](crate::lifecycle::Pod::is_without_program)).
    pub fn is_without_process(&self) -> bool {
        matches!(self.stage, Stage::Ended(_))
    }

    /// How it has ended, which is to be published.
    pub fn unpublished(&self) -> Option<Exit> {
        match self.stage {
            Stage::Reported(exit) => Some(exit),
            _ => None,
        }
    }

    /// How it has ended, as everybody knows.
    pub fn published(&self) -> Option<Exit> {
        match self.stage {
            Stage::Exited(exit) => Some(exit),
            _ => None,
        }
    }

    // === what happens ===

    /// It has been made, and its caller knows of it from now on.
    pub fn made_known(&mut self) {
        self.is_known = true;
    }

    /// It is to be restored when its turn comes.
    pub fn waits_for(&mut self, restoration: Box<dyn Restoration>) {
        self.stage = Stage::ToRestore(restoration);
    }

    /// Its turn has come to be restored. None if that was tried before.
    pub fn restores(&mut self) -> Option<Box<dyn Restoration>> {
        match std::mem::replace(&mut self.stage, Stage::Lost) {
            Stage::ToRestore(restoration) => {
                self.stage = Stage::Restoring(Vec::new());
                Some(restoration)
            }
            _ => None,
        }
    }

    /// It could not be restored, or was; what it was to be sent meanwhile.
    pub fn restored(&mut self) -> Vec<SignalOrder> {
        match std::mem::replace(&mut self.stage, Stage::Lost) {
            Stage::Restoring(pending) => pending,
            _ => Vec::new(),
        }
    }

    /// It is to be sent this when it is there. False if it is not being restored.
    pub fn keeps_for_later(&mut self, order: SignalOrder) -> bool {
        match &mut self.stage {
            Stage::Restoring(pending) => {
                pending.push(order);
                true
            }
            _ => false,
        }
    }

    /// It has a process from now on, in its first life or another.
    pub fn born(&mut self) {
        self.stage = Stage::Alive(Freezer::Thawed);
    }

    /// Its caller is told that it is started.
    pub fn started(&mut self) {
        self.is_started = true;
    }

    /// It is being frozen.
    pub fn freezes(&mut self) {
        if let Stage::Alive(freezer) = &mut self.stage {
            *freezer = Freezer::Freezing;
        }
    }

    /// Freezing it, or thawing, is over, well or not.
    pub fn frozen(&mut self, paused: bool, is_done: bool) {
        if let Stage::Alive(freezer) = &mut self.stage {
            *freezer = match (paused, is_done, *freezer) {
                (true, true, _) => Freezer::Frozen,
                (false, true, _) | (true, false, _) => Freezer::Thawed,
                (false, false, before) => before,
            };
        }
    }

    /// Its process was collected at that time.
    pub fn ended(&mut self, at: SystemTime) {
        if !matches!(self.stage, Stage::Reported(_) | Stage::Exited(_)) {
            self.stage = Stage::Ended(at);
        }
    }

    /// Its exit is to be told, as this code; one that never was collected has ended `now`.
    pub fn reported(&mut self, code: u32, now: SystemTime) {
        let at = match self.stage {
            Stage::Exited(_) => return,
            Stage::Ended(at) => at,
            _ => now,
        };
        self.stage = Stage::Reported(Exit { code, at });
    }

    /// Its exit is published now; none if there is none to be published.
    pub fn publishes(&mut self) -> Option<Exit> {
        let exit = self.unpublished()?;
        self.stage = Stage::Exited(exit);
        Some(exit)
    }

    /// What the engine knows of it.
    pub fn remains(&self) -> Remains {
        self.remains
    }

    /// So much the engine knows of it from now on.
    pub fn leaves(&mut self, remains: Remains) {
        self.remains = remains;
    }

    /// Somebody wants it deleted, as soon as it can be.
    pub fn is_to_go(&mut self, deleter: Reply<Deleted>) {
        self.deleter = Some(deleter);
    }

    /// Whether somebody waits for its deletion.
    pub fn has_deleter(&self) -> bool {
        self.deleter.is_some()
    }

    /// Who waits for its deletion, which is about to begin or to be refused.
    pub fn take_deleter(&mut self) -> Option<Reply<Deleted>> {
        self.deleter.take()
    }

    /// Its removal begins.
    pub fn goes(&mut self) {
        self.is_going = true;
    }

    /// Its removal has failed, and can be tried again.
    pub fn stays(&mut self) {
        self.is_going = false;
    }

    fn state(&self) -> State {
        match (&self.stage, self.is_started) {
            (Stage::Making | Stage::ToRestore(_) | Stage::Lost, _) => State::Unborn,
            (Stage::Restoring(_), _) => State::Restoring,
            (Stage::Alive(Freezer::Freezing), _) => State::Pausing,
            (Stage::Alive(Freezer::Frozen), _) => State::Paused,
            (Stage::Alive(Freezer::Thawed), true) => State::Running,
            (Stage::Alive(Freezer::Thawed), false) => State::Created,
            (Stage::Ended(_), true) => State::BetweenLives,
            (Stage::Ended(_), false) => State::Gone,
            (Stage::Reported(_), _) => State::Stopping,
            (Stage::Exited(_), _) => State::Stopped,
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
            State::Stopping | State::Stopped => "stopped",
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
                "being paused" | "paused" | "without a process" => "running",
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

    /// A life that has come as far as a row of the table says.
    fn life(row: &str) -> Life {
        let mut life = Life::new();
        life.made_known();
        let exit = Exit {
            code: 0,
            at: UNIX_EPOCH,
        };
        (life.stage, life.is_started) = match row {
            "to be restored, or lost" => (Stage::Lost, true),
            "restoring" => (Stage::Restoring(Vec::new()), true),
            "created" => (Stage::Alive(Freezer::Thawed), false),
            "running" | "being deleted" | "being checkpointed, with which it ends" => {
                (Stage::Alive(Freezer::Thawed), true)
            }
            "being paused" => (Stage::Alive(Freezer::Freezing), true),
            "paused" => (Stage::Alive(Freezer::Frozen), true),
            "between two lives" => (Stage::Ended(UNIX_EPOCH), true),
            "gone without a start" => (Stage::Ended(UNIX_EPOCH), false),
            "stopping: exit not published" => (Stage::Reported(exit), true),
            "stopped" => (Stage::Exited(exit), true),
            row => panic!("row {row:?} is unknown"),
        };
        if row.starts_with("being deleted") {
            life.goes();
        }
        if row.starts_with("being checkpointed") {
            life.leaves(Remains::Going);
        }
        life
    }

    #[test]
    fn the_table_says_what_is_allowed() {
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
        let page = include_str!("life.rs").lines();
        let table = page.filter_map(|line| line.strip_prefix("//! | "));
        let rows: Vec<_> = table.filter(|row| !row.starts_with('|')).collect();
        assert_eq!(rows.len(), 12);
        for row in rows {
            let mut cells = row.trim_end_matches('|').split('|').map(str::trim);
            let name = cells.next().unwrap();
            for (call, cell) in calls.into_iter().zip(cells) {
                let allowed = life(name).allows(call, "web");
                match cell {
                    "yes" => assert_eq!(allowed, Ok(()), "{name}: {call:?}"),
                    "-" => assert!(allowed.is_err(), "{name}: {call:?}"),
                    // Whatever it is beside that decides.
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn what_waits_for_its_deletion_is_not_deleted_twice() {
        let mut life = life("created");
        let (deleter, _deleted) = oneshot::channel();
        life.is_to_go(deleter);
        let refused = life.allows(Call::Delete, "web").unwrap_err();
        assert_eq!(
            refused.message,
            "cannot delete task web: it is being deleted, expected stopped or created"
        );
        assert!(life.take_deleter().is_some());
        assert_eq!(life.allows(Call::Delete, "web"), Ok(()));
    }

    #[test]
    fn an_exit_is_published_once_with_the_time_of_the_end() {
        let mut life = life("running");
        life.ended(UNIX_EPOCH);
        assert!(life.is_without_process() && life.publishes().is_none());
        life.reported(3, SystemTime::now());
        let exit = Exit {
            code: 3,
            at: UNIX_EPOCH,
        };
        assert_eq!(life.status(), Status::Stopped(exit));
        assert_eq!(life.publishes(), Some(exit));
        assert_eq!(life.publishes(), None);
        life.reported(4, SystemTime::now());
        assert_eq!(life.published(), Some(exit));
    }
}
