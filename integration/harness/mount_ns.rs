//! A mount namespace for one containerd.
//!
//! Shims put their sockets, and runc its state, below `/run/containerd`, wherever containerd keeps
//! its own. In a namespace in which a directory of the test is mounted there, nothing of it touches
//! the machine, tests cannot meet, and what a shim leaves behind is plain to see. A containerd that makes
//! networks does it in a network namespace of its own, in which the machine's is a loopback.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::libc;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::unistd::chdir;

/// Where shims and runc keep what is not in containerd's own directories.
pub const SHARED_STATE: &str = "/run/containerd";

/// Where a machine with cgroups of both versions has those of version 2.
const UNIFIED: &str = "/sys/fs/cgroup/unified";

/// Where the library that calls network plugins keeps what they have said, whoever calls it.
const NETWORKS: &str = "/var/lib/cni";

/// How a containerd is kept apart.
pub struct Apart {
    /// Mounted on [`SHARED_STATE`].
    pub state: PathBuf,
    /// Of cgroups only those of version 1.
    pub hides_unified: bool,
    pub own_network: bool,
}

/// Kept open, a namespace outlives its processes: a restarted containerd finds its mounts again.
pub struct MountNs {
    file: File,
    network: File,
    /// What `/proc/<pid>/ns/mnt` of a process in it reads.
    pub link: String,
}

// === impl Apart ===

impl Apart {
    /// Makes `command` start in new namespaces.
    pub fn create_in(self, command: &mut Command) {
        let hides_unified = self.hides_unified && Path::new(UNIFIED).exists();
        let networks = self.state.with_file_name("networks");
        if self.own_network {
            for dir in [Path::new(NETWORKS), &networks] {
                fs::create_dir_all(dir).expect("a directory");
            }
        }
        // The calls between fork and exec are system calls with nothing but copied memory.
        let enter = move || {
            heed_internal_signals();
            unshare(CloneFlags::CLONE_NEWNS)?;
            let none: Option<&str> = None;
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
            mount(
                Some(&self.state),
                SHARED_STATE,
                none,
                MsFlags::MS_BIND,
                none,
            )?;
            if hides_unified {
                umount2(UNIFIED, MntFlags::MNT_DETACH)?;
            }
            if self.own_network {
                mount(Some(&networks), NETWORKS, none, MsFlags::MS_BIND, none)?;
                unshare(CloneFlags::CLONE_NEWNET)?;
                raise_loopback()?;
            }
            Ok(())
        };
        // SAFETY: see above.
        unsafe { command.pre_exec(enter) };
    }
}

/// Gives the signals that glibc has for itself their default action. cargo has the tests ignore 32, as
/// each program does to those that it starts by glibc's `posix_spawn`: what a shim passed on of its own
/// could not be told from that.
fn heed_internal_signals() {
    /// What the kernel calls `sizeof(sigset_t)`.
    const SET_SIZE: usize = 8;
    let default = [0_u64; 4];
    for signal in [32, 33] {
        // SAFETY: rt_sigaction(2) reads the kernel's `struct sigaction`, which has no more than four words.
        let _ = unsafe {
            let none = std::ptr::null_mut::<u64>();
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                none,
                SET_SIZE,
            )
        };
    }
}

/// Of the network namespace that the caller is in.
fn raise_loopback() -> io::Result<()> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Inet, SockType::Datagram, flags, None)?;
    // SAFETY: all zeros are a request.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the request lives for the call, and is what this one takes.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

// === impl MountNs ===

impl MountNs {
    /// The namespace of a running process.
    pub fn of(pid: u32) -> io::Result<Self> {
        let path = format!("/proc/{pid}/ns/mnt");
        Ok(Self {
            link: std::fs::read_link(&path)?.to_string_lossy().into_owned(),
            file: File::open(path)?,
            network: File::open(format!("/proc/{pid}/ns/net"))?,
        })
    }

    /// Makes `command` start in the daemon's namespaces, in its own working directory.
    pub fn enter(&self, command: &mut Command) {
        let file = self.file.try_clone().expect("a free file descriptor");
        let network = self.network.try_clone().expect("a free file descriptor");
        let dir = command.get_current_dir().map(Path::to_owned);
        let enter = move || {
            heed_internal_signals();
            setns(network.as_fd(), CloneFlags::CLONE_NEWNET)?;
            setns(file.as_fd(), CloneFlags::CLONE_NEWNS)?;
            // Which setns has changed to the root.
            dir.as_deref().map_or(Ok(()), chdir)?;
            Ok(())
        };
        // SAFETY: system calls with memory that exists already, nothing else.
        unsafe { command.pre_exec(enter) };
    }
}
