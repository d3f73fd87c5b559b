//! Containers, and commands of the OCI runtime, that a dead shim left.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use usher_engine::EngineError;
use usher_linux::cgroup::{cleanup, place};
use usher_linux::reaper::Reaper;
use usher_linux::{rootfs, sys};

use super::joined::Joined;
use super::{Bundle, OciRuntime, is_command_log, options};

/// Time limit for the OCI runtime to delete a container; containerd gives `delete` five seconds in
/// all.
const DELETED_WITHIN: Duration = Duration::from_secs(2);

/// Maximum number of containers that are deleted at the same time.
const DELETED_AT_ONCE: usize = 8;

/// Time to wait for another `delete` that deletes the same container ([`WhenLocked::Wait`]).
const LOCKED_WITHIN: Duration = Duration::from_secs(3);

/// Time that a command of the runtime has to exit by itself. containerd gives `delete` five seconds
/// in all.
const COMMANDS_END_WITHIN: Duration = Duration::from_secs(2);

/// Time limit for killed commands to exit.
const PROCESSES_END_WITHIN: Duration = Duration::from_secs(1);

const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(10);

/// A container that a dead shim left.
pub(super) struct Leftover {
    id: String,
    runtime: OciRuntime,
    cgroups: BTreeSet<PathBuf>,
    /// Lock on the runtime's state of the container. The container's own `delete` and the `delete`
    /// of the pod's first container may both find this container. `None` if the runtime has no
    /// state of the container, or if the other command has held the lock for too long.
    _lock: Option<Flock<File>>,
}

/// The treatment of a container that another `delete` command is deleting.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WhenLocked {
    /// Wait for the other command, because this command reports to containerd that the container is
    /// gone.
    Wait,
    /// Leave the container to the other command, because this one has its own container to delete.
    Skip,
}

impl Leftover {
    /// Finds what is left of a container. Returns `None` if nothing is left, or if the container is
    /// left to another `delete`. The OCI runtime works in `first`, the bundle of the pod's first
    /// container, because containerd may remove the container's own bundle at any moment.
    fn find(
        namespace: &str,
        container: &Joined,
        first: &Path,
        reaper: &Reaper,
        when_locked: WhenLocked,
    ) -> Option<Leftover> {
        let (id, bundle) = (&container.id, &container.bundle);
        let mut options = container.options.clone();
        let config = Bundle::read(bundle).unwrap_or_default();
        options.systemd_cgroup |= options::implies_systemd_cgroup(None, &options, &config);
        let mut runtime = OciRuntime::new(&options, namespace, first, reaper.clone());
        runtime.within(DELETED_WITHIN);
        let was_busy = await_commands(bundle);
        let state = runtime.state_dir(id);
        let lock = lock(&state, when_locked);
        if !was_busy && !state.exists() {
            return None;
        }
        if lock.is_none() && state.exists() && when_locked == WhenLocked::Skip {
            return None;
        }
        Some(Leftover {
            id: id.clone(),
            cgroups: runtime.leftover_cgroups(id, &config),
            runtime,
            _lock: lock,
        })
    }

    /// Deletes the container, and kills all its processes even if the OCI runtime fails.
    async fn delete(self) -> Result<(), EngineError> {
        rootfs::unmount_state_now(&self.runtime.state_dir(&self.id));
        let deleted = self.runtime.delete(&self.id, true).await;
        cleanup::kill_and_remove(&self.cgroups).await;
        self.cgroups
            .iter()
            .for_each(|cgroup| place::remove_leaf(cgroup));
        deleted.map_err(EngineError::failed)
    }
}

