//! Where the process that serves a pod belongs: its cgroup, its core scheduling group.

use std::path::PathBuf;

use cgroups_rs::fs::hierarchies;

use crate::sys;

/// Moves process `pid` to `cgroup`, a path below the root: of the unified hierarchy, or of every
/// hierarchy that has such a cgroup.
///
/// # Errors
///
/// One sentence if there is no such cgroup, or the process cannot be moved there.
pub(super) fn join_cgroup(pid: u32, cgroup: &str) -> Result<(), String> {
    let below = cgroup.trim_start_matches('/');
    let hierarchies = hierarchies::auto();
    let roots = match hierarchies.v2() {
        true => vec![hierarchies.root()],
        false => hierarchies
            .subsystems()
            .iter()
            .map(|subsystem| subsystem.to_controller().path().to_owned())
            .collect(),
    };
    let paths = roots.into_iter().map(|root| root.join(below));
    let there: Vec<PathBuf> = paths.filter(|path| path.is_dir()).collect();
    if there.is_empty() {
        return Err(format!(
            "ShimCgroup {cgroup:?} does not exist, expected the path of a cgroup"
        ));
    }
    for path in there {
        std::fs::write(path.join("cgroup.procs"), pid.to_string()).map_err(|error| {
            format!(
                "ShimCgroup {cgroup:?} cannot be joined: {}: {error}",
                path.display()
            )
        })?;
    }
    Ok(())
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
