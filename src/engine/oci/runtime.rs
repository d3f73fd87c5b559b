//! The OCI runtime: its commands, one method a verb.
//!
//! The command line is that of runc, which crun and others have taken over
//! (<https://github.com/opencontainers/runc/blob/main/man/runc.8.md>).

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::libc;
use tokio::time::sleep;

use crate::cgroup::{Place, moves, remains, scores};
use crate::engine::{Halt, NamespaceError, Namespaces};
use crate::plan::Signal;
use crate::reaper::{Child, Expectation, Meter, Reaper};
use crate::stdio::ProcessStdio;

use super::error::{RuntimeError, Verb};
use super::options::Options;
use super::patience::Patience;
use super::{Bundle, config, state};

/// Where runc keeps the state of containers if the options do not say otherwise; containerd's
/// runc shim has the same default.
const DEFAULT_ROOT: &str = "/run/containerd/runc";

/// How long the runtime may take to thaw a container that it is to delete.
const RESUMES_WITHIN: Duration = Duration::from_secs(2);

/// The OCI runtime if the options name none.
pub const DEFAULT_BINARY: &str = "runc";

/// An OCI runtime with the options of one container.
#[derive(Clone, Debug)]
pub struct OciRuntime {
    pub(super) binary: String,
    pub(super) root: PathBuf,
    pub(super) systemd_cgroup: bool,
    pub(super) no_pivot_root: bool,
    no_new_keyring: bool,
    /// Where criu is; empty for the PATH.
    pub(super) criu: PathBuf,
    pub(super) bundle: PathBuf,
    pub(super) reaper: Reaper,
    /// Ends its commands, but for those that kill and delete.
    pub(super) halt: Halt,
    /// How long each command may take, where that is not the usual.
    pub(super) within: Option<Duration>,
    /// How long a deletion may take, where that is not said.
    pub(super) patience: Arc<Patience>,
    /// Where its commands run; where we are if it is none.
    pub(super) place: Option<Place>,
}

