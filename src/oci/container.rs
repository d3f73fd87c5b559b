//! Creation, restart in place and deletion of a container.

#![allow(
    clippy::large_futures,
    reason = "the futures of these calls are freed when the call ends, unlike those of an idle pod"
)]

use std::collections::BTreeSet;
use std::future;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;

use usher_engine::catch_panic;
use usher_engine::{
    CancelToken, Cgroup, Container, CreateOptions, Created, Deletion, EngineError, InitialState,
    Namespaces, NewInit, Order, OwnSandbox, PreviousInit, Work,
};
use usher_linux::cgroup::cleanup;
use usher_linux::reaper::{Child, Reaper};
use usher_linux::rootfs;
use usher_linux::stdio::{
    self, EarlyFifos, EarlyOpener, Owner, Paths, ProcessStdio, Setting, Streams,
};

use super::checkpoint::Restore;
use super::error::RuntimeError;
use super::init::OciInit;
use super::joined::{self, Joined};
use super::restoration::OciRestoration;
use super::words::Words;
use super::{
    Bundle, OciRuntime, Options, config, exit, forget, limits, options, retry_on_exhaustion,
    shim_path,
};

/// Time limit for the OCI runtime to clean up after a canceled creation.
const DISCARDED_WITHIN: Duration = Duration::from_secs(2);

/// Time limit for deleting a container with poststop hooks. The limit is long, because a hook that
/// is cut short is never run again.
const HOOKS_END_WITHIN: Duration = Duration::from_secs(100);

/// Bundle of the pod's first container: the working directory in which containerd starts the shim.
const HOME: &str = ".";

/// Time limit for the container's earlier processes to be gone before a restart in place.
const GONE_WITHIN: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A container of an OCI runtime, with the parts of its bundle that the shim needs.
#[derive(Debug)]
pub(super) struct OciContainer {
    pub id: String,
    /// containerd's namespace.
    pub namespace: String,
    pub bundle: PathBuf,
    pub paths: Paths,
    pub options: Options,
    /// UID and GID that own the pipes of the container's processes.
    pub owner: Owner,
    pub runtime: OciRuntime,
    pub reaper: Reaper,
    pub early: EarlyOpener,
    pub words: Words,
    /// Namespaces that the container's init has to be in, also after a restart in place.
    pub joins: Namespaces,
    /// The pod's sandbox, if the shim itself has made it (without a pause container).
    pub shares: Option<Arc<OwnSandbox>>,
    /// File on the node that is mounted at the container's `terminationMessagePath`.
    pub termination_message: Option<PathBuf>,
    pub has_own_pid_namespace: bool,
    pub has_poststart_hooks: bool,
    pub has_poststop_hooks: bool,
}

/// A reference to a container. The methods of [`Container`] give each new [`OciInit`] a copy of the
/// reference, which [`OciContainer`] itself could not do. So this type implements the trait.
#[derive(Debug)]
pub(super) struct Handle(pub Arc<OciContainer>);

impl Deref for Handle {
    type Target = Arc<OciContainer>;

    fn deref(&self) -> &Arc<OciContainer> {
        &self.0
    }
}

#[async_trait]
impl Container for Handle {
    async fn create(
        &self,
        order: &Order,
        options: CreateOptions,
        token: &CancelToken,
    ) -> Result<Created, EngineError> {
        let mut runtime = self.runtime.under(token);
        runtime.within(limits::of_create(options.call_timeout));
        if let Some(sandbox) = &self.shares {
            // `share` checks that the sources of some bind mounts exist. A disk may stall this
            // check, so `share` runs on a separate thread.
            let (bundle, files) = (self.bundle.clone(), sandbox.files.clone());
            let shared = self
                .reaper
                .threads()
                .run(move || config::share(&bundle, &files));
            shared
                .await
                .map_err(EngineError::failed)?
                .map_err(EngineError::failed)?;
        }
        // The Create that is under way is completed or undone, even if its caller is gone.
        let fifos = self.early.open(&self.paths, Box::pin(future::pending()));
        self.write_score(options.oom_score);
        exit::forget(&self.bundle);
        if let Err(error) = shim_path::hand_on(Path::new(HOME), &self.bundle) {
            tracing::warn!(id = self.id, %error, "a restarted containerd may not find this shim");
        }
        let joined = Joined {
            id: self.id.clone(),
            bundle: self.bundle.clone(),
            options: self.options.clone(),
        };
        if let Err(error) = joined.record(Path::new(HOME)) {
            tracing::warn!(id = self.id, %error, "if this shim dies, the container may live on");
        }
        if self.options != Options::default() {
            options::save(&self.bundle, &self.options).map_err(EngineError::failed)?;
        }
        let mounted = rootfs::mount(&order.rootfs, &self.bundle, &self.reaper).await;
        mounted.map_err(EngineError::failed)?;
        let restore = self.restore(&order.checkpoint);
        let created =
            catch_panic(self.create_in(&runtime, restore, options.may_restart, fifos)).await;
        if created.is_err() {
            rootfs::unmount(&self.bundle, self.reaper.threads()).await;
            joined::remove(Path::new(HOME), &self.id);
        }
        created
    }

