//! Containers of the simulated engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::time::{sleep, timeout};

use crate::catch_panic::catch_panic;
use crate::{
    CancelToken, Container, CreateOptions, Created, Deletion, EngineError, ExitFuture,
    InitialState, NewInit, Order, PreviousInit, Restoration, Work,
};
use usher_core::plan::Signal;
use usher_core::process::ExitStatus;
use usher_linux::stdio::{self, Streams};

use super::fault::EngineCall;
use super::init::SimInit;
use super::machine::{Happening, State, exit_future};
use super::{Program, SimBundle, SimEngine};

/// Maximum wait for the exit of the container's previous processes before a restart in place.
const GONE_WITHIN: Duration = Duration::from_secs(5);
/// Maximum number of retries of a forced deletion. The engine retries because no caller does.
const DELETE_RETRIES: u32 = 20;

const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A container with its bundle.
#[derive(Debug)]
pub(super) struct SimContainer {
    pub engine: SimEngine,
    pub id: String,
    pub bundle: SimBundle,
    pub directory: std::path::PathBuf,
    /// True for a sandbox without a pause container.
    pub is_sandbox: bool,
    checkpoint: String,
    inits: AtomicUsize,
    /// Number of calls of `forget` in progress.
    forgettings: AtomicUsize,
    /// Number of releases of the container in progress.
    pub releases: AtomicUsize,
    /// Number of execs of the container that are being started.
    pub execs: AtomicUsize,
}

/// Counts an operation while it is in progress.
pub(super) struct UnderWay<'a>(&'a AtomicUsize);

impl UnderWay<'_> {
    pub fn one_more(count: &AtomicUsize) -> UnderWay<'_> {
        count.fetch_add(1, Ordering::Relaxed);
        UnderWay(count)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl SimContainer {
    pub fn new(engine: SimEngine, order: &Order, bundle: SimBundle) -> SimContainer {
        SimContainer {
            engine,
            id: order.id.clone(),
            bundle,
            directory: order.bundle.clone(),
            is_sandbox: order.sandbox.is_some(),
            checkpoint: order.checkpoint.clone(),
            inits: AtomicUsize::new(0),
            forgettings: AtomicUsize::new(0),
            releases: AtomicUsize::new(0),
            execs: AtomicUsize::new(0),
        }
    }

    fn park(self: &Arc<Self>, score: i32) -> NewInit {
        let number = self.inits.fetch_add(1, Ordering::Relaxed);
        let mut machine = self.engine.lock();
        let own = self.bundle.has_own_pid_namespace;
        let (serial, pid, end) = machine.spawn(&self.id, None, own, score, State::Parked);
        machine.containers.entry(self.id.clone()).or_default().init = Some(serial);
        let id = self.id.clone();
        machine.note(Happening::Parked { id, pid });
        drop(machine);
        let programs = &self.bundle.programs;
        let program = programs.get(number).or(programs.last()).cloned();
        let program = program.unwrap_or_else(Program::default);
        NewInit {
            init: Arc::new(SimInit::new(Arc::clone(self), serial, pid, program)),
            exit_future: ExitFuture(Box::pin(exit_future(end))),
        }
    }

    /// Kills all processes of the container, even if it is frozen.
    pub fn kill_all(&self) {
        let members = self.engine.lock().members(&self.id);
        for serial in members {
            self.engine
                .dies(serial, ExitStatus::Signal(Signal::KILL.number()));
        }
    }

    /// Records that `call` begins. `conflicting` is the number of calls in progress with which
    /// `call` must not overlap.
    fn check_overlap(&self, call: EngineCall, conflicting: &AtomicUsize) {
        if conflicting.load(Ordering::Relaxed) > 0 {
            let id = self.id.clone();
            self.engine.lock().note(Happening::Overlapped { call, id });
        }
    }

    fn unmount(&self) {
        self.engine.lock().mounts.remove(&self.directory);
    }

    fn is_alive(&self) -> bool {
        self.engine.lock().init_of(&self.id).is_some()
    }

    fn forgotten(&self) -> Result<(), EngineError> {
        if self.is_alive() {
            let message = format!("cannot delete container {}: it is not stopped", self.id);
            return Err(EngineError::Failed(message));
        }
        let mut machine = self.engine.lock();
        if machine.containers.remove(&self.id).is_some() {
            let id = self.id.clone();
            machine.note(Happening::Forgotten { id });
        }
        Ok(())
    }

    async fn drain(&self, streams: Vec<Streams>) {
        // Output that arrives after the drain is lost.
        let _ = self.engine.meet(EngineCall::Drain, &self.id, None).await;
        stdio::drain(streams).await;
    }
}

