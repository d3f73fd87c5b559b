//! The OCI runtime's commands, one method per verb.
//!
//! The command line is that of runc, which crun and others share
//! (<https://github.com/opencontainers/runc/blob/main/man/runc.8.md>).

use std::collections::BTreeSet;
use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use nix::libc;
use tokio::time::sleep;

use usher_api::runtime_options::DEFAULT_BINARY;
use usher_core::plan::Signal;
use usher_engine::{CancelToken, NamespaceError, Namespaces};
use usher_linux::cgroup::{Place, cleanup, moves, scores};
use usher_linux::probe::Commands;
use usher_linux::reaper::{Child, Expectation, Meter, Reaper};
use usher_linux::stdio::ProcessStdio;

use super::error::{RuntimeError, Verb};
use super::limits::TimeLimits;
use super::options::Options;
use super::{Bundle, config, state};

/// Default directory of runc's state, which is also the default of containerd's runc shim.
const DEFAULT_ROOT: &str = "/run/containerd/runc";

/// Time limit for thawing a container that is to be deleted.
const RESUMES_WITHIN: Duration = Duration::from_secs(2);

/// File in the bundle with the PID of the container's init.
pub(super) const INIT_PID: &str = "init.pid";

/// An OCI runtime with the options of one container.
#[derive(Clone, Debug)]
pub struct OciRuntime {
    pub(super) binary: String,
    pub(super) root: PathBuf,
    pub(super) systemd_cgroup: bool,
    pub(super) no_pivot_root: bool,
    no_new_keyring: bool,
    /// Path of criu; empty to search the PATH.
    pub(super) criu: PathBuf,
    pub(super) bundle: PathBuf,
    pub(super) reaper: Reaper,
    /// Cancels the runtime's commands, except those that kill and delete.
    pub(super) cancel_token: CancelToken,
    /// Time limit of each command; `None` for the default limits.
    pub(super) within: Option<Duration>,
    /// Time limit of deletions, unless `within` is set.
    pub(super) limits: Arc<TimeLimits>,
    /// Cgroup of the runtime's commands; `None` if they run in the shim's cgroup.
    pub(super) place: Option<Place>,
}

impl OciRuntime {
    /// Makes the runtime that `options` name, for the container in `bundle`. The runtime keeps its
    /// state in a directory for each of containerd's namespaces.
    pub fn new(options: &Options, namespace: &str, bundle: &Path, reaper: Reaper) -> OciRuntime {
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        OciRuntime {
            binary: given(&options.binary_name).unwrap_or_else(|| DEFAULT_BINARY.to_owned()),
            root: Path::new(given(&options.root).as_deref().unwrap_or(DEFAULT_ROOT))
                .join(namespace),
            systemd_cgroup: options.systemd_cgroup,
            no_pivot_root: options.no_pivot_root,
            no_new_keyring: options.no_new_keyring,
            criu: PathBuf::from(&options.criu_path),
            bundle: bundle.to_owned(),
            reaper,
            cancel_token: CancelToken::default(),
            within: None,
            limits: Arc::default(),
            place: None,
        }
    }

    /// Sets the time limit of each command.
    pub fn within(&mut self, limit: Duration) {
        self.within = Some(limit);
    }

    /// Returns a copy whose commands are canceled by `token`, except those that kill and delete.
    pub fn under(&self, token: &CancelToken) -> OciRuntime {
        OciRuntime {
            cancel_token: token.clone(),
            ..self.clone()
        }
    }

    /// Directory in which the runtime keeps the state of container `id`.
    pub fn state_dir(&self, id: &str) -> PathBuf {
        self.root.join(id)
    }

    /// Cgroups that may be left of container `id` with configuration `config`.
    pub fn leftover_cgroups(&self, id: &str, config: &Bundle) -> BTreeSet<PathBuf> {
        let noted = state::cgroups(&self.state_dir(id));
        cleanup::of_container(noted, config.cgroups_path(), id)
    }