    async fn create_again(
        &self,
        last: PreviousInit,
        streams: &mut Streams,
        token: &CancelToken,
    ) -> Result<NewInit, EngineError> {
        let runtime = self.runtime.under(token);
        self.write_score(last.oom_score);
        let is_forgotten = last.is_forgotten
            || tokio::select! {
                biased;
                () = token.canceled() => false,
                is_forgotten = self.forget_directly() => is_forgotten,
            };
        if !is_forgotten {
            runtime.clear(&self.id).await?;
        }
        await_end(last.cgroup.as_deref(), token).await?;
        let setting = self.setting(&self.id, true);
        let stdio = streams.hand_over(&self.paths, &setting).await;
        let stdio = stdio.map_err(EngineError::failed)?;
        let completed = match runtime.create(&self.id, stdio).await {
            Ok(child) => self.complete(&runtime, child, streams, &last).await,
            Err(error) => Err(error.into()),
        };
        if completed.is_err() {
            // A canceled restart must end soon, because the container's exit is published only
            // afterward. So only mounts, processes and cgroups are removed here. The deletion of
            // the container later removes the rest of the state.
            if token.is_canceled() {
                let state = runtime.state_dir(&self.id);
                rootfs::unmount_state(&state, self.reaper.threads()).await;
                cleanup::kill_and_remove(&self.leftover_cgroups()).await;
            } else if let Err(error) = self.discard(&runtime).await {
                let why = "cannot delete a container that failed to restart";
                tracing::warn!(container = self.id, %error, why);
            }
        }
        Ok(OciInit::new_init(self, completed?))
    }

    async fn forget(&self) -> Result<(), EngineError> {
        Ok(self.forget_by(&self.runtime).await?)
    }

    async fn delete(&self, how: Deletion, streams: Vec<Streams>) -> Result<(), EngineError> {
        let mut runtime = self.runtime.clone();
        if self.has_poststop_hooks {
            runtime.within(HOOKS_END_WITHIN);
        }
        let removal = async {
            match how {
                Deletion::RootfsOnly => Ok(()),
                Deletion::Usual => self.forget_by(&runtime).await,
                Deletion::Forced => {
                    let canceled = CancelToken::default();
                    canceled.cancel();
                    self.discard(&runtime.under(&canceled)).await
                }
            }
        };
        // Even if the removal fails or panics, all output is passed on and everything is unmounted.
        let deleted = catch_panic(removal).await;
        let drained = async {
            stdio::drain(streams).await;
            Ok::<_, EngineError>(())
        };
        let drained = catch_panic(drained).await;
        rootfs::unmount(&self.bundle, self.reaper.threads()).await;
        deleted?;
        joined::remove(Path::new(HOME), &self.id);
        drained
    }

    fn record_exit(&self, pid: i32, code: u32, at: SystemTime) {
        exit::record(&self.bundle, &self.id, pid, code, at);
    }

    fn write_message(
        &self,
        streams: Option<&Streams>,
        message: &str,
        last_words: bool,
    ) -> Option<Work<()>> {
        let rest = stdio::write_message(streams, &self.paths, message);
        let file = self.termination_message.clone().filter(|_| last_words);
        if rest.is_none() && file.is_none() {
            return None;
        }
        let message = message.to_owned();
        let written = self.words.enqueue(Box::new(move || {
            if let Some(rest) = rest {
                rest();
            }
            if let Some(file) = file {
                stdio::leave_message(&file, &message);
            }
        }));
        written.filter(|_| last_words)
    }
}

impl OciContainer {
    /// Stream settings of a process. `id` is the ID of the container or of the exec.
    pub(super) fn setting<'a>(&'a self, id: &'a str, is_shared: bool) -> Setting<'a> {
        Setting {
            id,
            namespace: &self.namespace,
            bundle: &self.bundle,
            owner: self.owner,
            reaper: &self.reaper,
            is_shared,
        }
    }

    /// Writes the OOM score into the bundle, so that the OCI runtime creates the container with it.
    fn write_score(&self, score: Option<i32>) {
        if let Some(score) = score
            && let Err(error) = config::set_oom_score(&self.bundle, score)
        {
            tracing::warn!(%error, "OOM score {score} is not in the bundle; it will be set later");
        }
    }

    /// The checkpoint from which the container is to be restored, if any.
    fn restore(&self, checkpoint: &str) -> Option<Restore> {
        let given = |path: &str| (!path.is_empty()).then(|| PathBuf::from(path));
        let image = given(checkpoint).or_else(|| given(&self.options.criu_image_path))?;
        let work = given(&self.options.criu_work_path);
        Some(Restore { image, work })
    }

