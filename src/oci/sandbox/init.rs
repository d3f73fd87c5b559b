//! The holder of a pod's namespaces, in the place of a pause container's init process.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep};

use crate::OciPodCgroup;
use usher_core::lifecycle::ActionError;
use usher_core::plan::{Hook, Probe, Signal};
use usher_core::process::ExitStatus;
use usher_engine::{
    Attempted, CancelToken, Cgroup, Change, Checkpoint, EngineError, ExecOrder, ExitFuture, Init,
    Namespaces, NewExec, OomWatch, OwnSandbox, PidHold, PodCgroup, ProbeEnvironment, Sandbox,
    ScoreOutcome, SignalProgress,
};
use usher_linux::cgroup::{self, PodCgroup as PodsCgroup};
use usher_linux::reaper::{Child, Reaper};

/// Time limit for a killed holder to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// The process that holds a pod's namespaces.
#[derive(Debug)]
pub(super) struct Holder {
    /// PID of the holder; 0 if no process has to hold the namespaces.
    pid: i32,
    reaper: Reaper,
    cgroup: Arc<SharedCgroup>,
    own: Arc<OwnSandbox>,
    /// Token whose cancellation ends a sandbox that has no process.
    end: CancelToken,
    /// The shim's end of the leash, a pipe. The holder exits when this end is closed. If the shim
    /// dies, the kernel closes it.
    _leash: OwnedFd,
}

/// The cgroup of the pod, whose metrics are also those of the sandbox.
#[derive(Debug)]
struct SharedCgroup {
    holder: i32,
    pod: Option<Arc<cgroup::Cgroup>>,
}

/// The error of a call that works only on containers, and not on a sandbox.
pub(super) fn not_a_container(what: &str) -> EngineError {
    EngineError::Precondition(format!(
        "the pod's sandbox is not a container and cannot be {what}"
    ))
}

/// Returns the exit future of the sandbox. If a process (`child`) holds the namespaces, the sandbox
/// exits when this process exits. Without such a process, the sandbox exits when the token
/// `holder.end` is canceled.
pub(super) fn exit_future(holder: &Holder, child: Option<Child>) -> ExitFuture {
    let ended = holder.end.clone();
    ExitFuture(Box::pin(async move {
        let Some(mut child) = child else {
            ended.canceled().await;
            return Ok(ExitStatus::Signal(Signal::KILL.number()));
        };
        child.wait().await
    }))
}

impl Holder {
    /// Makes the handle of the process that holds the pod's namespaces. `pid` is 0 if no process
    /// has to hold them. `pod` is the pod's cgroup. The handle keeps `leash` open, the shim's end
    /// of a pipe. The process exits when this end is closed.
    pub fn new(
        pid: i32,
        leash: OwnedFd,
        reaper: Reaper,
        pod: Option<cgroup::Cgroup>,
        own: OwnSandbox,
    ) -> Holder {
        let pod = pod.map(Arc::new);
        Holder {
            pid,
            reaper,
            cgroup: Arc::new(SharedCgroup { holder: pid, pod }),
            own: Arc::new(own),
            end: CancelToken::default(),
            _leash: leash,
        }
    }

    /// Kills the holder, and waits until it is gone.
    pub async fn kill_and_wait(&self) {
        // The kill fails if the holder has exited already.
        let _ = self.end();
        let begun = Instant::now();
        while self.reaper.owns(self.pid) {
            if begun.elapsed() > GONE_WITHIN {
                return tracing::warn!(
                    pid = self.pid,
                    "the holder of a pod's namespaces does not exit after SIGKILL"
                );
            }
            sleep(LOOK_EVERY).await;
        }
    }

    fn has_no_process(&self) -> bool {
        self.pid == 0
    }
}

#[async_trait]
impl Init for Holder {
    fn pid(&self) -> i32 {
        self.pid
    }

    fn hold_pid(&self) -> PidHold {
        if self.has_no_process() {
            return PidHold::new(self.pid, || ());
        }
        let (reaper, pid) = (self.reaper.clone(), self.pid);
        reaper.reserve(pid);
        PidHold::new(pid, move || reaper.free(pid))
    }

