//! Cgroups of the simulated engine.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use crate::{
    Cgroup, Change, EngineError, Knob, OomWatch, Place, PodCgroup, ScoreOutcome, UNLIMITED,
};
use usher_core::plan::Allotment;
use usher_core::sizing::{Limit, Limits, Millicores, Requests};

use super::SimEngine;
use super::fault::EngineCall;
use super::machine::Happening;

/// Period of a quota, in microseconds.
const PERIOD: u64 = 100_000;

/// Delay of the kernel's notification of an OOM kill.
const NOTICED_AFTER: Duration = Duration::from_millis(50);

/// Time after which systemd writes the values that it was told. It answers before, unless the
/// answer is delayed.
const APPLIED_AFTER: Duration = Duration::from_millis(20);

/// The values of a pod's cgroup, and the notes with the values that are to be restored.
#[derive(Clone, Debug, Default)]
pub(super) struct PodValues {
    /// The value of each knob (a limit or weight). A missing value means no limit.
    values: BTreeMap<u8, u64>,
    /// The values that systemd was told.
    told: BTreeMap<u8, u64>,
    notes: BTreeMap<PathBuf, Vec<(Knob, u64)>>,
}

#[derive(Debug)]
pub(super) struct SimCgroup {
    engine: SimEngine,
    id: String,
}

impl SimCgroup {
    pub fn new(engine: SimEngine, id: &str) -> SimCgroup {
        SimCgroup {
            engine,
            id: id.to_owned(),
        }
    }

    fn oom_kills(&self) -> u64 {
        let machine = self.engine.lock();
        let known = machine.containers.get(&self.id);
        known.map_or(0, |known| known.oom_kills)
    }
}

#[async_trait]
impl Cgroup for SimCgroup {
    fn metrics(&self) -> Result<Any, EngineError> {
        let read = self.engine.lock().fault(EngineCall::ReadCgroup, &self.id);
        read.outcome?;
        Ok(Any::new())
    }

    fn processes(&self) -> Result<Vec<u32>, EngineError> {
        let mut machine = self.engine.lock();
        let read = machine.fault(EngineCall::ReadCgroup, &self.id);
        read.outcome?;
        let members = machine.members(&self.id).into_iter();
        let pids = members.filter_map(|serial| machine.processes.get(&serial));
        Ok(pids
            .filter_map(|process| u32::try_from(process.pid).ok())
            .collect())
    }

    fn memory_usage(&self) -> Option<u64> {
        let machine = self.engine.lock();
        machine
            .containers
            .get(&self.id)
            .map(|known| known.memory_usage)
    }

    fn watch_oom(self: Arc<Self>, tell: Box<dyn Fn() + Send + Sync>) -> Option<Box<dyn OomWatch>> {
        let killed = {
            let machine = self.engine.lock();
            Arc::clone(&machine.containers.get(&self.id)?.killed)
        };
        let kills = Arc::new(Kills {
            seen: AtomicU64::new(self.oom_kills()),
            cgroup: self,
            tell,
        });
        let follows = Arc::clone(&kills);
        let notices = tokio::spawn(async move {
            loop {
                killed.notified().await;
                sleep(NOTICED_AFTER).await;
                follows.look();
            }
        });
        let notices = notices.abort_handle();
        Some(Box::new(SimOomWatch { kills, notices }))
    }

    async fn change_scores(&self, change: Change, _: &Notify) -> Result<ScoreOutcome, EngineError> {
        let met = self.engine.meet(EngineCall::Scores, &self.id, None).await;
        met?;
        let mut machine = self.engine.lock();
        let may_lower = machine.may_lower_scores;
        let mut outcome = ScoreOutcome::default();
        for serial in machine.members(&self.id) {
            let Some(process) = machine.processes.get_mut(&serial) else {
                continue;
            };
            match change.to < process.oom_score && !may_lower {
                true => outcome.refused = Some("permission denied".to_owned()),
                false => process.oom_score = change.to,
            }
        }
        Ok(outcome)
    }
}

/// Checks for OOM kills when it is asked to, and some time after a process was killed.
#[derive(Debug)]
struct SimOomWatch {
    kills: Arc<Kills>,
    notices: AbortHandle,
}

struct Kills {
    cgroup: Arc<SimCgroup>,
    seen: AtomicU64,
    tell: Box<dyn Fn() + Send + Sync>,
}

impl Kills {
    fn look(&self) {
        let count = self.cgroup.oom_kills();
        if count > self.seen.swap(count, Ordering::Relaxed) {
            (self.tell)();
        }
    }
}

impl OomWatch for SimOomWatch {
    fn look(&self) {
        self.kills.look();
    }
}

impl Drop for SimOomWatch {
    fn drop(&mut self) {
        self.notices.abort();
    }
}

impl std::fmt::Debug for Kills {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Kills").field(&self.cgroup).finish()
    }
}

#[derive(Debug)]
pub(super) struct SimPodCgroup {
    engine: SimEngine,
    uid: String,
}

impl SimPodCgroup {
    pub fn new(engine: SimEngine, uid: &str) -> SimPodCgroup {
        SimPodCgroup {
            engine,
            uid: uid.to_owned(),
        }
    }
}