/// Finds what is left of the pod's first container and of the others. All searches run at the same
/// time, because each may wait for a command of the OCI runtime. The search for the first container
/// may also wait for another `delete`.
pub(super) fn find_all(
    namespace: &str,
    first: &Joined,
    others: &[Joined],
    reaper: &Reaper,
) -> (Option<Leftover>, Vec<Leftover>) {
    let find = |container, when_locked| {
        Leftover::find(namespace, container, &first.bundle, reaper, when_locked)
    };
    thread::scope(|scope| {
        let search = |other| scope.spawn(move || find(other, WhenLocked::Skip));
        let searches: Vec<_> = others.iter().map(search).collect();
        let first = find(first, WhenLocked::Wait);
        let found = searches.into_iter().filter_map(|search| search.join().ok());
        (first, found.flatten().collect())
    })
}

/// Deletes the pod's first container and the others, at most [`DELETED_AT_ONCE`] of the others at a
/// time.
///
/// # Errors
///
/// If the first container cannot be deleted. Errors of the others are only logged, because
/// containerd may run `delete` for them, too.
pub(super) async fn delete_all(
    first: Option<Leftover>,
    others: Vec<Leftover>,
    reaper: &Reaper,
) -> Result<(), EngineError> {
    reaper
        .start()
        .map_err(|error| EngineError::Failed(format!("cannot handle SIGCHLD: {error}")))?;
    let permits = Arc::new(Semaphore::new(DELETED_AT_ONCE));
    let mut deletions = JoinSet::new();
    for other in others {
        let permits = Arc::clone(&permits);
        deletions.spawn(async move {
            let _permit = permits.acquire().await;
            let id = other.id.clone();
            if let Err(error) = other.delete().await {
                tracing::warn!(id, %error, "container of a dead shim not deleted");
            }
        });
    }
    let deleted = match first {
        Some(first) => first.delete().await,
        None => Ok(()),
    };
    deletions.join_all().await;
    deleted
}

/// Locks the OCI runtime's state of a container. `None` if there is no state, or if another process
/// has locked the state and does not unlock it in time.
fn lock(state: &Path, when_locked: WhenLocked) -> Option<Flock<File>> {
    let limit = match when_locked {
        WhenLocked::Wait => LOCKED_WITHIN,
        WhenLocked::Skip => Duration::ZERO,
    };
    let begun = Instant::now();
    let mut directory = File::open(state).ok()?;
    loop {
        match Flock::lock(directory, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Some(lock),
            Err(_) if begun.elapsed() >= limit => return None,
            Err((returned, _)) => directory = returned,
        }
        sleep(LOOK_AGAIN_AFTER);
    }
}

/// Waits until no command of the OCI runtime runs for the container in `bundle`, and kills commands
/// that do not exit in time. Returns true if a command was running.
///
/// Killing is the last resort, because a `create` that completes leaves a container that can be
/// deleted, whereas a killed `create` leaves cgroups that are recorded nowhere.
pub(super) fn await_commands(bundle: &Path) -> bool {
    let logs = command_logs(bundle);
    // A shim that has ended normally has removed the logs of its commands. Without logs, no command
    // can be found, so the search of all processes is left out.
    if logs.is_empty() {
        return false;
    }
    let begun = Instant::now();
    loop {
        let commands = commands_that_log_to(&logs);
        if commands.is_empty() {
            return true;
        }
        if begun.elapsed() > COMMANDS_END_WITHIN.saturating_add(PROCESSES_END_WITHIN) {
            tracing::warn!(?commands, "commands of the OCI runtime do not exit");
            return true;
        }
        if begun.elapsed() > COMMANDS_END_WITHIN {
            commands.iter().for_each(|pid| sys::end(*pid));
        }
        sleep(LOOK_AGAIN_AFTER);
    }
}

/// Log files in the bundle, one for each command under way.
fn command_logs(bundle: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(bundle).into_iter().flatten().flatten();
    let logs = entries.filter(|entry| is_command_log(&entry.file_name()));
    logs.map(|entry| entry.path()).collect()
}

/// PIDs of the processes that have one of these log files among their arguments.
fn commands_that_log_to(logs: &[PathBuf]) -> Vec<u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_one = |pid: &u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = words.split(|byte| *byte == 0);
        words.any(|word| logs.iter().any(|log| log.as_os_str().as_bytes() == word))
    };
    pids.filter(is_one).collect()
}