    fn cgroup(&self) -> Option<Arc<dyn Cgroup>> {
        Some(Arc::clone(&self.cgroup) as Arc<dyn Cgroup>)
    }

    fn pod_cgroup(&self, uid: &str) -> Option<Arc<dyn PodCgroup>> {
        let pod = PodsCgroup::at(self.cgroup.pod.as_deref()?, uid)?;
        Some(Arc::new(OciPodCgroup::new(pod, self.reaper.clone())))
    }

    fn shared(&self) -> Sandbox {
        Sandbox {
            pid: self.pid,
            namespaces: match self.has_no_process() {
                true => Namespaces::default(),
                false => Namespaces::of(self.pid),
            },
            own: Some(Arc::clone(&self.own)),
        }
    }

    async fn release(&self, _: oneshot::Receiver<()>, _: &CancelToken) -> Result<(), EngineError> {
        match self.has_no_process() || self.reaper.owns(self.pid) {
            true => Ok(()),
            false => Err(EngineError::Gone(
                "the holder of the pod's namespaces has exited".to_owned(),
            )),
        }
    }

    fn kill(&self, signal: Signal, _: bool) -> SignalProgress {
        SignalProgress::Done(match (self.has_no_process(), signal) {
            (false, signal) => crate::kill(&self.reaper, self.pid, signal),
            (true, Signal::KILL | Signal::TERM) => self.end(),
            // A sandbox without a process ignores all other signals, as a holder does.
            (true, _) => Ok(()),
        })
    }

    fn end(&self) -> Result<(), EngineError> {
        if self.has_no_process() {
            self.end.cancel();
            return Ok(());
        }
        crate::kill(&self.reaper, self.pid, Signal::KILL)
    }

    async fn end_the_rest(&self) {}

    async fn pause(&self, _: &CancelToken) -> Result<(), EngineError> {
        Err(not_a_container("paused"))
    }

    async fn resume(&self, _: &CancelToken) -> Result<(), EngineError> {
        Err(not_a_container("resumed"))
    }

    async fn update(&self, _: &[u8], _: &CancelToken) -> Result<(), EngineError> {
        Err(not_a_container("updated"))
    }

    async fn checkpoint(&self, _: &Checkpoint, _: &CancelToken) -> Result<(), EngineError> {
        Err(not_a_container("checkpointed"))
    }

    async fn exec(&self, _: ExecOrder, _: &CancelToken) -> Result<NewExec, EngineError> {
        Err(not_a_container("entered by an exec"))
    }

    async fn post_start(
        &self,
        _: Vec<u8>,
        _: Option<i32>,
        _: &CancelToken,
    ) -> Result<(), EngineError> {
        Err(not_a_container("entered"))
    }

    async fn probe(&self, _: &Probe, _: &ProbeEnvironment, _: &CancelToken) -> Attempted {
        Attempted {
            outcome: Err(ActionError::reported(not_a_container("probed"))),
            cost: Duration::ZERO,
        }
    }

    async fn hook(
        &self,
        _: &Hook,
        _: Duration,
        _: &ProbeEnvironment,
        _: &CancelToken,
    ) -> Result<(), ActionError> {
        Err(ActionError::reported(not_a_container("entered")))
    }
}

#[async_trait]
impl Cgroup for SharedCgroup {
    fn metrics(&self) -> Result<Any, EngineError> {
        match &self.pod {
            Some(pod) => pod.metrics().map_err(EngineError::failed),
            None => Err(EngineError::failed("the pod has no cgroup of its own")),
        }
    }

    fn processes(&self) -> Result<Vec<u32>, EngineError> {
        let holder = u32::try_from(self.holder).into_iter();
        Ok(holder.filter(|pid| *pid != 0).collect())
    }

    /// Returns 0, because the holder's memory is charged to the pod, but to no container.
    fn memory_usage(&self) -> Option<u64> {
        Some(0)
    }

    fn watch_oom(self: Arc<Self>, _: Box<dyn Fn() + Send + Sync>) -> Option<Box<dyn OomWatch>> {
        None
    }

    async fn change_scores(&self, _: Change, _: &Notify) -> Result<ScoreOutcome, EngineError> {
        Ok(ScoreOutcome {
            refused: None,
            is_incomplete: false,
        })
    }
}
