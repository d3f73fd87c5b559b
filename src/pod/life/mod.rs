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
//!   Reported                   how it ended is known; its execs are to end, and its output is to be read first
//!      | published
//!      v
//!   Exited
//! ```
//!
//! What there is only in a stage is in that stage: a release is under way, and memory is watched, while
//! it is alive; figures are kept from its end on. One that is told to have ended before its process was
//! collected goes from Alive to Reported: its next life was given up when it had just begun.
//!
//! Beside that it has been started, as its caller sees it, or not; and its removal can be under way. Which
//! call is legal when is in `calls.rs`, how one life follows another in `remains.rs`.

mod calls;
mod remains;
mod stage;

use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::oneshot;

use crate::engine::{Cgroup, Halt, Init, Restoration};

use super::cgroup::Figures;
use super::process::{Deleted, Exit, Status};
use super::signals::SignalOrder;
use super::{CallError, Kind, Reply};

use remains::Remains;
use stage::{Alive, Body, Freezer, Stage};

pub(super) use calls::Call;
pub(super) use remains::Forgetting;

/// Where a task is in its life.
#[derive(Debug)]
pub(super) struct Life {
    stage: Stage,
    /// Called when what is under way for this life of it is of no use any more.
    halt: Halt,
    /// Its caller has been told that it is started.
    is_started: bool,
    /// Its caller knows of it: it is neither being made nor being undone.
    is_known: bool,
    /// Its removal is under way.
    is_going: bool,
    /// Callers that wait for its deletion.
    deleters: Vec<Reply<Deleted>>,
    remains: Remains,
}

impl Life {
    /// That of a task which is being made.
    pub fn new() -> Life {
        Life {
            stage: Stage::Making,
            halt: Halt::default(),
            is_started: false,
            is_known: false,
            is_going: false,
            deleters: Vec::new(),
            remains: Remains::All,
        }
    }

    /// What its caller is told.
    pub fn status(&self) -> Status {
        match (&self.stage, self.stage.freezer()) {
            (Stage::Exited(_, exit), _) => Status::Stopped(*exit),
            (_, Some(Freezer::Freezing)) => Status::Pausing,
            (_, Some(Freezer::Frozen)) => Status::Paused,
            _ if self.is_started => Status::Running,
            _ => Status::Created,
        }
    }

