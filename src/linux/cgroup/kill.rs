//! Kills all processes in cgroups, even those that fork.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::sys;

use super::read::write;
use super::{below, freezer, members};

/// Pause between two checks: killed processes take a moment to be gone.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(10);

/// Most pidfds open at a time.
const HELD_AT_ONCE: usize = 64;

/// Kills all processes in these cgroups and those below them, repeatedly, until none is left and
/// `is_done` returns true. False after the time limit.
pub(super) async fn until_empty(
    cgroups: &[PathBuf],
    within: Duration,
    mut is_done: impl FnMut() -> bool,
) -> bool {
    let begun = Instant::now();
    loop {
        // `count` kills in all cgroups; `any` would stop at the first with processes.
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

/// Kills the processes of a cgroup and those below it; true if there were none.
fn kill(cgroup: &Path) -> bool {
    // Frozen processes cannot fork faster than the shim kills them.
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
    // 0 stands for a process in a PID namespace that is not visible from here.
    processes.retain(|pid| *pid != 0 && *pid != own);
    // v2 has `cgroup.kill` since Linux 5.14. It would kill this process, too, if this process is in
    // the cgroup.
    if !processes.is_empty() && (is_ours || write(&cgroup.join("cgroup.kill"), "1").is_err()) {
        end_members(cgroup, &processes);
    }
    // In v1 a frozen process does not even die of SIGKILL. A killed command may also have frozen
    // the cgroup.
    freezer::thaw(cgroup);
    processes.is_empty() && is_known
}

/// Kills those of `processes` that are still in the cgroup or below it. A PID may have been reused.
/// So this function opens a pidfd for each process first, and then reads the members again.
fn end_members(cgroup: &Path, processes: &[u32]) {
    for some in processes.chunks(HELD_AT_ONCE) {
        let held: Vec<_> = some.iter().map(|pid| (*pid, sys::hold(*pid))).collect();
        let members = below(Some(cgroup.to_owned())).filter_map(|below| members(&below).ok());
        let members: BTreeSet<u32> = members.flatten().collect();
        for (pid, held) in held.iter().filter(|(pid, _)| members.contains(pid)) {
            match held {
                Ok(held) => sys::end_held(held.as_fd()),
                // Without pidfds (old kernel, no free descriptors): the PID was a member a moment
                // ago.
                Err(_) => sys::end(*pid),
            }
        }
    }
}
