//! The OCI runtime: its commands, one method a verb.
//!
//! The command line is that of runc, which crun and others have taken over
//! (<https://github.com/opencontainers/runc/blob/main/man/runc.8.md>).

mod bundle;
mod checkpoint;
mod config;
mod log;
pub mod options;
mod release;
mod resources;

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::libc;
use thiserror::Error;
use tokio::time::sleep;

use crate::cgroup::moves;
use crate::lifecycle::ExitStatus;
use crate::reaper::{Child, Reaper};

pub use bundle::{Bundle, BundleError};
pub use checkpoint::{Checkpoint, Restore};
pub use config::set_oom_score;
pub use options::Options;
pub use release::{await_execution, release};
pub use resources::Resources;

/// Where runc keeps the state of containers if the options do not say otherwise; containerd's
/// runc shim has the same default.
const DEFAULT_ROOT: &str = "/run/containerd/runc";

/// The OCI runtime if the options name none.
pub const DEFAULT_BINARY: &str = "runc";

/// An OCI runtime with the options of one container.
#[derive(Clone, Debug)]
pub struct OciRuntime {
    binary: String,
    root: PathBuf,
    systemd_cgroup: bool,
    no_pivot_root: bool,
    no_new_keyring: bool,
    /// Where criu is; empty for the PATH.
    criu: PathBuf,
    bundle: PathBuf,
    reaper: Reaper,
}

/// A command of the OCI runtime failed.
#[derive(Debug, Error)]
pub enum RuntimeError {
    #[error("OCI runtime {binary:?} cannot be run: {source}")]
    NotRun { binary: String, source: io::Error },
    #[error("OCI runtime {verb} failed: {message}")]
    Failed { verb: Verb, message: String },
    #[error("OCI runtime {verb} wrote {written:?} to its pid file, expected a process id")]
    NoPid { verb: Verb, written: String },
    #[error("OCI runtime was not seen to its end: {0}")]
    Unseen(String),
}

impl RuntimeError {
    /// Whether the runtime says that it knows no such container.
    pub fn is_unknown_container(&self) -> bool {
        matches!(self, RuntimeError::Failed { message, .. } if message.contains("does not exist"))
    }

    /// Whether the command could not be run for want of descriptors, memory or processes.
    pub fn is_shortage(&self) -> bool {
        matches!(self, RuntimeError::NotRun { source, .. } if is_shortage(source))
    }

    /// Whether the runtime says that it does not remove a container for being paused.
    fn is_frozen(&self) -> bool {
        matches!(self, RuntimeError::Failed { message, .. }
            if message.contains("not stopped: paused"))
    }

    /// Whether the runtime says that the process to be signalled is gone, or the whole container.
    pub fn is_process_gone(&self) -> bool {
        self.is_unknown_container()
            || matches!(self, RuntimeError::Failed { message, .. }
            if ["process already finished", "container not running", "no such process"]
                .iter()
                .any(|words| message.contains(words)))
    }
}

/// What the OCI runtime was asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Create,
    Start,
    Exec,
    Kill,
    Pause,
    Resume,
    Update,
    Checkpoint,
    Restore,
    Delete,
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verb::Create => "create",
            Verb::Start => "start",
            Verb::Exec => "exec",
            Verb::Kill => "kill",
            Verb::Pause => "pause",
            Verb::Resume => "resume",
            Verb::Update => "update",
            Verb::Checkpoint => "checkpoint",
            Verb::Restore => "restore",
            Verb::Delete => "delete",
        })
    }
}

