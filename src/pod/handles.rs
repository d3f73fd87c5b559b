//! The engine's handles of a container, and what is under way with them.
//!
//! Nothing is decided by what is in here: the core knows how the container is.

use std::sync::Arc;
use std::time::SystemTime;

use containerd_shim_protos::protobuf::well_known_types::any::Any;
use tokio::sync::oneshot;

use crate::engine::{Cgroup, Halt, Init, OomWatch, Restoration};

use super::cgroup::Figures;
use super::signals::SignalOrder;
use super::{CallError, Kind};

/// The handles of a container.
#[derive(Debug, Default)]
pub(super) struct Handles {
    /// The init process, which may have exited.
    init: Option<Arc<dyn Init>>,
    /// Where its processes are, or were. `None` if that could not be found out.
    cgroup: Option<Arc<dyn Cgroup>>,
    /// Cancels what is under way for the init process.
    halt: Halt,
    /// Dropped when the init process exits, which ends a release of it.
    releasing: Option<oneshot::Sender<()>>,
    oom_watch: Option<Box<dyn OomWatch>>,
    /// When the init process was collected.
    exited_at: Option<SystemTime>,
    /// The last figures of its cgroup, which the cleanup removes.
    figures: Option<Any>,
    /// The checkpoint that it is to be restored from.
    restoration: Option<Box<dyn Restoration>>,
    /// Signals that are delivered when it is restored.
    pending_signals: Vec<SignalOrder>,
}

impl Handles {
    /// The init process, which may have exited.
    pub fn init(&self) -> Option<&Arc<dyn Init>> {
        self.init.as_ref()
    }

    /// The init process, and what cancels a call to it.
    ///
    /// # Errors
    ///
    /// If there was none yet.
    pub fn init_and_halt(&self) -> Result<(Arc<dyn Init>, Halt), CallError> {
        let init = self.init.clone().ok_or_else(|| {
            let message = "it has no process: it is still to be restored";
            CallError::new(Kind::FailedPrecondition, message)
        })?;
        Ok((init, self.halt.clone()))
    }

    /// Cancels what is under way for the init process.
    pub fn halt(&self) -> &Halt {
        &self.halt
    }

    /// Replaces the means of canceling for the next init process, and returns it.
    pub fn renew_halt(&mut self) -> Halt {
        self.halt = Halt::default();
        self.halt.clone()
    }

    /// The cgroup of its processes. `None` if that is not known.
    pub fn cgroup(&self) -> Option<&Arc<dyn Cgroup>> {
        self.cgroup.as_ref()
    }

    /// Its figures: those that were kept at its exit, or its cgroup's.
    pub fn figures(&self) -> Option<Figures> {
        let kept = self.figures.clone().map(Figures::Last);
        kept.or_else(|| self.cgroup.clone().map(Figures::Of))
    }

    /// When the init process exited: `now` if it was not collected.
    pub fn exited_at(&mut self, now: SystemTime) -> SystemTime {
        *self.exited_at.get_or_insert(now)
    }

    // === what happens ===

    /// Takes an init process, the first or another. Its cgroup cannot always be found out at once: it is
    /// that of the last one then.
    pub fn set_init(&mut self, init: Arc<dyn Init>) {
        let cgroup = init.cgroup().or_else(|| self.cgroup.take());
        *self = Handles {
            init: Some(init),
            cgroup,
            halt: std::mem::take(&mut self.halt),
            ..Handles::default()
        };
    }

    /// Looks for its cgroup once more where it was not found. Returns true if it is known since.
    pub fn find_cgroup(&mut self) -> bool {
        if self.cgroup.is_some() {
            return false;
        }
        self.cgroup = self.init.as_ref().and_then(|init| init.cgroup());
        self.cgroup.is_some()
    }

    /// Calls `tell` when the kernel kills a process because memory has run out, until the init process
    /// exits.
    pub fn watch_memory(&mut self, tell: Box<dyn Fn() + Send + Sync>) {
        if let Some(cgroup) = &self.cgroup
            && self.exited_at.is_none()
        {
            self.oom_watch = Arc::clone(cgroup).watch_oom(tell);
        }
    }

    /// Looks now whether memory has run out: a process was killed.
    pub fn look_at_memory(&self) {
        if let Some(watch) = &self.oom_watch {
            watch.look();
        }
    }

    /// Begins a release of its program. The receiver ends when the init process exits.
    pub fn begin_release(&mut self) -> oneshot::Receiver<()> {
        let (releasing, gone) = oneshot::channel();
        if self.exited_at.is_none() {
            self.releasing = Some(releasing);
        }
        gone
    }

    /// Ends a release of its program.
    pub fn end_release(&mut self) {
        self.releasing = None;
    }

    /// Its program is being released.
    pub fn is_releasing(&self) -> bool {
        self.releasing.is_some()
    }

    /// Notes that the init process was collected. That memory ran out is told before.
    pub fn mark_exited(&mut self, at: SystemTime) {
        self.look_at_memory();
        self.oom_watch = None;
        self.releasing = None;
        self.exited_at.get_or_insert(at);
    }

    /// Keeps the figures of its cgroup, which is about to be removed.
    pub fn keep_figures(&mut self) {
        match self.cgroup.as_ref().map(|cgroup| cgroup.metrics()) {
            Some(Ok(figures)) => self.figures = Some(figures),
            Some(Err(error)) => tracing::warn!(%error, "the last figures of a container are lost"),
            None => {}
        }
    }

    // === from a checkpoint ===

    /// Keeps the checkpoint that it is restored from when its turn comes.
    pub fn set_restoration(&mut self, restoration: Box<dyn Restoration>) {
        self.restoration = Some(restoration);
    }

    /// Takes the checkpoint that it is restored from now.
    pub fn take_restoration(&mut self) -> Option<Box<dyn Restoration>> {
        self.restoration.take()
    }

    /// Keeps a signal until it is restored.
    pub fn put_off_signal(&mut self, order: SignalOrder) {
        self.pending_signals.push(order);
    }

    /// Takes the signals that were put off.
    pub fn take_signals(&mut self) -> Vec<SignalOrder> {
        std::mem::take(&mut self.pending_signals)
    }

    /// Kills the init process, which may have exited already.
    pub fn kill_init(&self) {
        if let Some(init) = &self.init
            && let Err(error) = init.end()
        {
            tracing::debug!(?init, %error, "it has exited already");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::engine::sim::SimEngine;

    #[tokio::test(start_paused = true)]
    async fn a_release_ends_when_its_init_process_exits() {
        let mut handles = Handles::default();
        handles.set_init(SimEngine::default().parked("web").await);
        let gone = handles.begin_release();
        assert!(handles.is_releasing());
        handles.mark_exited(UNIX_EPOCH);
        assert!(gone.await.is_err());
        assert!(!handles.is_releasing());
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_of_an_exit_is_that_of_the_collection() {
        let mut handles = Handles::default();
        handles.set_init(SimEngine::default().parked("web").await);
        handles.mark_exited(UNIX_EPOCH);
        handles.mark_exited(SystemTime::now());
        assert_eq!(handles.exited_at(SystemTime::now()), UNIX_EPOCH);
    }
}