fn index(knob: Knob) -> u8 {
    match knob {
        Knob::Memory => 0,
        Knob::CpuQuota => 1,
        Knob::CpuWeight => 2,
    }
}

impl SimEngine {
    /// Sets a value of a pod's cgroup, as kubelet does. kubelet also tells systemd.
    pub fn size_pod(&self, uid: &str, knob: Knob, value: u64) {
        let mut machine = self.lock();
        let pod = machine.pods.entry(uid.to_owned()).or_default();
        pod.values.insert(index(knob), value);
        pod.told.insert(index(knob), value);
    }

    /// The value that systemd was told last, and would write again at a daemon-reload.
    pub fn told_systemd(&self, uid: &str, knob: Knob) -> Option<u64> {
        let machine = self.lock();
        machine.pods.get(uid)?.told.get(&index(knob)).copied()
    }

    /// systemd writes the values that it was told into a pod's cgroup, as at a daemon-reload.
    pub fn reload_systemd(&self, uid: &str) {
        if let Some(pod) = self.lock().pods.get_mut(uid) {
            pod.values.extend(pod.told.clone());
        }
    }

    /// Current value of the setting `knob` in a pod's cgroup.
    pub fn pod_size(&self, uid: &str, knob: Knob) -> u64 {
        let machine = self.lock();
        let pod = machine.pods.get(uid);
        let value = pod.and_then(|pod| pod.values.get(&index(knob)).copied());
        value.unwrap_or(UNLIMITED)
    }
}

#[async_trait]
impl PodCgroup for SimPodCgroup {
    fn place(&self) -> Option<Place> {
        None
    }

    fn memory_usage(&self) -> Option<u64> {
        let machine = self.engine.lock();
        let usage = machine.containers.values().map(|known| known.memory_usage);
        Some(usage.fold(0, u64::saturating_add))
    }

    fn read(&self, knob: Knob) -> Option<u64> {
        Some(self.engine.pod_size(&self.uid, knob))
    }

    fn rounded(&self, _: Knob, value: u64) -> u64 {
        value
    }

    fn write(&self, knob: Knob, value: u64) -> io::Result<()> {
        let met = self.engine.lock().fault(EngineCall::WritePod, &self.uid);
        met.outcome.map_err(io::Error::other)?;
        let mut machine = self.engine.lock();
        let interferes = std::mem::take(&mut machine.systemd_interferes);
        let pod = machine.pods.entry(self.uid.clone()).or_default();
        pod.values.insert(index(knob), value);
        if interferes {
            pod.values.extend(pod.told.clone());
        }
        machine.note(Happening::PodSized { knob, value });
        Ok(())
    }

    async fn lower_memory(&self, bytes: u64) -> io::Result<()> {
        let met = self
            .engine
            .meet(EngineCall::LowerMemory, &self.uid, None)
            .await;
        met.map_err(io::Error::other)?;
        self.write(Knob::Memory, bytes)?;
        if self.is_managed() {
            // Meanwhile systemd may write another value.
            let answered = self.engine.answer(EngineCall::LowerMemory, &self.uid);
            answered.await;
        }
        Ok(())
    }

    fn overhead(&self, _: Knob, _: &Allotment) -> u64 {
        0
    }

    fn cpu_values(&self, limits: &Limits, requests: &Requests) -> Option<(u64, u64)> {
        let quota = match limits.cpu {
            Limit::Unlimited | Limit::Of(Millicores(0)) => UNLIMITED,
            Limit::Of(Millicores(millis)) => millis.saturating_mul(PERIOD) / 1000,
        };
        Some((quota, requests.cpu.0.saturating_mul(1024) / 1000))
    }

    fn is_managed(&self) -> bool {
        self.engine.lock().has_systemd
    }

    async fn notify_manager(&self, values: Vec<(Knob, u64)>) -> Result<(), EngineError> {
        let met = self.engine.meet(EngineCall::TellManager, &self.uid, None);
        met.await?;
        let (engine, uid) = (self.engine.clone(), self.uid.clone());
        if let Some(pod) = engine.lock().pods.get_mut(&uid) {
            let values = values.into_iter();
            pod.told
                .extend(values.map(|(knob, value)| (index(knob), value)));
        }
        tokio::spawn(async move {
            sleep(APPLIED_AFTER).await;
            engine.reload_systemd(&uid);
        });
        let answered = self.engine.answer(EngineCall::TellManager, &self.uid);
        answered.await;
        Ok(())
    }

    fn leave_note(&self, bundle: &Path, before: &[(Knob, u64)]) -> io::Result<()> {
        let mut machine = self.engine.lock();
        let pod = machine.pods.entry(self.uid.clone()).or_default();
        pod.notes.insert(bundle.to_owned(), before.to_vec());
        Ok(())
    }

    fn remove_note(&self, bundle: &Path) {
        let mut machine = self.engine.lock();
        if let Some(pod) = machine.pods.get_mut(&self.uid) {
            pod.notes.remove(bundle);
        }
    }
}
