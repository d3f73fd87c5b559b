//! Kills all processes in cgroups, even those that fork.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::sys;

use super::read::write;
use super::{below, freezer, members};

/// Pause between two checks, because killed processes take some time to disappear.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(10);

/// Maximum number of pidfds that are open at a time.
const HELD_AT_ONCE: usize = 64;

/// Kills all processes in these cgroups and in the cgroups below them. Repeats this until no
/// process is left and `is_done` returns true. Returns false if the time limit passes before.
pub(super) async fn until_empty(
    cgroups: &[PathBuf],
    within: Duration,
    mut is_done: impl FnMut() -> bool,
) -> bool {
    let begun = Instant::now();
    loop {
        // `count` calls `kill` for every cgroup. `any` would stop at the first cgroup with
        // processes.
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

/// Kills all processes in a cgroup and in the cgroups below it; returns true if there were none.
fn kill(cgroup: &Path) -> bool {
    // Freeze the cgroup, so that its processes cannot fork faster than the shim kills them.
    freezer::freeze(cgroup);
    let mut processes = Vec::new();
    let mut is_known = true;
    for directory in below(Some(cgroup.to_owned())) {
        match members(&directory) {
            Ok(members) => processes.extend(members),
            Err(error) => {
                is_known = false;
                tracing::debug!(%error, "cannot list the processes of a cgroup");
            }
        }
    }
    let own = std::process::id();
    let is_ours = processes.contains(&own);
    // The kernel writes 0 for a process in a PID namespace that the shim does not see.
    processes.retain(|pid| *pid != 0 && *pid != own);
    // v2 has `cgroup.kill` since Linux 5.14. It kills every process in the cgroup, so it cannot be
    // used if this process is in the cgroup, too.
    if !processes.is_empty() && (is_ours || write(&cgroup.join("cgroup.kill"), "1").is_err()) {
        end_members(cgroup, &processes);
    }
    // Thaw the cgroup, because in v1 a frozen process does not even die of SIGKILL. A killed
    // command of the OCI runtime may also have left the cgroup frozen.
    freezer::thaw(cgroup);
    processes.is_empty() && is_known
}

/// Kills each of `processes` that is still in the cgroup or below it. A PID in the list may have
/// been reused. So this function opens a pidfd for each process first, then reads the cgroup's
/// members again.
fn end_members(cgroup: &Path, processes: &[u32]) {
    for some in processes.chunks(HELD_AT_ONCE) {
        let held: Vec<_> = some.iter().map(|pid| (*pid, sys::hold(*pid))).collect();
        let members = below(Some(cgroup.to_owned())).filter_map(|below| members(&below).ok());
        let members: BTreeSet<u32> = members.flatten().collect();
        for (pid, held) in held.iter().filter(|(pid, _)| members.contains(pid)) {
            match held {
                Ok(held) => sys::end_held(held.as_fd()),
                // The kernel gave no pidfd: it is too old, or no descriptor is free. Kill by PID,
                // since the PID was a member of the cgroup a moment ago.
                Err(_) => sys::end(*pid),
            }
        }
    }
}
