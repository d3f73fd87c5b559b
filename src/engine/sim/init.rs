//! Processes of the simulated engine.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::{
    Attempted, CancelToken, Cgroup, Checkpoint, EngineError, ExecOrder, ExitFuture, Init, NewExec,
    PidHold, PodCgroup, ProbeEnvironment, Process, Resources, Sandbox, SignalProgress,
};
use usher_core::lifecycle::ActionError;
use usher_core::plan::{Hook, Probe, Signal};
use usher_core::process::ExitStatus;
use usher_core::sizing::{Bytes, Limit, Size};
use usher_linux::stdio::Streams;

use super::cgroup::{SimCgroup, SimPodCgroup};
use super::container::{SimContainer, UnderWay};
use super::fault::EngineCall;
use super::machine::{Happening, Serial, State, exit_future};
use super::{Program, SimEngine};

/// CPU time of a probe's attempt.
const PROBE_COSTS: Duration = Duration::from_millis(1);

#[derive(Clone)]
pub(super) struct SimInit {
    container: Arc<SimContainer>,
    serial: Serial,
    pid: i32,
    program: Program,
}

impl SimInit {
    pub fn new(
        container: Arc<SimContainer>,
        serial: Serial,
        pid: i32,
        program: Program,
    ) -> SimInit {
        SimInit {
            container,
            serial,
            pid,
            program,
        }
    }

    fn engine(&self) -> &SimEngine {
        &self.container.engine
    }

    fn id(&self) -> &str {
        &self.container.id
    }

    fn is_alive(&self) -> bool {
        self.engine().lock().is_alive(self.serial)
    }

    fn gone(&self) -> EngineError {
        EngineError::Gone(format!("container {} is not running", self.id()))
    }

    /// Outcome of a probe that runs now.
    fn probed(&self) -> Result<(), ActionError> {
        let machine = self.engine().lock();
        let since = machine
            .processes
            .get(&self.serial)
            .and_then(|process| process.since);
        let since =
            since.ok_or_else(|| ActionError::reported("its program is not executed yet"))?;
        self.program.probed(since.elapsed())
    }

    /// Waits for the delay of a call and returns its outcome. The call fails if the container has
    /// exited by then.
    async fn meet(&self, call: EngineCall, token: &CancelToken) -> Result<(), EngineError> {
        let met = self.engine().meet(call, self.id(), Some(token)).await;
        match self.is_alive() {
            true => met,
            false => met.and(Err(self.gone())),
        }
    }

    async fn kill_the_long_way(self, signal: Signal, all: bool) -> Result<(), EngineError> {
        let met = self.engine().meet(EngineCall::Kill, self.id(), None).await;
        if let Err(error) = met {
            return match self.is_alive() {
                false => Err(self.gone()),
                true if signal == Signal::KILL && error.is_cut_short() => self.end(),
                true => Err(error),
            };
        }
        let members = match all {
            true => self.engine().lock().members(self.id()),
            false => vec![self.serial],
        };
        // `runc kill --all` succeeds even if no process of the container is left.
        if members.is_empty() && !all {
            return Err(self.gone());
        }
        for serial in members {
            // An earlier signal of this loop may already have killed this process.
            let signalled = self.engine().signal(serial, signal);
            if !all {
                signalled?;
            }
        }
        self.engine().answer(EngineCall::Kill, self.id()).await;
        Ok(())
    }
}

#[async_trait]
impl Init for SimInit {
    fn pid(&self) -> i32 {
        self.pid
    }

    fn hold_pid(&self) -> PidHold {
        let (engine, pid) = (self.engine().clone(), self.pid);
        engine.lock().hold(pid);
        PidHold::new(pid, move || engine.lock().unhold(pid))
    }

    fn cgroup(&self) -> Option<Arc<dyn Cgroup>> {
        let found = self
            .engine()
            .lock()
            .fault(EngineCall::FindCgroup, self.id());
        found.outcome.ok()?;
        Some(Arc::new(SimCgroup::new(self.engine().clone(), self.id())))
    }

