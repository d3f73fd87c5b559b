//! Ending everything in cgroups, whoever has put it there and however it forks.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::sys;

use super::read::write;
use super::{below, freezer, members};

/// Killed processes take a moment to be gone.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(10);

/// Processes that are held by descriptors at once.
const HELD_AT_ONCE: usize = 64;

/// Kills what is in these cgroups and those below them, again and again, until nothing is left and
/// `is_done`. False if it has not come to that within this time.
pub(super) async fn until_empty(
    cgroups: &[PathBuf],
    within: Duration,
    mut is_done: impl FnMut() -> bool,
) -> bool {
    let begun = Instant::now();
    loop {
        // All of them, whatever is in the first.
        let left = cgroups.iter().filter(|cgroup| !kill(cgroup)).count();
        if left == 0 && is_done() {
            return true;
        }
        if begun.elapsed() > within {
            return false;
        }
        sleep(LOOK_AGAIN_AFTER).await;
    }
}

/// Whether there was nothing to kill.
fn kill(cgroup: &Path) -> bool {
    // What forks must not outrun us.
    freezer::freeze(cgroup);
    let mut processes = Vec::new();
    let mut is_known = true;
    for directory in below(Some(cgroup.to_owned())) {
        match members(&directory) {
            Ok(members) => processes.extend(members),
            Err(error) => {
                is_known = false;
                tracing::debug!(%error, "what is left is not known yet");
            }
        }
    }
    let own = std::process::id();
    let is_ours = processes.contains(&own);
    // Zero stands for one of another PID namespace.
    processes.retain(|pid| *pid != 0 && *pid != own);
    // The kernel does it for all at once in version 2, from Linux 5.14 on; us it would kill as well.
    if !processes.is_empty() && (is_ours || write(&cgroup.join("cgroup.kill"), "1").is_err()) {
        end_members(cgroup, &processes);
    }
    // In version 1 not even SIGKILL ends what is frozen, also if a command that was ended has done it.
    freezer::thaw(cgroup);
    processes.is_empty() && is_known
}

/// Kills those of these processes that are still in the cgroup or below it. A number may be another process's by now:
/// so each process is held by a descriptor first, and the members are read again.
fn end_members(cgroup: &Path, processes: &[u32]) {
    for some in processes.chunks(HELD_AT_ONCE) {
        let held: Vec<_> = some.iter().map(|pid| (*pid, sys::hold(*pid))).collect();
        let members = below(Some(cgroup.to_owned())).filter_map(|below| members(&below).ok());
        let members: BTreeSet<u32> = members.flatten().collect();
        for (pid, held) in held.iter().filter(|(pid, _)| members.contains(pid)) {
            match held {
                Ok(held) => sys::end_held(held.as_fd()),
                // An old kernel, or no room for descriptors: it was there a moment ago.
                Err(_) => sys::end(*pid),
            }
        }
    }
}
