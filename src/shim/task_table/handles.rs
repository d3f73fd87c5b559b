//! The engine's handles of a container, and the state of engine calls that are under way.
//!
//! No decision depends on this module, because the core knows the state of the container.

use std::sync::Arc;
use std::time::SystemTime;

use containerd_shim_protos::protobuf::well_known_types::any::Any;
use tokio::sync::oneshot;

use usher_engine::{CancelToken, Cgroup, Init, OomWatch, Restoration};

use crate::calls::{CallError, Figures, Kind};

use super::outcome::kill_init;

/// The engine's handles of a container.
#[derive(Debug, Default)]
pub struct Handles {
    /// The init process, which may have exited.
    init: Option<Arc<dyn Init>>,
    /// The cgroup of the container's processes. `None` if the cgroup was not found.
    cgroup: Option<Arc<dyn Cgroup>>,
    /// The token that cancels the work under way for the init process.
    cancel_token: CancelToken,
    /// Sender that is kept while a release is under way; the engine's release has the receiver.
    /// When the init process exits, the sender is dropped, and the engine then ends the release.
    releasing: Option<oneshot::Sender<()>>,
    oom_watch: Option<Box<dyn OomWatch>>,
    /// Time at which the shim collected the exited init process (`wait(2)`).
    exited_at: Option<SystemTime>,
    /// The last metrics of the container's cgroup, kept because the cleanup removes the cgroup.
    figures: Option<Any>,
    /// The checkpoint from which the container will be restored.
    restoration: Option<Box<dyn Restoration>>,
}

impl Handles {
    /// The init process, which may have exited. `None` while the container is being created or is
    /// still to be restored.
    pub fn init(&self) -> Option<&Arc<dyn Init>> {
        self.init.as_ref()
    }

    /// The init process, which may have exited, and the token that cancels a call to this process.
    ///
    /// # Errors
    ///
    /// [`Kind::FailedPrecondition`] if there is no process yet.
    pub fn init_and_cancel_token(&self) -> Result<(Arc<dyn Init>, CancelToken), CallError> {
        let init = self.init.clone().ok_or_else(|| {
            let message = "the container has no process yet: it is still to be restored";
            CallError::new(Kind::FailedPrecondition, message)
        })?;
        Ok((init, self.cancel_token.clone()))
    }

    pub fn cancel_token(&self) -> &CancelToken {
        &self.cancel_token
    }

    /// Replaces the cancellation token for the next init process, and returns the new token. Does
    /// not cancel the old token.
    pub fn renew_cancel_token(&mut self) -> CancelToken {
        self.cancel_token = CancelToken::default();
        self.cancel_token.clone()
    }

    /// The cgroup of the container's processes. `None` if the cgroup was not found, or the
    /// container has had no process yet.
    pub fn cgroup(&self) -> Option<&Arc<dyn Cgroup>> {
        self.cgroup.as_ref()
    }

    /// The source of the container's metrics: the last metrics if they were kept, or the cgroup.
    /// `None` if the cgroup is unknown.
    pub fn figures(&self) -> Option<Figures> {
        let kept = self.figures.clone().map(Figures::Last);
        kept.or_else(|| self.cgroup.clone().map(Figures::Of))
    }

    /// Time at which the shim collected the exited init process. If the shim has not collected the
    /// process yet, records `now` as this time.
    pub fn exited_at(&mut self, now: SystemTime) -> SystemTime {
        *self.exited_at.get_or_insert(now)
    }

    /// Stores an init process: the first one, or the next one after a restart in place. If the
    /// cgroup of the process is not found, the cgroup of the previous process stays. All else about
    /// the previous process is forgotten, except the cancellation token.
    pub fn set_init(&mut self, init: Arc<dyn Init>) {
        let cgroup = init.cgroup().or_else(|| self.cgroup.take());
        *self = Handles {
            init: Some(init),
            cgroup,
            cancel_token: std::mem::take(&mut self.cancel_token),
            ..Handles::default()
        };
    }

    /// Looks for the cgroup again if it was not found before. Returns true if this call has found
    /// the cgroup.
    pub fn find_cgroup(&mut self) -> bool {
        if self.cgroup.is_some() {
            return false;
        }
        self.cgroup = self.init.as_ref().and_then(|init| init.cgroup());
        self.cgroup.is_some()
    }

    /// Calls `tell` from now on after each OOM kill in the container, until the init process exits.
    /// Does nothing if the cgroup is unknown.
    pub fn watch_memory(&mut self, tell: Box<dyn Fn() + Send + Sync>) {
        if let Some(cgroup) = &self.cgroup
            && self.exited_at.is_none()
        {
            self.oom_watch = Arc::clone(cgroup).watch_oom(tell);
        }
    }

    /// Checks for an OOM kill now, because a process was killed.
    pub fn look_at_memory(&self) {
        if let Some(watch) = &self.oom_watch {
            watch.look();
        }
    }

    /// Notes that the caller begins to release the program. The returned receiver gets an error
    /// when the init process exits. The caller then has to stop the release.
    pub fn begin_release(&mut self) -> oneshot::Receiver<()> {
        let (releasing, gone) = oneshot::channel();
        if self.exited_at.is_none() {
            self.releasing = Some(releasing);
        }
        gone
    }

    /// Notes that the release has ended: the program now runs, or could not be executed. Called
    /// after the first release and after each restart in place.
    pub fn end_release(&mut self) {
        self.releasing = None;
    }

    /// True while the program is being released.
    pub fn is_releasing(&self) -> bool {
        self.releasing.is_some()
    }

    /// Notes that the init process was collected. Reports an OOM kill first.
    pub fn mark_exited(&mut self, at: SystemTime) {
        self.look_at_memory();
        self.oom_watch = None;
        self.releasing = None;
        self.exited_at.get_or_insert(at);
    }

    /// Keeps the metrics of the container's cgroup, which is about to be removed.
    pub fn keep_figures(&mut self) {
        match self.cgroup.as_ref().map(|cgroup| cgroup.metrics()) {
            Some(Ok(figures)) => self.figures = Some(figures),
            Some(Err(error)) => {
                tracing::warn!(%error, "cannot read the last metrics of a container")
            }
            None => {}
        }
    }

    /// Keeps the checkpoint until the core releases the container.
    pub fn set_restoration(&mut self, restoration: Box<dyn Restoration>) {
        self.restoration = Some(restoration);
    }

    /// Moves the checkpoint out of the table, so that the container can be restored from it. `None`
    /// if the container has no checkpoint, or if it was moved out before.
    pub fn take_restoration(&mut self) -> Option<Box<dyn Restoration>> {
        self.restoration.take()
    }

    /// Kills the init process, which may have exited already.
    pub fn kill_init(&self) {
        if let Some(init) = &self.init {
            kill_init(&**init);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use usher_engine::sim::SimEngine;

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
    async fn the_time_of_an_exit_is_that_of_its_collection() {
        let mut handles = Handles::default();
        handles.set_init(SimEngine::default().parked("web").await);
        handles.mark_exited(UNIX_EPOCH);
        handles.mark_exited(SystemTime::now());
        assert_eq!(handles.exited_at(SystemTime::now()), UNIX_EPOCH);
    }
}