    /// True if the container's init runs on this kernel, so that the shim can signal it. If a
    /// runtime starts a VM, the process that it reports is not the container's init. runc's and
    /// crun's state files show that a container is native.
    pub fn is_native(&self, id: &str) -> bool {
        state::is_native(&self.state_dir(id))
    }

    /// Checks that a container's init is in the namespaces that the container has to join. Checks
    /// nothing if the runtime starts a VM.
    ///
    /// # Errors
    ///
    /// [`NamespaceError`] if the init is in another namespace.
    pub fn is_in(&self, id: &str, init: &Child, joins: &Namespaces) -> Result<(), NamespaceError> {
        match self.is_native(id) {
            true => joins.hold(init.pid()),
            false => Ok(()),
        }
    }

    /// Creates a container. Returns its init process, which waits to execute the program.
    ///
    /// # Errors
    ///
    /// [`RuntimeError`], with the runtime's message.
    pub async fn create(&self, id: &str, stdio: ProcessStdio) -> Result<Child, RuntimeError> {
        let expectation = self.reaper.expect();
        let pid_file = self.init_pid_file();
        let mut command = self.command(Verb::Create);
        command
            .arg("--bundle")
            .arg(&self.bundle)
            .arg("--pid-file")
            .arg(&pid_file);
        command.console_socket(&stdio);
        if self.no_pivot_root {
            command.arg("--no-pivot");
        }
        if self.no_new_keyring {
            command.arg("--no-new-keyring");
        }
        command.arg(id);
        moves::prepare_for_container();
        let outcome = self.run(command, Some(stdio)).await;
        self.new_init(Verb::Create, outcome, expectation, &pid_file)
            .await
    }

    /// Removes an earlier PID file of the container's init, and returns the file's path.
    pub(super) fn init_pid_file(&self) -> PathBuf {
        let file = self.bundle.join(INIT_PID);
        // The removal fails the first time, because the file does not exist yet.
        let _ = std::fs::remove_file(&file);
        file
    }

    /// Returns the process that a command has made, or kills the process if the command was cut
    /// short.
    pub(super) async fn new_init(
        &self,
        verb: Verb,
        outcome: Result<(), RuntimeError>,
        expectation: Expectation,
        pid_file: &Path,
    ) -> Result<Child, RuntimeError> {
        if let Err(error) = outcome {
            if error.is_cut_short()
                && let Ok(pid) = read_pid(verb, pid_file).await
                // The kill of the command may have killed the process, too.
                && self.reaper.may_claim(pid)
            {
                let child = expectation.claim(pid);
                // The kill fails if the process has exited already.
                let _ = self.reaper.kill(child.pid(), Signal::KILL.number());
            }
            return Err(error);
        }
        Ok(expectation.claim(read_pid(verb, pid_file).await?))
    }

    /// Starts a created container.
    ///
    /// # Errors
    ///
    /// [`RuntimeError`], with the runtime's message.
    pub async fn start(&self, id: &str) -> Result<(), RuntimeError> {
        self.simple(Verb::Start, [id]).await
    }

    /// Executes `process` (an OCI process as JSON) in a container, with an OOM score of at most
    /// `oom_score`.
    ///
    /// # Errors
    ///
    /// [`RuntimeError`], with the runtime's message.
    pub async fn exec(
        &self,
        id: &str,
        process: &[u8],
        oom_score: Option<i32>,
        stdio: ProcessStdio,
    ) -> Result<Child, RuntimeError> {
        let limit = Verb::Exec.limit();
        self.exec_within(limit, id, process, oom_score, stdio).await
    }

    /// Repeats an exec that the caller has made before: executes `process` in container `id`,
    /// without streams. `limit` is the time limit of the runtime's command.
    ///
    /// # Errors
    ///
    /// [`RuntimeError`], with the runtime's message or because `process` is malformed.
    pub async fn exec_again(
        &self,
        id: &str,
        process: &[u8],
        oom_score: Option<i32>,
        limit: Duration,
    ) -> Result<Child, RuntimeError> {
        let process = config::unattended(process).map_err(|error| RuntimeError::Failed {
            verb: Verb::Exec,
            message: error.to_string(),
        })?;
        self.exec_within(limit, id, &process, oom_score, ProcessStdio::default())
            .await
    }

