//! Where the process that serves a pod belongs: its cgroup, its core scheduling group.

use crate::{cgroup, sys};

/// Moves process `pid` to the cgroup that ShimCgroup names.
///
/// # Errors
///
/// One sentence if there is no such cgroup, or the process cannot be moved there.
pub(super) fn join_cgroup(pid: u32, cgroup: &str) -> Result<(), String> {
    cgroup::join(pid, cgroup).map_err(|error| format!("ShimCgroup {cgroup:?} {error}"))
}

/// Begins a core scheduling group of its own for the processes of our process group: what they
/// start from now on never shares a core with anything else. containerd wants it with `sched_core`.
///
/// # Errors
///
/// One sentence if the kernel cannot do it, or the processor has no threads to share.
pub(super) fn begin_core_scheduling() -> Result<(), String> {
    sys::create_core_scheduling_group()
        .map_err(|error| format!("core scheduling, which SCHED_CORE asks for: {error}"))
}