impl OciRuntime {
    /// The runtime that `options` name, for the container in `bundle`. Its state is kept apart for
    /// each of containerd's namespaces.
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
            halt: Halt::default(),
            within: None,
            patience: Arc::default(),
            place: None,
        }
    }

    /// The same, for commands that run at the pod's expense: there, with their CPU time counted.
    pub fn charged(&self, place: Option<&Place>, meter: &Meter) -> OciRuntime {
        OciRuntime {
            reaper: self.reaper.metered(meter),
            place: place.cloned(),
            ..self.clone()
        }
    }

    /// From now on each command may take as long as `limit`, and not what is usual.
    pub fn within(&mut self, limit: Duration) {
        self.within = Some(limit);
    }

    /// The same, for commands that end when `halt` is called, but for those that kill and delete: what
    /// the others make is to go.
    pub fn under(&self, halt: &Halt) -> OciRuntime {
        OciRuntime {
            halt: halt.clone(),
            ..self.clone()
        }
    }

    /// Where the runtime keeps the state of container `id`.
    pub fn state_dir(&self, id: &str) -> PathBuf {
        self.root.join(id)
    }

    /// The cgroups that may be left of container `id`, which was to be as `config` wants it.
    pub fn remains(&self, id: &str, config: &Bundle) -> BTreeSet<PathBuf> {
        let noted = state::cgroups(&self.state_dir(id));
        remains::of_container(noted, config.cgroups_path(), id)
    }

    /// Whether a container's init process is what the shim takes it for: a process of this kernel
    /// that a signal can be sent to. runc and crun leave their mark; of a runtime with a machine of
    /// its own it is some other process.
    pub fn is_native(&self, id: &str) -> bool {
        state::is_native(&self.state_dir(id))
    }

    /// Whether a container's init process is in the namespaces that it was to join; with a runtime that
    /// has machines of its own it is in none of them.
    ///
    /// # Errors
    ///
    /// [`NamespaceError`] if it is in another.
    pub fn is_in(&self, id: &str, init: &Child, joins: &Namespaces) -> Result<(), NamespaceError> {
        match self.is_native(id) {
            true => joins.hold(init.pid()),
            false => Ok(()),
        }
    }

    /// Creates a container; its init process, which is parked then, is given back.
    ///
    /// # Errors
    ///
    /// [`RuntimeError`], with the runtime's own words.
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
        self.born(Verb::Create, outcome, expectation, &pid_file)
            .await
    }

    /// Where the runtime writes the process id of a container's init; one of an earlier life is gone
    /// then.
    pub(super) fn init_pid_file(&self) -> PathBuf {
        let file = self.bundle.join("init.pid");
        // There is none the first time.
        let _ = std::fs::remove_file(&file);
        file
    }

    /// The process that a command has made. One whose command was cut short is nobody's, and is ended.
    pub(super) async fn born(
        &self,
        verb: Verb,
        outcome: Result<(), RuntimeError>,
        expectation: Expectation,
        pid_file: &Path,
    ) -> Result<Child, RuntimeError> {
        if let Err(error) = outcome {
            if error.is_cut_short()
                && let Ok(pid) = read_pid(verb, pid_file).await
                // It may have been ended with its command.
                && self.reaper.may_claim(pid)
            {
                let child = expectation.claim(pid);
                // It may have ended by itself.
                let _ = self.reaper.kill(child.pid(), Signal::KILL.number());
            }
            return Err(error);
        }
        Ok(expectation.claim(read_pid(verb, pid_file).await?))
    }

    /// Lets a created container's program be executed.
    ///
    /// # Errors
    ///
    /// [`RuntimeError`], with the runtime's own words.
    pub async fn start(&self, id: &str) -> Result<(), RuntimeError> {
        self.simple(Verb::Start, [id]).await
    }

    /// Executes a process in a container: the OCI specification's process as JSON. Its OOM score is no higher
    /// than `oom_score`.
    ///
    /// # Errors
    ///
    /// [`RuntimeError`], with the runtime's own words.
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

    /// Executes a command in a container, as its own program would be: with its user, capabilities,
    /// limits and environment, but without streams, and with an OOM score that is no higher than `oom_score`.
    /// The runtime may take as long as `limit` for it.
    ///
    /// # Errors
    ///
    /// [`RuntimeError`], with the runtime's own words.
    pub async fn exec_command(
        &self,
        id: &str,
        argv: &[String],
        oom_score: Option<i32>,
        limit: Duration,
    ) -> Result<Child, RuntimeError> {
        // crun, when it is only given the words, executes them as root.
        let process = config::process(&self.bundle, argv).map_err(|error| {
            let message = error.to_string();
            RuntimeError::Failed {
                verb: Verb::Exec,
                message,
            }
        })?;
        self.exec_within(limit, id, &process, oom_score, ProcessStdio::default())
            .await
    }

    /// Executes once more in a container what its caller had executed in it before, with nobody to look
    /// at it. The OCI runtime may take `limit` for it.
    ///
    /// # Errors
    ///
    /// [`RuntimeError`], with the runtime's own words, or why it is no process.
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
        let born = self.born(Verb::Exec, outcome, expectation, &pid_file.0);
        let child = born.await?;
        // runc gives it what the container was created with, whatever the process says.
        if let Some(score) = oom_score
            && let Err(error) = scores::lower(child.pid(), score)
        {
            tracing::debug!(id, %error, "OOM score {score} is not that of a process executed in it");
        }
        Ok(child)
    }

    /// Sends a signal to a container's init process, or to all of its processes.
    ///
    /// # Errors
    ///
    /// [`RuntimeError`], with the runtime's own words.
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
    /// [`RuntimeError`], with the runtime's own words.
    pub async fn pause(&self, id: &str) -> Result<(), RuntimeError> {
        self.simple(Verb::Pause, [id]).await
    }

    /// Thaws a container.
    ///
    /// # Errors
    ///
    /// [`RuntimeError`], with the runtime's own words.
    pub async fn resume(&self, id: &str) -> Result<(), RuntimeError> {
        self.simple(Verb::Resume, [id]).await
    }

    /// Changes a container's resources: the OCI specification's `LinuxResources` as JSON.
    ///
    /// # Errors
    ///
    /// [`RuntimeError`], with the runtime's own words.
    pub async fn update(&self, id: &str, resources: &[u8]) -> Result<(), RuntimeError> {
        let file = self.scratch(".resources.json");
        std::fs::write(&file.0, resources).map_err(|source| self.not_run(source))?;
        let mut command = self.command(Verb::Update);
        command.arg("--resources").arg(&file.0).arg(id);
        self.run(command, None).await
    }

    /// Whether the runtime complains of a state directory that there is not: crun's way to say that it
    /// knows no such container.
    fn is_stateless(&self, id: &str, error: &RuntimeError) -> bool {
        let state = self.state_dir(id);
        matches!(error, RuntimeError::Failed { message, .. }
            if message.contains(&state.display().to_string()) && !state.exists())
    }

    /// Removes a container that has ended, or, with `force`, any.
    ///
    /// # Errors
    ///
    /// [`RuntimeError`], with the runtime's own words; not if the container is unknown.
    pub async fn delete(&self, id: &str, force: bool) -> Result<(), RuntimeError> {
        let mut deleted = match force {
            true => self.simple(Verb::Delete, ["--force", id]).await,
            false => self.simple(Verb::Delete, [id]).await,
        };
        if let Err(error) = &deleted
            && error.is_frozen()
        {
            // It has ended while it was being paused. Whatever else is halted, this is a part of it.
            let mut steady = self.clone();
            steady.halt = Halt::default();
            steady.within(RESUMES_WITHIN);
            steady.resume(id).await?;
            deleted = self.simple(Verb::Delete, [id]).await;
        }
        match deleted {
            Err(error) if error.is_unknown_container() || self.is_stateless(id, &error) => Ok(()),
            other => other,
        }
    }

    /// Has the runtime forget what a container was, for another life of it; of no use any more when the
    /// container is to go.
    ///
    /// # Errors
    ///
    /// [`RuntimeError`], with the runtime's own words; not if the container is unknown.
    pub async fn clear(&self, id: &str) -> Result<(), RuntimeError> {
        let mut command = self.command(Verb::Delete);
        command.can_be_halted();
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

/// How often what must be done is tried again when there are no descriptors, memory or processes for
/// it, and after what time: for a minute.
const TRIES: u32 = 240;
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(250);

/// Does what must be done: a command that nobody would ask for again is tried until there is what it
/// takes to run it, but not for ever.
///
/// # Errors
///
/// The command's.
pub async fn insist<T, F>(command: impl Fn() -> F) -> Result<T, RuntimeError>
where
    F: Future<Output = Result<T, RuntimeError>>,
{
    for _ in 1..TRIES {
        match command().await {
            Err(error) if error.is_shortage() => {
                tracing::debug!(%error, "to be tried again");
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

/// The process is there: it must not be lost because its file cannot be opened for a moment.
async fn read_pid(verb: Verb, file: &Path) -> Result<i32, RuntimeError> {
    let read = async || match std::fs::read_to_string(file) {
        Err(source) if is_shortage(&source) => Err(RuntimeError::NotRun {
            binary: file.display().to_string(),
            source,
        }),
        read => Ok(read.unwrap_or_default()),
    };
    let written = insist(read).await?;
    match written.trim().parse() {
        Ok(pid) if pid > 0 => Ok(pid),
        _ => Err(RuntimeError::NoPid { verb, written }),
    }
}
