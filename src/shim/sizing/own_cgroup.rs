//! The cgroup of a pod, and the work that brings its values to the size that the core wants.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;
use usher_core::lifecycle::PodSize;
use usher_core::plan::Allotment;
use usher_engine::{EngineError, Knob, Place, PodCgroup};

use super::Sizing;

/// Pause before the first retry; each further pause is twice as long.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(1);
const TRY_AGAIN_AFTER_AT_MOST: Duration = Duration::from_secs(60);

/// Number of further looks at the cgroup after a resize: 1 s, 3 s and 7 s later. kubelet writes a
/// pod's values only after it has told the runtime about the resize. If the pod shrinks, kubelet
/// first updates the containers (`doPodResizeAction` in kubelet's `kuberuntime_manager.go`).
const LOOKS_AFTER_RESIZE: u32 = 3;

/// Maximum time for which a container waits until systemd has confirmed a higher memory limit. A
/// daemon-reload takes seconds on a large node. A systemd that hangs writes no former limit.
const RAISED_WITHIN: Duration = Duration::from_secs(5);

/// A cgroup that belongs to this pod alone. The shim's commands for the pod run there.
#[derive(Debug)]
pub(crate) struct OwnCgroup {
    cgroup: Arc<dyn PodCgroup>,
    /// The cgroup's values; `None` if the shim may not size the cgroup.
    sizing: Option<Sizing>,
    /// The size that was last applied. `None` before the first; `Some(None)` for the original
    /// values.
    last: Option<Option<PodSize>>,
    /// Pause before the next retry.
    try_again_after: Duration,
    /// The retry that is scheduled.
    scheduled: Option<RetryId>,
    next_retry: RetryId,
    /// Further looks at the values that follow the last resize.
    looks_left: u32,
    /// True once it was logged that systemd refuses the values.
    has_logged_refusal: bool,
    /// True while systemd may write a memory limit that is too low for the containers, because it is
    /// still being told the new one.
    is_raising_memory: watch::Sender<bool>,
}

/// Tells a scheduled retry from earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RetryId(u64);

/// Slow work that is left before a size is in force. The caller carries out the work, and reports
/// the outcome.
#[derive(Debug)]
pub(crate) struct SizeWork {
    pub cgroup: Arc<dyn PodCgroup>,
    /// After this pause, the caller calls [`OwnCgroup::begin_retry`].
    pub retry_after: Option<(Duration, RetryId)>,
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
            last: None,
            try_again_after: TRY_AGAIN_AFTER,
            scheduled: None,
            next_retry: RetryId(0),
            looks_left: 0,
            has_logged_refusal: false,
            is_raising_memory: watch::Sender::new(false),
        }
    }

    /// The cgroup in which the shim's commands for the pod run. `None` if no cgroup charges their
    /// CPU time to the pod.
    pub fn place(&self) -> Option<Place> {
        self.cgroup.place()
    }

    /// True if the shim sizes the cgroup, and the size that was last applied is not `wanted`.
    pub fn is_outdated(&self, wanted: impl FnOnce() -> Option<PodSize>) -> bool {
        self.sizing.is_some() && self.last.as_ref() != Some(&wanted())
    }

    pub fn is_lowering_memory(&self) -> bool {
        self.sizing.as_ref().is_some_and(Sizing::is_lowering)
    }

    /// The end of the time in which systemd may write a memory limit that is too low for the
    /// containers: it has confirmed the new limit, cannot be told, or has not answered in time.
    /// `None` if systemd holds no such limit.
    pub fn memory_raised(&self) -> Option<impl Future<Output = ()> + Send + use<>> {
        let mut raising = self.is_raising_memory.subscribe();
        let is_raising = *raising.borrow();
        is_raising.then_some(async move {
            // The wait fails only if it takes too long, or the shim has let go of the cgroup.
            let raised = raising.wait_for(|is_raising| !is_raising);
            let _ = timeout(RAISED_WITHIN, raised).await;
        })
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
        // kubelet tells systemd its own values soon, and these must come last. But systemd must not
        // write a former, lower value until then.
        let only_raised = self.looks_left == LOOKS_AFTER_RESIZE;
        let news = sizing.news(&*self.cgroup, only_raised);
        let is_raising = sizing.is_raising_memory(wanted.as_ref());
        self.is_raising_memory.send_replace(is_raising);
        let is_due = left.is_due || self.looks_left > 0;
        let retries = is_due && self.scheduled.is_none();
        self.last = Some(wanted);
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

    /// Makes the pause before the next retry short again, because the wanted size has changed. A
    /// retry that is scheduled is forgotten.
    pub fn reset_pause(&mut self) {
        self.try_again_after = TRY_AGAIN_AFTER;
        self.scheduled = None;
        if let Some(sizing) = &mut self.sizing {
            sizing.measure_again();
        }
    }

    fn schedule_retry(&mut self) -> (Duration, RetryId) {
        let id = self.next_retry;
        self.next_retry = RetryId(id.0.wrapping_add(1));
        self.scheduled = Some(id);
        let after = self.try_again_after;
        self.try_again_after = after.saturating_mul(2).min(TRY_AGAIN_AFTER_AT_MOST);
        (after, id)
    }

    /// Notes that the pause before a retry is over. If the retry was not forgotten, returns true,
    /// and the caller calls [`OwnCgroup::settle`] again.
    pub fn begin_retry(&mut self, id: RetryId) -> bool {
        if self.scheduled != Some(id) {
            return false;
        }
        self.scheduled = None;
        self.looks_left = self.looks_left.saturating_sub(1);
        if let Some(sizing) = &mut self.sizing {
            sizing.retry_telling();
            sizing.measure_again();
        }
        true
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
