//! A mount namespace for one containerd.
//!
//! Shims put their sockets, and runc its state, below `/run/containerd`, wherever containerd keeps
//! its own. In a namespace in which a directory of the test is mounted there, nothing of it touches
//! the machine, tests cannot meet, and what a shim leaves behind is plain to see.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::chdir;

/// Where shims and runc keep what is not in containerd's own directories.
pub const SHARED_STATE: &str = "/run/containerd";

/// Where a machine with cgroups of both versions has those of version 2.
const UNIFIED: &str = "/sys/fs/cgroup/unified";

/// Kept open, a namespace outlives its processes: a restarted containerd finds its mounts again.
pub struct MountNs {
    file: File,
    /// What `/proc/<pid>/ns/mnt` of a process in it reads.
    pub link: String,
}

impl MountNs {
    /// Makes `command` start in a new namespace that has `state` mounted on [`SHARED_STATE`] and, if
    /// so wished, of cgroups only those of version 1.
    pub fn create_in(command: &mut Command, state: &Path, hides_unified: bool) {
        let state = state.to_owned();
        let hides_unified = hides_unified && Path::new(UNIFIED).exists();
        // The calls between fork and exec are system calls with nothing but copied memory.
        let enter = move || {
            unshare(CloneFlags::CLONE_NEWNS)?;
            let none: Option<&str> = None;
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
            mount(Some(&state), SHARED_STATE, none, MsFlags::MS_BIND, none)?;
            if hides_unified {
                umount2(UNIFIED, MntFlags::MNT_DETACH)?;
            }
            Ok(())
        };
        // SAFETY: see above.
        unsafe { command.pre_exec(enter) };
    }

    /// The namespace of a running process.
    pub fn of(pid: u32) -> io::Result<Self> {
        let path = format!("/proc/{pid}/ns/mnt");
        Ok(Self {
            link: std::fs::read_link(&path)?.to_string_lossy().into_owned(),
            file: File::open(path)?,
        })
    }

    /// Makes `command` start in this namespace, in its own working directory.
    pub fn enter(&self, command: &mut Command) {
        let file = self.file.try_clone().expect("a free file descriptor");
        let dir = command.get_current_dir().map(Path::to_owned);
        let enter = move || {
            setns(file.as_fd(), CloneFlags::CLONE_NEWNS)?;
            // Which setns has changed to the root.
            dir.as_deref().map_or(Ok(()), chdir)?;
            Ok(())
        };
        // SAFETY: system calls with memory that exists already, nothing else.
        unsafe { command.pre_exec(enter) };
    }
}
