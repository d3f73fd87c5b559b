//! Commands of the OCI runtime that a dead shim left running.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::is_command_log;
use usher_linux::sys;

/// Time that a command of the runtime has to exit by itself. containerd gives `delete` five seconds
/// in all.
const COMMANDS_END_WITHIN: Duration = Duration::from_secs(2);

/// Time limit for killed commands to exit.
const PROCESSES_END_WITHIN: Duration = Duration::from_secs(1);

const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(10);

/// Waits until no command of the OCI runtime runs for the container in `bundle`, and kills commands
/// that do not exit in time. A `create` that is not killed soon completes, and then its container
/// can be deleted. A `create` that is killed leaves cgroups that are recorded nowhere. Returns true
/// if a command was running.
pub(super) fn await_commands(bundle: &Path) -> bool {
    let logs = command_logs(bundle);
    // Usually the shim has ended normally, and there are no logs. Then do not search all processes.
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