    fn pod_cgroup(&self, uid: &str) -> Option<Arc<dyn PodCgroup>> {
        let its = self.container.bundle.pod_uid.as_deref();
        its.filter(|its| !uid.is_empty() && *its == uid)?;
        Some(Arc::new(SimPodCgroup::new(self.engine().clone(), uid)))
    }

    fn shared(&self) -> Sandbox {
        let container = &self.container;
        Sandbox {
            pid: self.pid(),
            own: container.is_sandbox.then(Arc::default),
            ..Sandbox::default()
        }
    }

    async fn release(
        &self,
        gone: oneshot::Receiver<()>,
        _: &CancelToken,
    ) -> Result<(), EngineError> {
        let _release = UnderWay::one_more(&self.container.releases);
        let opened = async {
            let met = self
                .engine()
                .meet(EngineCall::Release, self.id(), None)
                .await;
            met?;
            Ok::<_, EngineError>(self.engine().thawed(self.serial).await)
        };
        let lives = tokio::select! {
            biased;
            lives = opened => lives?,
            _ = gone => false,
        };
        if !lives {
            return Err(EngineError::init_gone());
        }
        self.engine().execute(self.serial, self.program.clone());
        self.engine().answer(EngineCall::Release, self.id()).await;
        Ok(())
    }

    fn kill(&self, signal: Signal, all: bool) -> SignalProgress {
        let bundle = &self.container.bundle;
        let dies_with_it = signal == Signal::KILL && bundle.has_own_pid_namespace;
        if (all && !dies_with_it) || !bundle.is_native {
            return SignalProgress::UnderWay(Box::pin(self.clone().kill_the_long_way(signal, all)));
        }
        SignalProgress::Done(self.engine().signal(self.serial, signal))
    }

    fn end(&self) -> Result<(), EngineError> {
        self.engine().signal(self.serial, Signal::KILL)
    }

    async fn end_the_rest(&self) {
        let _ = self
            .engine()
            .meet(EngineCall::EndTheRest, self.id(), None)
            .await;
        self.container.kill_all();
    }

    async fn pause(&self, token: &CancelToken) -> Result<(), EngineError> {
        self.meet(EngineCall::Pause, token).await?;
        self.engine().freeze(self.id());
        self.engine().answer(EngineCall::Pause, self.id()).await;
        Ok(())
    }

    async fn resume(&self, token: &CancelToken) -> Result<(), EngineError> {
        self.meet(EngineCall::Resume, token).await?;
        self.engine().thaw(self.id());
        self.engine().answer(EngineCall::Resume, self.id()).await;
        Ok(())
    }

    async fn update(&self, resources: &[u8], token: &CancelToken) -> Result<(), EngineError> {
        self.meet(EngineCall::Update, token).await?;
        let size = Resources::parse(resources).change(Size::UNLIMITED);
        if let Limit::Of(Bytes(memory)) = size.limits.memory {
            let id = self.id().to_owned();
            self.engine().lock().note(Happening::Limited { id, memory });
        }
        self.engine().answer(EngineCall::Update, self.id()).await;
        Ok(())
    }

    async fn checkpoint(
        &self,
        checkpoint: &Checkpoint,
        token: &CancelToken,
    ) -> Result<(), EngineError> {
        self.meet(EngineCall::Checkpoint, token).await?;
        if checkpoint.exit {
            self.container.kill_all();
        }
        Ok(())
    }

