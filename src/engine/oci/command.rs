//! A command of the OCI runtime: its environment, its log, how long it may take, and what ends it.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::pin;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::sleep;

use crate::cgroup::Place;
use crate::process::ExitStatus;
use crate::reaper::Waited;
use crate::stdio::ProcessStdio;

use super::error::{RuntimeError, Verb};
use super::{OciRuntime, log};

/// What the OCI runtime gets of the shim's environment: where to find programs and libraries (criu's,
/// the hooks' own), where systemd listens, and where files may lie. All else is containerd's own affair:
/// `NOTIFY_SOCKET`, which systemd gives to it, would be mounted into the containers, and waited for.
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

/// A command of the runtime that is being put together.
pub(super) struct RuntimeCommand {
    verb: Verb,
    pub command: Command,
    log: Scratch,
    limit: Duration,
    can_be_halted: bool,
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

    /// It is of no use any more when the container is to go.
    pub fn can_be_halted(&mut self) {
        self.can_be_halted = true;
    }

    /// It may take as long as this, if that is less than usual.
    pub fn limit(&mut self, limit: Duration) {
        self.limit = self.limit.min(limit);
    }
}

impl OciRuntime {
    pub(super) fn command(&self, verb: Verb) -> RuntimeCommand {
        // A log for each command: they run side by side, and one that fails must not be given the
        // words of another.
        let log = self.scratch(LOG);
        // Made here, and not by the command when it gets that far: should we die, it is by this file
        // that one which is under way is found. Without it the command fails as it will anyway.
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
        // runc is written in Go, and its commands are too short to gain from more: as measured, a
        // create takes a tenth less time when it starts no threads to share the work.
        command.env("GOMAXPROCS", "1");
        command.arg(verb.to_string()).current_dir(&self.bundle);
        RuntimeCommand {
            verb,
            command,
            log,
            limit: self.within.unwrap_or_else(|| self.patience.limit(verb)),
            can_be_halted: verb.can_be_halted(),
        }
    }

    /// Runs a command to its end, which comes when its time is over, or when it is halted, at the
    /// latest.
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
            can_be_halted,
        } = command;
        if can_be_halted && self.halt.is_called() {
            return Err(RuntimeError::Halted { verb });
        }
        let stream = |fd: Option<OwnedFd>| fd.map_or_else(Stdio::null, Stdio::from);
        let stdio = stdio.unwrap_or_default();
        command.stdin(stream(stdio.stdin));
        command.stdout(stream(stdio.stdout));
        command.stderr(stream(stdio.stderr));
        let halt = async {
            match can_be_halted {
                true => self.halt.called().await,
                false => std::future::pending().await,
            }
        };
        let waited = self.wait_for(command, limit, halt).await;
        match waited.map_err(|source| self.not_run(source))? {
            Waited::Ended(ExitStatus::Code(0)) => Ok(()),
            Waited::Ended(status) => {
                let silence = || match (status, &self.place) {
                    // Our own program puts the command into its cgroup, and ends so if it cannot be executed.
                    (ExitStatus::Code(127), Some(_)) => format!("{:?} cannot be run", self.binary),
                    _ => format!("it ended with {} and gave no reason", status.code()),
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
                self.patience.was_late(verb);
                Err(RuntimeError::Late { verb, limit })
            }
            Waited::Halted => Err(RuntimeError::Halted { verb }),
        }
    }

    /// Spawns a command and waits for it. The disk of its program may stall, which is part of its time.
    async fn wait_for(
        &self,
        command: Command,
        limit: Duration,
        halt: impl Future<Output = ()>,
    ) -> io::Result<Waited> {
        let mut halt = pin!(halt);
        let spawned = tokio::select! {
            biased;
            child = self.reaper.spawn(command) => child,
            () = &mut halt => return Ok(Waited::Halted),
            () = sleep(limit) => return Ok(Waited::Late),
        };
        spawned?.wait_within(&self.reaper, limit, halt).await
    }

    /// A name in the bundle that no other command uses.
    pub(super) fn scratch(&self, what: &str) -> Scratch {
        let number = SCRATCH_FILES.fetch_add(1, Ordering::Relaxed);
        Scratch(self.bundle.join(format!("{SCRATCH}{number}{what}")))
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
pub(super) struct Scratch(pub PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // It lies in the bundle, which containerd removes with all that is in it.
        let _ = std::fs::remove_file(&self.0);
    }
}
