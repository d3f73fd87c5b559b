//! The init process of a container.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use nix::libc;
use serde_json::{Map, Value};
use tokio::sync::oneshot;

use usher_core::lifecycle::ActionError;
use usher_core::plan::{Hook, Probe, Signal};
use usher_core::process::ExitStatus;
use usher_engine::{
    Attempted, CancelToken, Cgroup, Checkpoint, EngineError, ExecOrder, ExitFuture, Init,
    Namespaces, NewExec, NewInit, PidHold, PodCgroup, ProbeEnvironment, Sandbox, SignalProgress,
};
use usher_linux::cgroup::{Cgroup as ContainerCgroup, CgroupError, PodCgroup as PodsCgroup, moves};
use usher_linux::probe::{self, Target};
use usher_linux::reaper::{Child, Reaper};
use usher_linux::stdio::{CallerGone, EarlyFifos, Paths};

use super::cgroup::OciCgroup;
use super::container::OciContainer;
use super::exec::{self, Execution};
use super::release::release;
use super::{OciPodCgroup, OciRuntime, retry_on_exhaustion};

/// Time limit for the OCI runtime to kill the processes that an exited init has left. The limit is
/// short, because the container's exit is reported only afterwards.
const KILLS_WITHIN: Duration = Duration::from_secs(1);

/// Time limit for the shim to kill the processes that the OCI runtime's `kill` has left.
const REST_ENDS_WITHIN: Duration = Duration::from_secs(2);

/// Time limit for the OCI runtime to start the postStart handler. As with kubelet, the handler
/// itself has no time limit.
const RUNTIME_TAKES: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub(super) struct OciInit {
    container: Arc<OciContainer>,
    pid: i32,
    /// The container's cgroup, looked up as early as possible, because the program may move to
    /// another cgroup.
    cgroup: Arc<OnceLock<Arc<ContainerCgroup>>>,
}

impl OciInit {
    /// Makes the init handle and the exit future of a new init process.
    pub fn new_init(container: &Arc<OciContainer>, mut child: Child) -> NewInit {
        let init = OciInit {
            container: Arc::clone(container),
            pid: child.pid(),
            cgroup: Arc::default(),
        };
        if let Err(error) = init.find_cgroup() {
            tracing::warn!(container = container.id, %error, "no cgroup found: no metrics");
        }
        NewInit {
            init: Arc::new(init),
            exit_future: ExitFuture(Box::pin(async move { child.wait().await })),
        }
    }

    fn find_cgroup(&self) -> Result<(), CgroupError> {
        if self.cgroup.get().is_none() {
            let found = Arc::new(ContainerCgroup::of(self.pid)?);
            // Only one thread calls this function, so `set` cannot fail.
            let _ = self.cgroup.set(found);
        }
        Ok(())
    }

    fn id(&self) -> &str {
        &self.container.id
    }

    fn reaper(&self) -> &Reaper {
        &self.container.reaper
    }

    fn runtime(&self, token: &CancelToken) -> OciRuntime {
        self.container.runtime.under(token)
    }

    fn thaw(&self) {
        if let Some(cgroup) = self.cgroup.get() {
            cgroup.thaw();
        }
    }

    /// Thaws the container if the command was cut short, because it may have left the container
    /// frozen.
    fn thaw_after(&self, outcome: Result<(), super::RuntimeError>) -> Result<(), EngineError> {
        if outcome
            .as_ref()
            .is_err_and(super::RuntimeError::is_cut_short)
            && self.reaper().owns(self.pid)
        {
            self.thaw();
        }
        Ok(outcome?)
    }