    async fn exec_within(
        &self,
        limit: Duration,
        id: &str,
        process: &[u8],
        oom_score: Option<i32>,
        stdio: ProcessStdio,
    ) -> Result<Child, RuntimeError> {
        let expectation = self.reaper.expect();
        let (file, pid_file) = (self.scratch(".process.json"), self.scratch(".pid"));
        std::fs::write(&file.0, process).map_err(|source| self.not_run(source))?;
        let mut command = self.command(Verb::Exec);
        command.limit(limit);
        command.arg("--detach").arg("--pid-file").arg(&pid_file.0);
        command.console_socket(&stdio);
        command.arg("--process").arg(&file.0).arg(id);
        moves::prepare_for_exec();
        let outcome = self.run(command, Some(stdio)).await;
        let new_init = self.new_init(Verb::Exec, outcome, expectation, &pid_file.0);
        let child = new_init.await?;
        // runc ignores the OOM score in the description of an exec's process. It gives the process
        // the score with which the container was created.
        if let Some(score) = oom_score
            && let Err(error) = scores::lower(child.pid(), score)
        {
            tracing::debug!(id, %error, "cannot lower the OOM score of an exec to {score}");
        }
        Ok(child)
    }

    /// Sends a signal to a container's init process, or to all of its processes.
    ///
    /// # Errors
    ///
    /// [`RuntimeError`], with the runtime's message.
    pub async fn kill(&self, id: &str, signal: i32, all: bool) -> Result<(), RuntimeError> {
        let mut command = self.command(Verb::Kill);
        if all {
            command.arg("--all");
        }
        command.arg(id).arg(signal.to_string());
        self.run(command, None).await
    }

    /// Freezes a container.
    ///
    /// # Errors
    ///
    /// [`RuntimeError`], with the runtime's message.
    pub async fn pause(&self, id: &str) -> Result<(), RuntimeError> {
        self.simple(Verb::Pause, [id]).await
    }

    /// Thaws a container.
    ///
    /// # Errors
    ///
    /// [`RuntimeError`], with the runtime's message.
    pub async fn resume(&self, id: &str) -> Result<(), RuntimeError> {
        self.simple(Verb::Resume, [id]).await
    }

    /// Updates a container's resources; `resources` is the OCI specification's `LinuxResources` as
    /// JSON.
    ///
    /// # Errors
    ///
    /// [`RuntimeError`], with the runtime's message.
    pub async fn update(&self, id: &str, resources: &[u8]) -> Result<(), RuntimeError> {
        let file = self.scratch(".resources.json");
        std::fs::write(&file.0, resources).map_err(|source| self.not_run(source))?;
        let mut command = self.command(Verb::Update);
        command.arg("--resources").arg(&file.0).arg(id);
        self.run(command, None).await
    }

    /// True if the error names a missing state directory: crun's message for an unknown container.
    fn is_stateless(&self, id: &str, error: &RuntimeError) -> bool {
        let state = self.state_dir(id);
        matches!(error, RuntimeError::Failed { message, .. }
            if message.contains(&state.display().to_string()) && !state.exists())
    }

    /// Removes a container that has exited, or, with `force`, any container.
    ///
    /// # Errors
    ///
    /// [`RuntimeError`], with the runtime's message; succeeds if the container is unknown.
    pub async fn delete(&self, id: &str, force: bool) -> Result<(), RuntimeError> {
        let mut deleted = match force {
            true => self.simple(Verb::Delete, ["--force", id]).await,
            false => self.simple(Verb::Delete, [id]).await,
        };
        if let Err(error) = &deleted
            && error.is_frozen()
        {
            // The container exited while the runtime paused it, and is still frozen. The thaw is a
            // part of the deletion. Like the deletion, it goes on even if the cancellation token is
            // canceled.
            let mut steady = self.clone();
            steady.cancel_token = CancelToken::default();
            steady.within(RESUMES_WITHIN);
            steady.resume(id).await?;
            deleted = self.simple(Verb::Delete, [id]).await;
        }
        match deleted {
            Err(error) if error.is_unknown_container() || self.is_stateless(id, &error) => Ok(()),
            other => other,
        }
    }

