//! The cgroup of a pod, and the work that brings its values to the size that the core wants.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use usher_core::lifecycle::PodSize;
use usher_core::plan::Allotment;
use usher_engine::{EngineError, Knob, Place, PodCgroup};

use super::Sizing;

/// Pause before the first retry; each further pause is twice as long.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(1);
const TRY_AGAIN_AFTER_AT_MOST: Duration = Duration::from_secs(60);

/// After a resize, the shim looks this often whether kubelet has written new values: after 1 s, and
/// twice more after pauses that each are twice as long. When kubelet grows a pod, it tells the
/// runtime first and writes the pod's values then. When kubelet shrinks a pod, it first updates the
/// containers (`doPodResizeAction` in kubelet's `kuberuntime_manager.go`).
const LOOKS_AFTER_RESIZE: u32 = 3;

/// A cgroup that belongs to this pod alone. The shim's commands for the pod run there.
#[derive(Debug)]
pub(crate) struct OwnCgroup {
    cgroup: Arc<dyn PodCgroup>,
    /// The cgroup's values; `None` if the shim may not size the cgroup.
    sizing: Option<Sizing>,
    /// Pause before the next retry.
    try_again_after: Duration,
    /// True if a retry is scheduled.
    is_retry_scheduled: bool,
    /// Further looks at the values that follow the last resize.
    looks_left: u32,
    /// True once it was logged that systemd refuses the values.
    has_logged_refusal: bool,
}

/// Slow work that is left before a size is in force. The caller carries out the work, and reports
/// the outcome.
#[derive(Debug)]
pub(crate) struct SizeWork {
    pub cgroup: Arc<dyn PodCgroup>,
    /// After this pause, the caller calls [`OwnCgroup::begin_retry`].
    pub retry_after: Option<Duration>,
    /// The bytes to which the caller has to lower the memory limit. The outcome goes to
    /// [`OwnCgroup::note_lowered`].
    pub memory: Option<u64>,
    /// Values that the caller has to pass to systemd. The caller then reports the outcome with
    /// [`OwnCgroup::note_notified`].
    pub news: Option<Vec<(Knob, u64)>>,
}

impl OwnCgroup {
    /// Reads the cgroup's values, before the shim changes them. `allotment` is the resources of the
    /// pod's containers. If `allotment` is `None`, the shim must not size the cgroup, and reads no
    /// values.
    pub fn new(cgroup: Arc<dyn PodCgroup>, allotment: Option<&Allotment>) -> OwnCgroup {
        OwnCgroup {
            sizing: allotment.map(|allotment| Sizing::new(&*cgroup, allotment)),
            cgroup,
            try_again_after: TRY_AGAIN_AFTER,
            is_retry_scheduled: false,
            looks_left: 0,
            has_logged_refusal: false,
        }
    }

    /// The cgroup in which the shim's commands for the pod run. `None` if no cgroup charges their
    /// CPU time to the pod.
    pub fn place(&self) -> Option<Place> {
        self.cgroup.place()
    }

    /// True if the shim sizes the cgroup, and the size that was last applied is not `wanted`.
    pub fn is_outdated(&self, wanted: impl FnOnce() -> Option<PodSize>) -> bool {
        let last = self.sizing.as_ref().map(|sizing| sizing.last.as_ref());
        last.is_some_and(|last| last != Some(&wanted()))
    }

    pub fn is_lowering_memory(&self) -> bool {
        self.sizing.as_ref().is_some_and(Sizing::is_lowering)
    }

    /// Puts the size `wanted` in force; `None` restores the original values. `charged` is the
    /// memory in bytes that is charged to the containers in `wanted`. Records the original values
    /// in the bundle `note_bundle`. Returns the work that is left for the caller; `None` if the
    /// shim may not size the cgroup.
    pub fn settle(
        &mut self,
        wanted: Option<PodSize>,
        charged: u64,
        note_bundle: Option<PathBuf>,
    ) -> Option<SizeWork> {
        let sizing = self.sizing.as_mut()?;
        let left = sizing.settle(&*self.cgroup, wanted.as_ref(), charged);
        sizing.take_notes(&*self.cgroup, note_bundle);
        let news = sizing.news(&*self.cgroup);
        let is_due = left.is_due || self.looks_left > 0;
        let retries = is_due && !self.is_retry_scheduled;
        Some(SizeWork {
            cgroup: Arc::clone(&self.cgroup),
            retry_after: retries.then(|| self.schedule_retry()),
            memory: left.memory,
            news,
        })
    }

    /// Notes that kubelet resizes the pod. The caller then calls [`OwnCgroup::settle`].
    pub fn note_resize(&mut self) {
        self.looks_left = LOOKS_AFTER_RESIZE;
    }

    /// Makes the pause before the next retry short again, because the wanted size has changed.
    pub fn reset_pause(&mut self) {
        self.try_again_after = TRY_AGAIN_AFTER;
        if let Some(sizing) = &mut self.sizing {
            sizing.forget_failures();
        }
    }

    fn schedule_retry(&mut self) -> Duration {
        self.is_retry_scheduled = true;
        let after = self.try_again_after;
        self.try_again_after = after.saturating_mul(2).min(TRY_AGAIN_AFTER_AT_MOST);
        after
    }

    /// Notes that the pause before the retry is over. The caller then calls [`OwnCgroup::settle`]
    /// again.
    pub fn begin_retry(&mut self) {
        self.is_retry_scheduled = false;
        self.looks_left = self.looks_left.saturating_sub(1);
        if let Some(sizing) = &mut self.sizing {
            sizing.retry_telling();
        }
    }

    /// Notes the outcome of lowering the memory limit. The caller then calls [`OwnCgroup::settle`]
    /// again.
    pub fn note_lowered(&mut self, lowered: io::Result<()>) {
        if let Some(sizing) = &mut self.sizing {
            sizing.finish_lowering(&*self.cgroup, lowered);
        }
    }

    /// Notes that systemd was told the values, or could not be told them. Logs the first failure.
    /// The caller then calls [`OwnCgroup::settle`] again.
    pub fn note_notified(&mut self, notified: Result<(), EngineError>) {
        let Some(sizing) = &mut self.sizing else {
            return;
        };
        sizing.note_told(notified.is_ok());
        if let Err(error) = notified
            && !std::mem::replace(&mut self.has_logged_refusal, true)
        {
            tracing::warn!(%error, "cannot tell systemd the size of the pod's cgroup");
        }
    }
}