/// Standard streams to give to a process.
#[derive(Debug, Default)]
pub struct ProcessStdio {
    pub stdin: Option<OwnedFd>,
    pub stdout: Option<OwnedFd>,
    pub stderr: Option<OwnedFd>,
    /// Where the runtime is to send the master of the terminal that it makes for the process.
    pub console_socket: Option<PathBuf>,
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
        }
    }

    /// Where the runtime keeps the state of container `id`.
    pub fn state_dir(&self, id: &str) -> PathBuf {
        self.root.join(id)
    }

    /// Whether a container's init process is what the shim takes it for: a process of this kernel
    /// that a signal can be sent to. runc and crun leave their mark; of a runtime with a machine of
    /// its own it is some other process.
    pub fn is_native(&self, id: &str) -> bool {
        let state = self.state_dir(id);
        state.join("state.json").exists() || state.join("status").exists()
    }

    /// Creates a container; its init process, which is parked then, is given back.
    ///
    /// # Errors
    ///
    /// [`RuntimeError`], with the runtime's own words.
    pub async fn create(&self, id: &str, stdio: ProcessStdio) -> Result<Child, RuntimeError> {
        let expectation = self.reaper.expect();
        let pid_file = self.bundle.join("init.pid");
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
        moves::prepare();
        self.run(command, Some(stdio)).await?;
        Ok(expectation.claim(read_pid(Verb::Create, &pid_file).await?))
    }

    /// Lets a created container's program be executed.
    ///
    /// # Errors
    ///
    /// [`RuntimeError`], with the runtime's own words.
    pub async fn start(&self, id: &str) -> Result<(), RuntimeError> {
        self.simple(Verb::Start, [id]).await
    }

    /// Executes a process in a container: the OCI specification's process as JSON.
    ///
    /// # Errors
    ///
    /// [`RuntimeError`], with the runtime's own words.
    pub async fn exec(
        &self,
        id: &str,
        process: &[u8],
        stdio: ProcessStdio,
    ) -> Result<Child, RuntimeError> {
        let file = self.scratch(".process.json");
        std::fs::write(&file.0, process).map_err(|source| self.not_run(source))?;
        self.exec_with(
            &[OsStr::new("--process"), file.0.as_os_str(), OsStr::new(id)],
            stdio,
        )
        .await
    }

    /// Executes a command in a container, as its own program would be: with its user, environment
    /// and limits, but without streams.
    ///
    /// # Errors
    ///
    /// [`RuntimeError`], with the runtime's own words.
    pub async fn exec_command(&self, id: &str, argv: &[String]) -> Result<Child, RuntimeError> {
        let argv = argv.iter().map(OsStr::new);
        // The separator: a command may begin with a dash.
        let arguments: Vec<_> = [OsStr::new("--"), OsStr::new(id)]
            .into_iter()
            .chain(argv)
            .collect();
        self.exec_with(&arguments, ProcessStdio::default()).await
    }

    async fn exec_with(
        &self,
        arguments: &[&OsStr],
        stdio: ProcessStdio,
    ) -> Result<Child, RuntimeError> {
        let expectation = self.reaper.expect();
        let pid_file = self.scratch(".pid");
        let mut command = self.command(Verb::Exec);
        command.arg("--detach").arg("--pid-file").arg(&pid_file.0);
        command.console_socket(&stdio);
        for argument in arguments {
            command.arg(argument);
        }
        moves::prepare();
        self.run(command, Some(stdio)).await?;
        Ok(expectation.claim(read_pid(Verb::Exec, &pid_file.0).await?))
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
            // It has ended while it was being paused.
            self.resume(id).await?;
            deleted = self.simple(Verb::Delete, [id]).await;
        }
        match deleted {
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

    fn command(&self, verb: Verb) -> RuntimeCommand {
        // A log for each command: they run side by side, and one that fails must not be given the
        // words of another.
        let log = self.scratch(LOG);
        // Made here, and not by the command when it gets that far: should we die, it is by this file
        // that one which is under way is found. Without it the command fails as it will anyway.
        let _ = std::fs::File::create(&log.0);
        let mut command = Command::new(&self.binary);
        command
            .arg("--root")
            .arg(&self.root)
            .arg("--log")
            .arg(&log.0);
        command.args(["--log-format", "json"]);
        if self.systemd_cgroup {
            command.arg("--systemd-cgroup");
        }
        // runc is written in Go, and its commands are too short to gain from more: as measured, a
        // create takes a tenth less time when it starts no threads to share the work.
        command.env("GOMAXPROCS", "1");
        command.arg(verb.to_string()).current_dir(&self.bundle);
        RuntimeCommand { verb, command, log }
    }

    async fn run(
        &self,
        command: RuntimeCommand,
        stdio: Option<ProcessStdio>,
    ) -> Result<(), RuntimeError> {
        let RuntimeCommand {
            verb,
            mut command,
            log,
        } = command;
        let stream = |fd: Option<OwnedFd>| fd.map_or_else(Stdio::null, Stdio::from);
        let stdio = stdio.unwrap_or_default();
        command.stdin(stream(stdio.stdin));
        command.stdout(stream(stdio.stdout));
        command.stderr(stream(stdio.stderr));
        let mut child = self
            .reaper
            .spawn(&mut command)
            .map_err(|source| self.not_run(source))?;
        // Our copies of the streams have to go, or their readers never see the end.
        drop(command);
        match child.wait().await.map_err(|source| self.not_run(source))? {
            ExitStatus::Code(0) => Ok(()),
            status => {
                let silence = || format!("it ended with {} and said nothing", status.code());
                let message = log::last_error(&log.0).unwrap_or_else(silence);
                Err(RuntimeError::Failed { verb, message })
            }
        }
    }

    /// A name in the bundle that no other command uses.
    fn scratch(&self, what: &str) -> Scratch {
        let number = SCRATCH_FILES.fetch_add(1, Ordering::Relaxed);
        Scratch(self.bundle.join(format!("{SCRATCH}{number}{what}")))
    }

    fn not_run(&self, source: io::Error) -> RuntimeError {
        RuntimeError::NotRun {
            binary: self.binary.clone(),
            source,
        }
    }
}

/// A command of the runtime that is being put together.
struct RuntimeCommand {
    verb: Verb,
    command: Command,
    log: Scratch,
}

impl RuntimeCommand {
    fn arg(&mut self, argument: impl AsRef<OsStr>) -> &mut RuntimeCommand {
        self.command.arg(argument);
        self
    }

    fn console_socket(&mut self, stdio: &ProcessStdio) {
        if let Some(socket) = &stdio.console_socket {
            self.arg("--console-socket").arg(socket);
        }
    }
}

/// How the names of files begin that lie in the bundle for a moment.
const SCRATCH: &str = "usher-";

/// What the name of a command's log ends with.
const LOG: &str = ".log";

/// Whether a file in the bundle is the log of a command that is under way, or was when the shim
/// died.
pub fn is_command_log(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(SCRATCH.as_bytes()) && name.ends_with(LOG.as_bytes())
}

/// Counts the files that this process has needed for a moment.
static SCRATCH_FILES: AtomicU64 = AtomicU64::new(0);

/// A file that is removed when nobody needs it any more.
#[derive(Debug)]
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // It lies in the bundle, which containerd removes with all that is in it.
        let _ = std::fs::remove_file(&self.0);
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

fn is_shortage(error: &io::Error) -> bool {
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
