//! The systemd scope for a sandbox's own processes. The scope exists only if systemd has made the
//! pod's cgroup.
//!
//! systemd takes controllers away from a slice in which no unit needs them. A container's scope
//! needs all of them (`Delegate=`), but a pod without a pause container has no scope while no
//! container runs. kubelet then considers the pod's cgroup lost, and kills the pod (`Validate` in
//! `cm/cgroup_v2_manager_linux.go`). So the sandbox's holder process gets a scope. This scope keeps
//! the controllers, like the scope of a pause container.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::unistd::dup2_stderr;
use serde::{Deserialize, Serialize};

use usher_linux::cgroup::{Layout, slice_of};

use crate::options::systemd_runs;

use super::maker::SELF;

/// Properties of the scope, as runc sets them for a container. With the default dependencies,
/// systemd would stop the scope when the node shuts down. kubelet has to stop the pods then, in
/// order.
const PROPERTIES: [&str; 2] = [
    "--property=Delegate=yes",
    "--property=DefaultDependencies=no",
];

/// A scope below the slice of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Scope {
    slice: String,
    /// Name of the unit and of its cgroup.
    pub name: String,
}

impl Scope {
    /// The scope for sandbox `id` below kubelet's cgroup `parent`. `None` if systemd has not made
    /// this cgroup, or if the node has cgroup v1, where systemd has no control of some hierarchies.
    pub fn below(parent: &str, id: &str) -> Option<Scope> {
        let is_systemds = systemd_runs() && Layout::here() == Some(Layout::V2);
        let slice = slice_of(parent).filter(|_| is_systemds)?;
        Some(Scope {
            slice: slice.to_owned(),
            name: format!("usher-{id}.scope"),
        })
    }

    /// Makes the scope with this process in it, and executes this process's program again, with
    /// these arguments. Returns only if that fails.
    pub fn execute(&self, arguments: &[&str]) -> io::Error {
        let prepared = File::open(SELF).and_then(|program| {
            // systemd-run reports its errors on standard error.
            dup2_stderr(io::stdout())?;
            fcntl(&program, FcntlArg::F_SETFD(FdFlag::empty()))?;
            Ok(program)
        });
        let program = match prepared {
            Ok(program) => program,
            Err(error) => return error,
        };
        // In the mode `--scope`, systemd-run executes the program in its own process.
        Command::new("systemd-run")
            .args(["--quiet", "--scope", "--collect"])
            .args(PROPERTIES)
            .arg(format!("--slice={}", self.slice))
            .arg(format!("--unit={}", self.name))
            .arg("--")
            .arg(format!("/proc/self/fd/{}", program.as_raw_fd()))
            .args(arguments)
            .exec()
    }
}
