//! A command of the OCI runtime: its environment, log, time limit and cancellation.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::pin;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use usher_core::process::ExitStatus;
use usher_linux::cgroup::Place;
use usher_linux::reaper::Waited;
use usher_linux::stdio::ProcessStdio;

use super::error::{RuntimeError, Verb};
use super::{OciRuntime, log};

/// Variables of the shim's environment that the OCI runtime gets: paths of programs and libraries
/// (for criu and hooks), systemd's sockets, and directories for files. Other variables are meant
/// for containerd alone. For example, runc would mount systemd's `NOTIFY_SOCKET` into containers
/// and wait for a notification.
const ENVIRONMENT: [&str; 8] = [
    "PATH",
    "LD_LIBRARY_PATH",
    "HOME",
    "TMPDIR",
    "XDG_CONFIG_HOME",
    "XDG_RUNTIME_DIR",
    "DBUS_SYSTEM_BUS_ADDRESS",
    "DBUS_SESSION_BUS_ADDRESS",
];

pub(super) struct RuntimeCommand {
    verb: Verb,
    pub command: Command,
    log: Scratch,
    limit: Duration,
    is_cancelable: bool,
}

impl RuntimeCommand {
    pub fn arg(&mut self, argument: impl AsRef<OsStr>) -> &mut RuntimeCommand {
        self.command.arg(argument);
        self
    }

    pub fn console_socket(&mut self, stdio: &ProcessStdio) {
        if let Some(socket) = &stdio.console_socket {
            self.arg("--console-socket").arg(socket);
        }
    }

    /// Lets the runtime's cancellation token cancel this command.
    pub fn allow_cancel(&mut self) {
        self.is_cancelable = true;
    }

    /// Lowers the time limit to `limit`, unless it is lower already.
    pub fn limit(&mut self, limit: Duration) {
        self.limit = self.limit.min(limit);
    }
}

impl OciRuntime {
    pub(super) fn command(&self, verb: Verb) -> RuntimeCommand {
        // Each command has its own log, because commands run concurrently, and an error must not
        // quote the log of another command.
        let log = self.scratch(LOG);
        // The log is created before the command starts, because `delete` finds running commands by
        // this file if the shim dies. If the log cannot be created, the command itself fails, with
        // a better message.
        let _ = std::fs::File::create(&log.0);
        let mut command = Place::command(self.place.as_ref(), &self.binary);
        command
            .arg("--root")
            .arg(&self.root)
            .arg("--log")
            .arg(&log.0);
        command.args(["--log-format", "json"]);
        if self.systemd_cgroup {
            command.arg("--systemd-cgroup");
        }
        command.env_clear();
        let given = |name: &&'static str| Some((*name, std::env::var_os(name)?));
        command.envs(ENVIRONMENT.iter().filter_map(given));
        // With a single thread for Go code, runc's create is a tenth faster (measured).
        command.env("GOMAXPROCS", "1");
        command.arg(verb.to_string()).current_dir(&self.bundle);
        RuntimeCommand {
            verb,
            command,
            log,
            limit: self.within.unwrap_or_else(|| self.limits.limit(verb)),
            is_cancelable: verb.is_cancelable(),
        }
    }

    /// Runs a command, and kills it at its time limit or when it is canceled.
    pub(super) async fn run(
        &self,
        command: RuntimeCommand,
        stdio: Option<ProcessStdio>,
    ) -> Result<(), RuntimeError> {
        let RuntimeCommand {
            verb,
            mut command,
            log,
            limit,
            is_cancelable,
        } = command;
        if is_cancelable && self.cancel_token.is_canceled() {
            return Err(RuntimeError::Canceled { verb });
        }
        let stream = |fd: Option<OwnedFd>| fd.map_or_else(Stdio::null, Stdio::from);
        let stdio = stdio.unwrap_or_default();
        command.stdin(stream(stdio.stdin));
        command.stdout(stream(stdio.stdout));
        command.stderr(stream(stdio.stderr));
        let cancel = async {
            match is_cancelable {
                true => self.cancel_token.canceled().await,
                false => std::future::pending().await,
            }
        };
        let waited = self.wait_for(command, limit, cancel).await;
        match waited.map_err(|source| self.not_run(source))? {
            Waited::Ended(ExitStatus::Code(0)) => Ok(()),
            Waited::Ended(status) => {
                let silence = || match (status, &self.place) {
                    // The shim's own program moves the command into the cgroup `place`, and exits
                    // with 127 if it cannot execute the command.
                    (ExitStatus::Code(127), Some(_)) => format!("cannot run {:?}", self.binary),
                    _ => format!("exited with {} and gave no reason", status.code()),
                };
                Err(match log::last_error(&log.0) {
                    Some(message) => RuntimeError::Failed { verb, message },
                    None => RuntimeError::Silent {
                        verb,
                        why: silence(),
                    },
                })
            }
            Waited::Late => {
                self.limits.record_timeout(verb);
                Err(RuntimeError::Late { verb, limit })
            }
            Waited::Canceled => Err(RuntimeError::Canceled { verb }),
        }
    }

    /// Spawns a command and waits for its exit. The time limit covers both, because a disk may
    /// stall the spawn.
    async fn wait_for(
        &self,
        command: Command,
        limit: Duration,
        cancel: impl Future<Output = ()>,
    ) -> io::Result<Waited> {
        let mut cancel = pin!(cancel);
        let began = Instant::now();
        let spawned = tokio::select! {
            biased;
            child = self.reaper.spawn(command) => child,
            () = &mut cancel => return Ok(Waited::Canceled),
            () = sleep(limit) => return Ok(Waited::Late),
        };
        let left = limit.saturating_sub(began.elapsed());
        spawned?.wait_within(&self.reaper, left, cancel).await
    }

    /// A unique file name in the bundle.
    pub(super) fn scratch(&self, what: &str) -> Scratch {
        let number = SCRATCH_FILES.fetch_add(1, Ordering::Relaxed);
        Scratch(self.bundle.join(format!("{SCRATCH}{number}{what}")))
    }
}

/// Prefix of temporary files in the bundle.
const SCRATCH: &str = "usher-";

/// Suffix of a command's log.
const LOG: &str = ".log";

/// True if a file in the bundle is the log of a command that is running, or was running when the
/// shim died.
pub fn is_command_log(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(SCRATCH.as_bytes()) && name.ends_with(LOG.as_bytes())
}

static SCRATCH_FILES: AtomicU64 = AtomicU64::new(0);

/// A temporary file, removed on drop.
#[derive(Debug)]
pub(super) struct Scratch(pub PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // If the file cannot be removed, containerd removes it with the bundle.
        let _ = std::fs::remove_file(&self.0);
    }
}