    /// Sends a signal with the runtime's `kill` command. The shim uses this command for signals to
    /// all processes of the cgroup, and for runtimes that start a VM. The process that such a
    /// runtime reports is not the container's init.
    async fn kill_by_runtime(self, signal: Signal, all: bool) -> Result<(), EngineError> {
        let killed = self.container.runtime.kill(self.id(), signal.number(), all);
        let Err(error) = killed.await else {
            return Ok(());
        };
        if error.is_cut_short() {
            // The runtime freezes the cgroup while it signals all processes.
            self.thaw();
        }
        // A container that has exited meanwhile may already be cleaned up. Then the runtime's error
        // may name any missing part of the container.
        if !self.reaper().owns(self.pid) || error.is_process_gone() {
            return Err(EngineError::Gone(error.to_string()));
        }
        // A slow runtime must not keep a container alive, so the shim kills the init directly.
        // Processes that the init leaves behind are killed after its exit.
        if signal == Signal::KILL && error.is_cut_short() {
            tracing::warn!(container = self.id(), %error, "killing its init directly");
            return self.end();
        }
        Err(EngineError::failed(error))
    }

    fn target(&self, from: &ProbeEnvironment, token: &CancelToken) -> Target {
        Target {
            id: self.id().to_owned(),
            pid: self.pid,
            runtime: Arc::new(self.runtime(token)),
            reaper: self.reaper().clone(),
            place: from.place.clone(),
            ports: from.ports.clone(),
            oom_score: from.oom_score,
        }
    }
}

#[async_trait]
impl Init for OciInit {
    fn pid(&self) -> i32 {
        self.pid
    }

    fn hold_pid(&self) -> PidHold {
        let (reaper, pid) = (self.reaper().clone(), self.pid);
        reaper.reserve(pid);
        PidHold::new(pid, move || reaper.free(pid))
    }

    fn cgroup(&self) -> Option<Arc<dyn Cgroup>> {
        // If descriptors were exhausted at the first attempt to find the cgroup, try again. The PID
        // is valid only until the process is reaped.
        if self.cgroup.get().is_none() && self.reaper().owns(self.pid) {
            let _ = self.find_cgroup();
        }
        Some(Arc::new(OciCgroup(Arc::clone(self.cgroup.get()?))))
    }

    fn pod_cgroup(&self, uid: &str) -> Option<Arc<dyn PodCgroup>> {
        let pod = PodsCgroup::of(self.cgroup.get()?, uid)?;
        Some(Arc::new(OciPodCgroup::new(pod, self.reaper().clone())))
    }

    fn shared(&self) -> Sandbox {
        Sandbox {
            pid: self.pid,
            namespaces: Namespaces::of(self.pid),
            own: None,
        }
    }

    async fn release(
        &self,
        gone: oneshot::Receiver<()>,
        token: &CancelToken,
    ) -> Result<(), EngineError> {
        let has_hooks = self.container.has_poststart_hooks;
        release(&self.runtime(token), self.id(), self.pid, has_hooks, gone).await
    }

    fn kill(&self, signal: Signal, all: bool) -> SignalProgress {
        let dies_with_it = signal == Signal::KILL && self.container.has_own_pid_namespace;
        let is_for_init = !all || dies_with_it;
        if !is_for_init || !self.container.runtime.is_native(self.id()) {
            return SignalProgress::UnderWay(Box::pin(self.clone().kill_by_runtime(signal, all)));
        }
        SignalProgress::Done(match signal {
            Signal::KILL => self.end(),
            signal => kill(self.reaper(), self.pid, signal),
        })
    }

    fn end(&self) -> Result<(), EngineError> {
        let killed = kill(self.reaper(), self.pid, Signal::KILL);
        self.thaw();
        killed
    }

    async fn end_the_rest(&self) {
        let mut runtime = self.container.runtime.clone();
        runtime.within(KILLS_WITHIN);
        let kill_all = || runtime.kill(self.id(), Signal::KILL.number(), true);
        if let Err(error) = retry_on_exhaustion(kill_all).await {
            tracing::debug!(container = self.id(), %error, "no processes left to kill");
        }
        // The runtime may have left processes. crun kills nothing in the cgroups below the
        // container's cgroup. runc 1.2 and later kill nothing once the init is gone.
        //
        // The shim kills the remaining processes only if the cgroup's name shows that it belongs to
        // the container alone. Any other cgroup may have foreign processes.
        let cgroup = self.cgroup.get();
        if let Some(cgroup) = cgroup.filter(|cgroup| cgroup.is_named_after(self.id()))
            && !cgroup.end_all(REST_ENDS_WITHIN).await
        {
            tracing::warn!(
                container = self.id(),
                "processes remain in the container's cgroup"
            );
        }
    }