    /// The same of one of its execs, that has been executed or not, and has not ended.
    pub fn status_of_exec(&self, is_started: bool) -> Status {
        match self.stage.freezer() {
            Some(Freezer::Freezing) => Status::Pausing,
            Some(Freezer::Frozen) => Status::Paused,
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
        self.stage.dead().is_some()
    }

    /// Its process is gone, and how it ended is not told: another will follow, or it is told later. One
    /// that is restarted has a process again before its program runs (see
    /// [`lifecycle::Pod::is_without_program`](crate::lifecycle::Pod::is_without_program)).
    pub fn is_without_process(&self) -> bool {
        matches!(self.stage, Stage::Ended(..))
    }

    /// How it has ended, which is to be published.
    pub fn unpublished(&self) -> Option<Exit> {
        match self.stage {
            Stage::Reported { exit, .. } => Some(exit),
            _ => None,
        }
    }

    /// How it has ended, as everybody knows.
    pub fn published(&self) -> Option<Exit> {
        match self.stage {
            Stage::Exited(_, exit) => Some(exit),
            _ => None,
        }
    }

    /// Its init process, which may have ended; none as long as there was none.
    pub fn init(&self) -> Option<&Arc<dyn Init>> {
        Some(&self.stage.body()?.init)
    }

    /// Its init process while that lives.
    pub fn living_init(&self) -> Option<&Arc<dyn Init>> {
        Some(&self.stage.alive()?.body.init)
    }

    /// Its init process, which may have ended, and the halt that whatever is asked of it is under.
    ///
    /// # Errors
    ///
    /// If it has none yet.
    pub fn init_and_halt(&self) -> Result<(Arc<dyn Init>, Halt), CallError> {
        let init = self.init().ok_or_else(|| {
            let message = "it has no process: it is still to be restored";
            CallError::new(Kind::FailedPrecondition, message)
        })?;
        Ok((Arc::clone(init), self.halt.clone()))
    }

    /// What ends what is under way for this life of it.
    pub fn halt(&self) -> &Halt {
        &self.halt
    }

    /// Where its processes are, or were; none if that is not known.
    pub fn cgroup(&self) -> Option<&Arc<dyn Cgroup>> {
        self.stage.body()?.cgroup.as_ref()
    }

    /// Where its figures are: those that were kept when it had ended, or its cgroup's.
    pub fn figures(&self) -> Option<Figures> {
        let kept = self.stage.dead().and_then(|dead| dead.figures.clone());
        let last = kept.map(Figures::Last);
        last.or_else(|| self.cgroup().cloned().map(Figures::Of))
    }

    /// Its program is being released.
    pub fn is_releasing(&self) -> bool {
        self.stage
            .alive()
            .is_some_and(|alive| alive.releasing.is_some())
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

    /// It has this process from now on, in its first life or another. Where that is cannot always be found
    /// out at once: it is where the last one was, then.
    pub fn born(&mut self, init: Arc<dyn Init>) {
        let cgroup = init.cgroup().or_else(|| self.cgroup().cloned());
        self.remains = Remains::All;
        self.stage = Stage::Alive(Alive {
            body: Body { init, cgroup },
            freezer: Freezer::Thawed,
            releasing: None,
            oom_watch: None,
        });
    }

    /// Looks for its cgroup once more, where it was not found. Whether it is known since.
    pub fn finds_cgroup(&mut self) -> bool {
        let body = self.stage.body_mut().filter(|body| body.cgroup.is_none());
        body.is_some_and(|body| {
            body.cgroup = body.init.cgroup();
            body.cgroup.is_some()
        })
    }

    /// Has `tell` called when memory runs out in it, until its init ends.
    pub fn watches_memory(&mut self, tell: Box<dyn Fn() + Send + Sync>) {
        if let Stage::Alive(alive) = &mut self.stage
            && let Some(cgroup) = &alive.body.cgroup
        {
            alive.oom_watch = Arc::clone(cgroup).watch_oom(tell);
        }
    }

    /// A process in it was killed: says so now if it was because memory had run out.
    pub fn looks_at_memory(&self) {
        self.stage.looks_at_memory();
    }

    /// Its program is being released; what is given back ends when its init process does.
    pub fn releases(&mut self) -> oneshot::Receiver<()> {
        let (releasing, gone) = oneshot::channel();
        if let Stage::Alive(alive) = &mut self.stage {
            alive.releasing = Some(releasing);
        }
        gone
    }

    /// Marks that its program was released, or could not be.
    pub fn release_is_over(&mut self) {
        if let Stage::Alive(alive) = &mut self.stage {
            alive.releasing = None;
        }
    }

    /// Its caller is told that it is started.
    pub fn started(&mut self) {
        self.is_started = true;
    }

    /// It is being frozen.
    pub fn freezes(&mut self) {
        if let Stage::Alive(alive) = &mut self.stage {
            alive.freezer = Freezer::Freezing;
        }
    }

    /// Freezing it, or thawing, is over, well or not.
    pub fn frozen(&mut self, paused: bool, is_done: bool) {
        if let Stage::Alive(alive) = &mut self.stage {
            alive.freezer = match (paused, is_done, alive.freezer) {
                (true, true, _) => Freezer::Frozen,
                (false, true, _) | (true, false, _) => Freezer::Thawed,
                (false, false, before) => before,
            };
        }
    }

    /// Its process was collected at that time. Whether its program was just being released, which ends
    /// with it.
    pub fn ended(&mut self, at: SystemTime) -> bool {
        let was_releasing = self.is_releasing();
        if !matches!(self.stage, Stage::Reported { .. } | Stage::Exited(..)) {
            self.stage = Stage::Ended(self.stage.dies(), at);
        }
        was_releasing
    }

    /// Keeps the figures of one that has ended: the engine will forget its cgroup before it is deleted.
    pub fn keeps_figures(&mut self) {
        let Some(dead) = self.stage.dead_mut() else {
            return;
        };
        let cgroup = dead.body.as_ref().and_then(|body| body.cgroup.as_ref());
        match cgroup.map(|cgroup| cgroup.metrics()) {
            Some(Ok(figures)) => dead.figures = Some(figures),
            Some(Err(error)) => tracing::warn!(%error, "not kept"),
            None => {}
        }
    }

    /// Its exit is to be told, as this code; one that never was collected has ended `now`.
    pub fn reported(&mut self, code: u32, now: SystemTime) {
        let at = match self.stage {
            Stage::Exited(..) => return,
            Stage::Ended(_, at) => at,
            _ => now,
        };
        self.stage = Stage::Reported {
            dead: self.stage.dies(),
            exit: Exit { code, at },
            is_timed: false,
            awaits_reader: false,
        };
    }

    /// Begins the wait of its exit until it is told. False if it has begun before, or need not be told.
    pub fn begins_to_wait(&mut self) -> bool {
        match &mut self.stage {
            Stage::Reported { is_timed, .. } => !std::mem::replace(is_timed, true),
            _ => false,
        }
    }

    /// Notes whether its exit waits for its caller to read output.
    pub fn awaits_reader(&mut self, awaits: bool) {
        if let Stage::Reported { awaits_reader, .. } = &mut self.stage {
            *awaits_reader = awaits;
        }
    }

    /// Its exit waits for its caller to read output.
    pub fn is_awaiting_reader(&self) -> bool {
        matches!(
            self.stage,
            Stage::Reported {
                awaits_reader: true,
                ..
            }
        )
    }

    /// Its exit is published now; none if there is none to be published.
    pub fn publishes(&mut self) -> Option<Exit> {
        let exit = self.unpublished()?;
        self.stage = Stage::Exited(self.stage.dies(), exit);
        Some(exit)
    }

    /// A caller wants it deleted, as soon as it can be.
    pub fn is_to_go(&mut self, deleter: Reply<Deleted>) {
        // Callers that have given up are not kept, but for the one by which there is a deletion.
        let mut is_first = true;
        self.deleters
            .retain(|waiting| std::mem::take(&mut is_first) || !waiting.is_closed());
        self.deleters.push(deleter);
    }

    /// A caller waits for its deletion, or has.
    pub fn has_deleter(&self) -> bool {
        !self.deleters.is_empty()
    }

    /// The callers that wait for its deletion, which is over, about to begin or to be refused.
    pub fn take_deleters(&mut self) -> Vec<Reply<Deleted>> {
        std::mem::take(&mut self.deleters)
    }

    /// Its removal begins, and ends whatever is under way in it or with it.
    pub fn goes(&mut self) {
        self.is_going = true;
        self.halt.call();
    }

    /// Its removal has failed, and can be tried again.
    pub fn stays(&mut self) {
        self.is_going = false;
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::engine::sim::SimEngine;

    #[tokio::test(start_paused = true)]
    async fn an_exit_is_published_once_with_the_time_of_the_end() {
        let mut life = Life::new();
        life.born(SimEngine::default().parked("web").await);
        life.ended(UNIX_EPOCH);
        assert!(life.is_without_process() && life.publishes().is_none());
        life.reported(3, SystemTime::now());
        let exit = Exit {
            code: 3,
            at: UNIX_EPOCH,
        };
        assert_eq!(life.status(), Status::Created, "nobody is told");
        assert_eq!(life.publishes(), Some(exit));
        assert_eq!(life.status(), Status::Stopped(exit));
        assert_eq!(life.publishes(), None);
        life.reported(4, SystemTime::now());
        assert_eq!(life.published(), Some(exit));
    }

    #[tokio::test(start_paused = true)]
    async fn a_release_ends_when_its_init_process_exits() {
        let mut life = Life::new();
        life.born(SimEngine::default().parked("web").await);
        let gone = life.releases();
        assert!(life.ended(UNIX_EPOCH));
        assert!(gone.await.is_err());
    }
}
