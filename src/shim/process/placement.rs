//! The cgroup and the core scheduling group of the process that serves a pod.

use usher_linux::{cgroup, sys};

/// Moves process `pid` to the cgroup that the runtime option ShimCgroup names.
///
/// # Errors
///
/// One sentence if there is no such cgroup, or the process cannot be moved there.
pub(super) fn join_cgroup(pid: u32, cgroup: &str) -> Result<(), String> {
    cgroup::join(pid, cgroup).map_err(|error| format!("ShimCgroup {cgroup:?} {error}"))
}

/// Begins a core scheduling group for this process group. So processes that the group starts from
/// now on never share a core with other processes. containerd's option `sched_core` requests this.
///
/// # Errors
///
/// One sentence if the kernel does not support it, or the processor has no sibling threads.
pub(super) fn begin_core_scheduling() -> Result<(), String> {
    sys::create_core_scheduling_group()
        .map_err(|error| format!("core scheduling, which SCHED_CORE asks for: {error}"))
}