    async fn create_in(
        self: &Arc<Self>,
        runtime: &OciRuntime,
        restore: Option<Restore>,
        is_shared: bool,
        fifos: EarlyFifos,
    ) -> Result<Created, EngineError> {
        let setting = self.setting(&self.id, is_shared);
        let opened = stdio::open(&self.paths, &setting, fifos).await;
        let (stdio, mut streams) = opened.map_err(EngineError::invalid)?;
        if let Some(restore) = restore {
            streams.pass_on();
            let restoration = OciRestoration::new(Arc::clone(self), restore, stdio);
            let initial_state = InitialState::ToRestore(Box::new(restoration));
            return Ok(Created {
                initial_state,
                streams,
            });
        }
        match self.park(runtime, stdio, &mut streams).await {
            Ok(child) => Ok(Created {
                initial_state: InitialState::Parked(OciInit::new_init(self, child)),
                streams,
            }),
            Err(error) => {
                // Some runtimes leave processes or cgroups behind when they fail.
                if let Err(leftover) = self.discard(runtime).await {
                    tracing::debug!(id = self.id, error = %leftover, "nothing left by a failed create");
                }
                // All output is passed on before the caller learns of the failure.
                stdio::drain([streams]).await;
                Err(error)
            }
        }
    }

    async fn park(
        &self,
        runtime: &OciRuntime,
        stdio: ProcessStdio,
        streams: &mut Streams,
    ) -> Result<Child, EngineError> {
        let created = catch_panic(runtime.create(&self.id, stdio)).await;
        let child = created.inspect_err(|error| error.unless_said(streams))?;
        let taken = streams.take_over(!self.paths.stdin.is_empty());
        taken.await.map_err(EngineError::failed)?;
        let is_there = runtime.is_in(&self.id, &child, &self.joins);
        is_there.map_err(EngineError::failed)?;
        Ok(child)
    }

    /// Completes a container that was restarted in place and does not run its program yet. Checks
    /// the container's namespaces, and sets up its streams and resources.
    async fn complete(
        &self,
        runtime: &OciRuntime,
        child: Child,
        streams: &mut Streams,
        last: &PreviousInit,
    ) -> Result<Child, EngineError> {
        let is_there = runtime.is_in(&self.id, &child, &self.joins);
        is_there.map_err(EngineError::failed)?;
        let taken = streams.take_over(!self.paths.stdin.is_empty());
        taken.await.map_err(EngineError::failed)?;
        if self.paths.terminal {
            let connected = streams.connect_stdin(&self.paths.stdin);
            connected.map_err(EngineError::failed)?;
        }
        if let Some(resources) = &last.resources {
            let resources = resources.to_string();
            runtime.update(&self.id, resources.as_bytes()).await?;
        }
        Ok(child)
    }

    /// Cleans up the runtime state of an exited container without the OCI runtime. Returns false if
    /// the OCI runtime has to do it.
    async fn forget_directly(&self) -> bool {
        !self.has_poststop_hooks && forget::directly(&self.runtime, &self.id).await
    }

    /// Cleans up the runtime state of an exited container.
    async fn forget_by(&self, runtime: &OciRuntime) -> Result<(), RuntimeError> {
        match self.forget_directly().await {
            true => Ok(()),
            false => runtime.delete(&self.id, false).await,
        }
    }

    /// Cgroups that a failed creation may have left.
    fn leftover_cgroups(&self) -> BTreeSet<PathBuf> {
        let config = Bundle::read(&self.bundle).unwrap_or_default();
        self.runtime.leftover_cgroups(&self.id, &config)
    }

    /// Removes everything that a failed creation may have left. Some runtimes leave processes or
    /// state when they fail. A runtime that was killed may leave cgroups that it has not recorded.
    async fn discard(&self, runtime: &OciRuntime) -> Result<(), RuntimeError> {
        let cgroups = self.leftover_cgroups();
        let state = runtime.state_dir(&self.id);
        rootfs::unmount_state(&state, self.reaper.threads()).await;
        let deleted = match runtime.cancel_token.is_canceled() {
            false => retry_on_exhaustion(|| runtime.delete(&self.id, true)).await,
            // The time limit is short, because a caller waits. Processes that remain are killed
            // after this command.
            true => {
                let mut runtime = runtime.clone();
                runtime.within(DISCARDED_WITHIN);
                runtime.delete(&self.id, true).await
            }
        };
        cleanup::kill_and_remove(&cgroups).await;
        deleted
    }
}

/// Waits until the container's cgroup has no processes, so that all earlier processes are gone.
async fn await_end(cgroup: Option<&dyn Cgroup>, token: &CancelToken) -> Result<(), EngineError> {
    let Some(cgroup) = cgroup else {
        return Ok(());
    };
    let gone = async {
        while cgroup.processes() != Ok(Vec::new()) {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    let gone = tokio::select! {
        biased;
        gone = tokio::time::timeout(GONE_WITHIN, gone) => gone,
        () = token.canceled() => {
            return Err(EngineError::CutShort("restart canceled".to_owned()));
        }
    };
    gone.map_err(|_| {
        let left = cgroup.processes();
        EngineError::failed(format!(
            "earlier processes of the container are still in its cgroup: {left:?}"
        ))
    })
}
