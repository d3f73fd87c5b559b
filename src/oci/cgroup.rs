//! Implements the engine's cgroup traits with [`usher_linux::cgroup`].

use std::fs;
use std::future::pending;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use tokio::sync::Notify;

use usher_core::plan::Allotment;
use usher_core::process::ExitStatus;
use usher_core::sizing::{Limits, Requests};
use usher_engine::{Cgroup, Change, EngineError, Knob, OomWatch, PodCgroup, ScoreOutcome};
use usher_linux::cgroup::pod::Note;
use usher_linux::cgroup::{self, Place, scores};
use usher_linux::files::{Replacement, replace};
use usher_linux::reaper::{Reaper, Waited};
use usher_linux::sys;

const SYSTEMD_ANSWERS_WITHIN: Duration = Duration::from_secs(30);

/// File in a bundle with the values of the pod's cgroup that `delete` restores if the shim has
/// died.
const NOTES: &str = "usher-pod-cgroup.json";
const MODE: u32 = 0o600;

#[derive(Debug)]
pub(super) struct OciCgroup(pub Arc<cgroup::Cgroup>);

#[async_trait]
impl Cgroup for OciCgroup {
    fn metrics(&self) -> Result<Any, EngineError> {
        self.0.metrics().map_err(EngineError::failed)
    }

    fn processes(&self) -> Result<Vec<u32>, EngineError> {
        self.0.processes().map_err(EngineError::failed)
    }

    fn memory_usage(&self) -> Option<u64> {
        self.0.memory_usage()
    }

    fn watch_oom(self: Arc<Self>, tell: Box<dyn Fn() + Send + Sync>) -> Option<Box<dyn OomWatch>> {
        let watch = cgroup::OomWatch::begin(Arc::clone(&self.0), tell)?;
        Some(Box::new(OciOomWatch(watch)))
    }

    async fn change_scores(
        &self,
        change: Change,
        superseded: &Notify,
    ) -> Result<ScoreOutcome, EngineError> {
        let changed = scores::change(&self.0, change, superseded).await;
        changed.map_err(EngineError::failed)
    }
}

#[derive(Debug)]
struct OciOomWatch(cgroup::OomWatch);

impl OomWatch for OciOomWatch {
    fn look(&self) {
        self.0.look();
    }
}

/// Cgroup of a pod.
#[derive(Debug)]
pub struct OciPodCgroup {
    cgroup: Arc<cgroup::PodCgroup>,
    place: Option<Place>,
    reaper: Reaper,
}

impl OciPodCgroup {
    /// Wraps a cgroup; `reaper` runs systemctl.
    pub fn new(cgroup: cgroup::PodCgroup, reaper: Reaper) -> OciPodCgroup {
        OciPodCgroup {
            place: cgroup.place(),
            cgroup: Arc::new(cgroup),
            reaper,
        }
    }
}

#[async_trait]
impl PodCgroup for OciPodCgroup {
    fn place(&self) -> Option<Place> {
        self.place.clone()
    }

    fn memory_usage(&self) -> Option<u64> {
        self.cgroup.memory_usage()
    }

    fn read(&self, knob: Knob) -> Option<u64> {
        self.cgroup.read(knob)
    }

    fn rounded(&self, knob: Knob, value: u64) -> u64 {
        self.cgroup.rounded(knob, value)
    }

    fn write(&self, knob: Knob, value: u64) -> io::Result<()> {
        self.cgroup.write(knob, value)
    }

    async fn lower_memory(&self, bytes: u64) -> io::Result<()> {
        let cgroup = Arc::clone(&self.cgroup);
        let lowered = self
            .reaper
            .threads()
            .run(move || cgroup.write(Knob::Memory, bytes));
        lowered.await?
    }

    fn overhead(&self, knob: Knob, allotment: &Allotment) -> u64 {
        self.cgroup.overhead(knob, allotment)
    }

    fn cpu_values(&self, limits: &Limits, requests: &Requests) -> Option<(u64, u64)> {
        self.cgroup.cpu_values(limits, requests)
    }

    fn is_managed(&self) -> bool {
        self.cgroup.unit().is_some()
    }

    async fn notify_manager(&self, values: Vec<(Knob, u64)>) -> Result<(), EngineError> {
        let Some(unit) = self.cgroup.unit() else {
            return Ok(());
        };
        let properties = values
            .into_iter()
            .filter_map(|(knob, value)| self.cgroup.property(knob, value));
        let properties: Vec<_> = properties.collect();
        if properties.is_empty() {
            return Ok(());
        }
        let mut command = systemctl();
        command.args(["set-property", "--runtime", unit]);
        command.args(properties);
        let not_run =
            |error: io::Error| EngineError::Failed(format!("cannot run systemctl: {error}"));
        let spawned = self.reaper.spawn(command).await;
        let mut child = spawned.map_err(not_run)?;
        let waited = child.wait_within(&self.reaper, SYSTEMD_ANSWERS_WITHIN, pending());
        match waited.await.map_err(not_run)? {
            Waited::Ended(ExitStatus::Code(0)) => Ok(()),
            Waited::Ended(status) => {
                let code = status.code();
                Err(EngineError::Failed(format!("systemctl exited with {code}")))
            }
            Waited::Late | Waited::Canceled => Err(EngineError::CutShort(format!(
                "systemctl did not end within {SYSTEMD_ANSWERS_WITHIN:?}"
            ))),
        }
    }

    fn leave_note(&self, bundle: &Path, before: &[(Knob, u64)]) -> io::Result<()> {
        let notes = before
            .iter()
            .filter_map(|(knob, ceiling)| self.cgroup.note(*knob, *ceiling));
        let notes: Vec<Note> = notes.collect();
        replace(
            &bundle.join(NOTES),
            &serde_json::to_vec(&notes)?,
            Replacement::with_mode(MODE),
        )
    }

    fn remove_note(&self, bundle: &Path) {
        // The removal fails if the bundle is already gone.
        let _ = fs::remove_file(bundle.join(NOTES));
    }
}

/// Restores the values of the pod's cgroup that a dead shim has noted in the bundle.
pub fn restore_pod_cgroup(bundle: &Path) {
    let notes = fs::read(bundle.join(NOTES)).unwrap_or_default();
    let notes: Vec<Note> = serde_json::from_slice(&notes).unwrap_or_default();
    for note in notes {
        match note.restore() {
            Ok(true) => have_systemd_know(&note),
            Ok(false) => {}
            Err(error) => tracing::warn!(?note, %error, "pod's cgroup not restored"),
        }
    }
}

/// Tells systemd the restored value of the pod's cgroup. Otherwise the next daemon-reload would set
/// the dead shim's value again. Does not wait for systemd, because containerd gives `delete` little
/// time.
fn have_systemd_know(note: &Note) {
    let Some((unit, property)) = note.systemd() else {
        return;
    };
    let mut command = systemctl();
    command.args(["--no-block", "set-property", "--runtime", unit, property]);
    if let Err(error) = sys::spawn(&mut command) {
        tracing::warn!(%error, "cannot run systemctl");
    }
}

fn systemctl() -> Command {
    let mut command = Command::new("systemctl");
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(Stdio::null());
    command
}