#[async_trait]
impl Container for Arc<SimContainer> {
    async fn create(
        &self,
        _: &Order,
        options: CreateOptions,
        token: &CancelToken,
    ) -> Result<Created, EngineError> {
        self.engine.meet(EngineCall::Mount, &self.id, None).await?;
        self.engine.lock().mounts.insert(self.directory.clone());
        let first = self.bundle.programs.first();
        let (streams, _) = Streams::simulated(first.and_then(|program| program.is_read_for));
        if !self.checkpoint.is_empty() {
            let initial_state = InitialState::ToRestore(Box::new(SimRestoration(Arc::clone(self))));
            return Ok(Created {
                initial_state,
                streams,
            });
        }
        // A panic in this call simulates a bug of the shim. Even after such a panic, nothing may
        // stay mounted.
        let met = catch_panic(self.engine.meet(EngineCall::Create, &self.id, Some(token))).await;
        let is_known = self.engine.lock().containers.contains_key(&self.id);
        let created = met.and(match is_known {
            true => Err(EngineError::Failed(format!("{} exists already", self.id))),
            false => Ok(()),
        });
        if let Err(error) = created {
            self.unmount();
            return Err(error);
        }
        let score = options.oom_score.unwrap_or(self.bundle.oom_score);
        let initial_state = InitialState::Parked(self.park(score));
        self.engine.answer(EngineCall::Create, &self.id).await;
        Ok(Created {
            initial_state,
            streams,
        })
    }

    async fn create_again(
        &self,
        last: PreviousInit,
        _: &mut Streams,
        token: &CancelToken,
    ) -> Result<NewInit, EngineError> {
        self.check_overlap(EngineCall::CreateAgain, &self.forgettings);
        if token.is_canceled() {
            return Err(EngineError::CutShort("restart canceled".to_owned()));
        }
        if !last.is_forgotten {
            self.kill_all();
            self.engine.lock().containers.remove(&self.id);
        }
        let gone = async {
            while !self.engine.lock().members(&self.id).is_empty() {
                sleep(LOOK_EVERY).await;
            }
        };
        let late = |_| EngineError::failed("an earlier process of the container still exists");
        timeout(GONE_WITHIN, gone).await.map_err(late)?;
        let met = self
            .engine
            .meet(EngineCall::CreateAgain, &self.id, Some(token));
        met.await?;
        let new_init = self.park(last.oom_score.unwrap_or(self.bundle.oom_score));
        self.engine.answer(EngineCall::CreateAgain, &self.id).await;
        Ok(new_init)
    }

    async fn forget(&self) -> Result<(), EngineError> {
        self.check_overlap(EngineCall::Forget, &self.releases);
        self.check_overlap(EngineCall::Forget, &self.execs);
        let _forgetting = UnderWay::one_more(&self.forgettings);
        self.engine.meet(EngineCall::Forget, &self.id, None).await?;
        self.forgotten()?;
        self.engine.answer(EngineCall::Forget, &self.id).await;
        Ok(())
    }

    async fn delete(&self, how: Deletion, streams: Vec<Streams>) -> Result<(), EngineError> {
        self.check_overlap(EngineCall::Delete, &self.forgettings);
        let removal = async {
            match how {
                Deletion::RootfsOnly => Ok(()),
                Deletion::Usual => {
                    let met = self.engine.meet(EngineCall::Delete, &self.id, None).await;
                    met.and_then(|()| self.forgotten())
                }
                Deletion::Forced => {
                    // No caller would retry this deletion, so the engine retries it.
                    let mut met = self.engine.meet(EngineCall::Delete, &self.id, None).await;
                    for _ in 0..DELETE_RETRIES {
                        if met.is_err() {
                            met = self.engine.meet(EngineCall::Delete, &self.id, None).await;
                        }
                    }
                    // Kill all processes, even if the deletion fails.
                    self.kill_all();
                    met.and_then(|()| self.forgotten())
                }
            }
        };
        // A panic in this call simulates a bug of the shim. Even after such a panic, nothing may
        // stay mounted.
        let deleted = catch_panic(removal).await;
        self.drain(streams).await;
        self.unmount();
        self.engine.answer(EngineCall::Delete, &self.id).await;
        deleted
    }

    fn record_exit(&self, pid: i32, code: u32, _: SystemTime) {
        let id = self.id.clone();
        let recorded = Happening::ExitRecorded { id, pid, code };
        self.engine.lock().note(recorded);
    }

    fn write_message(&self, _: Option<&Streams>, words: &str, _: bool) -> Option<Work<()>> {
        let (id, words) = (self.id.clone(), words.to_owned());
        self.engine
            .lock()
            .note(Happening::MessageWritten { id, words });
        None
    }
}

/// A container that is to be restored.
#[derive(Debug)]
struct SimRestoration(Arc<SimContainer>);

#[async_trait]
impl Restoration for SimRestoration {
    async fn restore(
        self: Box<Self>,
        _: Option<&mut Streams>,
        token: &CancelToken,
    ) -> Result<NewInit, EngineError> {
        let SimRestoration(container) = *self;
        let met = container
            .engine
            .meet(EngineCall::Restore, &container.id, Some(token));
        met.await?;
        let score = container.bundle.oom_score;
        let new_init = container.park(score);
        let init = container.engine.lock();
        let serial = init
            .containers
            .get(&container.id)
            .and_then(|known| known.init);
        drop(init);
        if let Some(serial) = serial {
            let program = container
                .bundle
                .programs
                .first()
                .cloned()
                .unwrap_or_default();
            container.engine.execute(serial, program);
        }
        Ok(new_init)
    }
}