    /// Removes the runtime's state of a container before a restart in place. Unlike a deletion,
    /// this removal can be canceled.
    ///
    /// # Errors
    ///
    /// [`RuntimeError`], with the runtime's message; succeeds if the container is unknown.
    pub async fn clear(&self, id: &str) -> Result<(), RuntimeError> {
        let mut command = self.command(Verb::Delete);
        command.allow_cancel();
        command.arg("--force").arg(id);
        match self.run(command, None).await {
            Err(error) if error.is_unknown_container() || self.is_stateless(id, &error) => Ok(()),
            other => other,
        }
    }

    async fn simple<const N: usize>(
        &self,
        verb: Verb,
        arguments: [&str; N],
    ) -> Result<(), RuntimeError> {
        let mut command = self.command(verb);
        for argument in arguments {
            command.arg(argument);
        }
        self.run(command, None).await
    }

    pub(super) fn not_run(&self, source: io::Error) -> RuntimeError {
        RuntimeError::NotRun {
            binary: self.binary.clone(),
            source,
        }
    }
}

#[async_trait]
impl Commands for OciRuntime {
    fn charged(&self, place: Option<&Place>, meter: &Meter) -> Arc<dyn Commands> {
        Arc::new(OciRuntime {
            reaper: self.reaper.metered(meter),
            place: place.cloned(),
            ..self.clone()
        })
    }

    /// The command gets the user, capabilities, limits and environment of the container's program,
    /// but no streams.
    async fn execute(
        &self,
        id: &str,
        command: &[String],
        oom_score: Option<i32>,
        limit: Duration,
    ) -> Result<Child, Box<dyn Error + Send + Sync>> {
        // The shim passes a whole OCI process, because crun would execute a mere command as root.
        let process = config::process(&self.bundle, command).map_err(|error| {
            let message = error.to_string();
            RuntimeError::Failed {
                verb: Verb::Exec,
                message,
            }
        });
        let process = process?;
        let executed = self.exec_within(limit, id, &process, oom_score, ProcessStdio::default());
        Ok(executed.await?)
    }
}

/// Maximum number of attempts of a command while descriptors, memory or processes are exhausted.
/// With the pauses, the attempts take about a minute.
const TRIES: u32 = 240;
/// Pause between two attempts of a command while descriptors, memory or processes are exhausted.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(250);

/// Runs a command that no caller would retry. Retries the command for about a minute while
/// descriptors, memory or processes are exhausted.
///
/// # Errors
///
/// The command's last error.
pub async fn retry_on_exhaustion<T, F>(command: impl Fn() -> F) -> Result<T, RuntimeError>
where
    F: Future<Output = Result<T, RuntimeError>>,
{
    for _ in 1..TRIES {
        match command().await {
            Err(error) if error.is_shortage() => {
                tracing::debug!(%error, "resources exhausted: trying again");
                sleep(TRY_AGAIN_AFTER).await;
            }
            other => return other,
        }
    }
    command().await
}

pub(super) fn is_shortage(error: &io::Error) -> bool {
    let shortages = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EAGAIN];
    error
        .raw_os_error()
        .is_some_and(|errno| shortages.contains(&errno))
}

/// Reads the PID file of a process that a command has started. Tries again while file descriptors
/// are exhausted, because the process exists already, and the shim needs its PID.
async fn read_pid(verb: Verb, file: &Path) -> Result<i32, RuntimeError> {
    let read = async || match std::fs::read_to_string(file) {
        Err(source) if is_shortage(&source) => Err(RuntimeError::NotRun {
            binary: file.display().to_string(),
            source,
        }),
        read => Ok(read.unwrap_or_default()),
    };
    let written = retry_on_exhaustion(read).await?;
    match written.trim().parse() {
        Ok(pid) if pid > 0 => Ok(pid),
        _ => Err(RuntimeError::NoPid { verb, written }),
    }
}
