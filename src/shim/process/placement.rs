//! The cgroup and the core scheduling group of the process that serves a pod.

use super::error::ShimError;
use usher_linux::{cgroup, sys};

/// Moves process `pid` to the cgroup that the runtime option ShimCgroup names.
///
/// # Errors
///
/// If the cgroup does not exist, or the process cannot be moved there.
pub(super) fn join_cgroup(pid: u32, cgroup: &str) -> Result<(), ShimError> {
    cgroup::join(pid, cgroup).map_err(|error| ShimError::Cgroup {
        cgroup: cgroup.to_owned(),
        error,
    })
}

/// Begins a core scheduling group for this process group, before `start` starts the shim. So
/// processes that the group starts from now on never share a core with other processes.
/// containerd's option `sched_core` requests this.
///
/// # Errors
///
/// If the kernel does not support core scheduling, or the processor has no sibling threads.
pub(super) fn begin_core_scheduling() -> Result<(), ShimError> {
    sys::create_core_scheduling_group().map_err(ShimError::CoreScheduling)
}