    async fn pause(&self, token: &CancelToken) -> Result<(), EngineError> {
        self.thaw_after(self.runtime(token).pause(self.id()).await)
    }

    async fn resume(&self, token: &CancelToken) -> Result<(), EngineError> {
        self.thaw_after(self.runtime(token).resume(self.id()).await)
    }

    async fn update(&self, resources: &[u8], token: &CancelToken) -> Result<(), EngineError> {
        Ok(self.runtime(token).update(self.id(), resources).await?)
    }

    async fn checkpoint(
        &self,
        checkpoint: &Checkpoint,
        token: &CancelToken,
    ) -> Result<(), EngineError> {
        // criu freezes the container, so the container is thawed if criu was cut short.
        self.thaw_after(self.runtime(token).checkpoint(self.id(), checkpoint).await)
    }

    fn prepare_for_exec(&self, paths: &Paths, caller_gone: CallerGone) -> EarlyFifos {
        moves::prepare_for_exec();
        self.container.early.open(paths, caller_gone)
    }

    async fn exec(&self, order: ExecOrder, token: &CancelToken) -> Result<NewExec, EngineError> {
        let execution = Execution {
            order,
            container: &self.container,
            runtime: self.runtime(token),
        };
        execution.run().await
    }

    async fn post_start(
        &self,
        process: Vec<u8>,
        oom_score: Option<i32>,
        token: &CancelToken,
    ) -> Result<(), EngineError> {
        let process = with_score(process, oom_score).map_err(EngineError::failed)?;
        let runtime = self.runtime(token);
        let executed = runtime.exec_again(self.id(), &process, oom_score, RUNTIME_TAKES);
        let mut process = executed.await?;
        match process.wait().await {
            Ok(ExitStatus::Code(0)) => Ok(()),
            Ok(status) => {
                let code = status.code();
                Err(EngineError::Failed(format!(
                    "the command exited with {code}"
                )))
            }
            Err(error) => Err(EngineError::failed(error)),
        }
    }

    async fn probe(
        &self,
        probe: &Probe,
        from: &ProbeEnvironment,
        token: &CancelToken,
    ) -> Attempted {
        probe::attempt(probe, &self.target(from, token)).await
    }

    async fn hook(
        &self,
        hook: &Hook,
        limit: Duration,
        from: &ProbeEnvironment,
        token: &CancelToken,
    ) -> Result<(), ActionError> {
        probe::run_hook(hook, limit, &self.target(from, token)).await
    }
}

impl fmt::Debug for OciInit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OciInit")
            .field("id", &self.id())
            .field("pid", &self.pid)
            .finish_non_exhaustive()
    }
}

pub(crate) fn kill(reaper: &Reaper, pid: i32, signal: Signal) -> Result<(), EngineError> {
    let killed = reaper.kill(pid, signal.number());
    killed.map_err(|error| match error.raw_os_error() {
        Some(libc::ESRCH) => EngineError::Gone(error.to_string()),
        _ => EngineError::failed(error),
    })
}

/// Lowers the OOM score of an OCI process to `score`, unless it is lower already.
fn with_score(process: Vec<u8>, score: Option<i32>) -> serde_json::Result<Vec<u8>> {
    let Some(score) = score else {
        return Ok(process);
    };
    let mut spec: Map<String, Value> = serde_json::from_slice(&process)?;
    match exec::lower(&mut spec, score) {
        true => serde_json::to_vec(&spec),
        false => Ok(process),
    }
}