    async fn exec(&self, order: ExecOrder, token: &CancelToken) -> Result<NewExec, EngineError> {
        let _exec = UnderWay::one_more(&self.container.execs);
        self.meet(EngineCall::Exec, token).await?;
        let lives = tokio::select! {
            biased;
            lives = self.engine().thawed(self.serial) => lives,
            () = token.canceled() => {
                return Err(EngineError::CutShort("exec canceled".to_owned()));
            }
        };
        if !lives {
            return Err(self.gone());
        }
        let (serial, pid, end, program) = {
            let mut machine = self.engine().lock();
            let score = order.oom_score.unwrap_or(self.container.bundle.oom_score);
            let key = (self.id().to_owned(), order.exec_id.clone());
            let program = machine.execs.get(&key).cloned();
            let program = program.unwrap_or_else(|| self.container.bundle.exec.clone());
            let running = State::Running(program.clone());
            let exec_id = Some(order.exec_id.as_str());
            let (serial, pid, end) = machine.spawn(self.id(), exec_id, false, score, running);
            (serial, pid, end, program)
        };
        let (streams, closed) = Streams::simulated(program.is_read_for);
        if program.reads_stdin {
            let engine = self.engine().clone();
            tokio::spawn(async move {
                // The wait ends when the sender is dropped.
                let _ = closed.await;
                engine.dies(serial, ExitStatus::Code(0));
            });
        }
        self.engine().execute(serial, program);
        self.engine().answer(EngineCall::Exec, self.id()).await;
        let process = SimProcess {
            engine: self.engine().clone(),
            serial,
            pid,
        };
        Ok(NewExec {
            process: Arc::new(process),
            exit_future: ExitFuture(Box::pin(exit_future(end))),
            streams,
        })
    }

    async fn post_start(
        &self,
        _: Vec<u8>,
        _: Option<i32>,
        token: &CancelToken,
    ) -> Result<(), EngineError> {
        self.meet(EngineCall::PostStart, token).await?;
        let id = self.id().to_owned();
        self.engine().lock().note(Happening::PostStarted { id });
        Ok(())
    }

    async fn probe(&self, probe: &Probe, _: &ProbeEnvironment, token: &CancelToken) -> Attempted {
        let attempt = timeout(probe.timeout, self.meet(EngineCall::Probe, token)).await;
        let outcome = match attempt {
            Ok(met) => met
                .map_err(ActionError::reported)
                .and_then(|()| self.probed()),
            Err(_) => Err(no_answer_within(probe.timeout)),
        };
        Attempted {
            outcome,
            cost: PROBE_COSTS,
        }
    }

    async fn hook(
        &self,
        hook: &Hook,
        limit: Duration,
        _: &ProbeEnvironment,
        token: &CancelToken,
    ) -> Result<(), ActionError> {
        if let Hook::Sleep(pause) = hook {
            tokio::time::sleep((*pause).min(limit)).await;
            return Ok(());
        }
        let id = || self.id().to_owned();
        self.engine().lock().note(Happening::HookBegan { id: id() });
        let run = async {
            self.meet(EngineCall::Hook, token).await?;
            sleep(self.program.hook_takes).await;
            Ok::<_, EngineError>(())
        };
        let outcome = timeout(limit, run).await;
        self.engine().lock().note(Happening::HookEnded { id: id() });
        match outcome {
            Ok(met) => met.map_err(ActionError::reported),
            Err(_) => Err(no_answer_within(limit)),
        }
    }
}

fn no_answer_within(limit: Duration) -> ActionError {
    ActionError::Reported(format!("no answer within {limit:?}"))
}

impl fmt::Debug for SimInit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimInit")
            .field("id", &self.id())
            .field("pid", &self.pid)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct SimProcess {
    engine: SimEngine,
    serial: Serial,
    pid: i32,
}

impl Process for SimProcess {
    fn pid(&self) -> i32 {
        self.pid
    }

    fn kill(&self, signal: Signal) -> SignalProgress {
        if signal == Signal::KILL {
            self.engine_dies()
        } else {
            let (engine, serial) = (self.engine.clone(), self.serial);
            SignalProgress::UnderWay(Box::pin(async move { engine.signal(serial, signal) }))
        }
    }
}

impl SimProcess {
    fn engine_dies(&self) -> SignalProgress {
        if !self.engine.lock().is_alive(self.serial) {
            return SignalProgress::Done(Err(EngineError::Gone("no such process".to_owned())));
        }
        let status = ExitStatus::Signal(Signal::KILL.number());
        self.engine.dies(self.serial, status);
        SignalProgress::Done(Ok(()))
    }
}
