//! A mount namespace for one containerd.
//!
//! Shims put their sockets below `/run/containerd`, and runc puts its state there, even if
//! containerd keeps its own files elsewhere. In this namespace, a directory of the test is mounted
//! on `/run/containerd`. So tests do not affect the machine or one another, and a shim's leaks are
//! easy to find. A containerd that makes networks also gets a network namespace, with only a
//! loopback interface of its own.

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

/// The directory in which shims and runc write the files that are not in containerd's directories.
pub const SHARED_STATE: &str = "/run/containerd";

/// The mount point of cgroup v2 on machines that also have v1.
const UNIFIED: &str = "/sys/fs/cgroup/unified";

/// The directory in which the library of the network plugins stores results, for every program that
/// uses the library.
const NETWORKS: &str = "/var/lib/cni";

pub struct Isolation {
    /// The directory that is mounted on [`SHARED_STATE`].
    pub state: PathBuf,
    /// Hides cgroup v2 on a machine that also has v1.
    pub hides_unified: bool,
    pub own_network: bool,
}

/// The namespaces of a containerd. Open files keep them alive when all of their processes have
/// exited. So a restarted containerd finds its mounts again.
pub struct MountNs {
    file: File,
    network: File,
    /// The target of the link `/proc/<pid>/ns/mnt`, for each process in the namespace.
    pub link: String,
}

impl Isolation {
    /// Makes `command` start in new namespaces.
    pub fn create_in(self, command: &mut Command) {
        let hides_unified = self.hides_unified && Path::new(UNIFIED).exists();
        let networks = self.state.with_file_name("networks");
        if self.own_network {
            for dir in [Path::new(NETWORKS), &networks] {
                fs::create_dir_all(dir).expect("a directory");
            }
        }
        let enter = move || {
            reset_glibc_signals();
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
        // SAFETY: the closure only makes system calls, on memory that was filled before the fork.
        unsafe { command.pre_exec(enter) };
    }
}

/// Resets the signals that glibc reserves for itself to their default action.
///
/// Programs that start children by glibc's `posix_spawn` make these children ignore signal 32.
/// cargo starts the tests like this. Without the reset, a test could not tell whether the shim
/// itself ignores the signal.
fn reset_glibc_signals() {
    /// The kernel's `sizeof(sigset_t)`.
    const SET_SIZE: usize = 8;
    let default = [0_u64; 4];
    for signal in [32, 33] {
        // SAFETY: rt_sigaction(2) reads the kernel's `struct sigaction`, which has at most four
        // words.
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

/// Brings up `lo` in the caller's network namespace.
fn raise_loopback() -> io::Result<()> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Inet, SockType::Datagram, flags, None)?;
    // SAFETY: all zeros are a valid request.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    let set_flags = libc::SIOCSIFFLAGS as libc::Ioctl;
    // SAFETY: the request is valid during the call, and of the type that this ioctl takes.
    match unsafe { libc::ioctl(socket.as_raw_fd(), set_flags, &request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl MountNs {
    /// The namespaces of a running process.
    pub fn of(pid: u32) -> io::Result<Self> {
        let path = format!("/proc/{pid}/ns/mnt");
        Ok(Self {
            link: std::fs::read_link(&path)?.to_string_lossy().into_owned(),
            file: File::open(path)?,
            network: File::open(format!("/proc/{pid}/ns/net"))?,
        })
    }

    /// Makes `command` start in containerd's namespaces, and keeps the command's working directory.
    pub fn enter(&self, command: &mut Command) {
        let file = self.file.try_clone().expect("a free file descriptor");
        let network = self.network.try_clone().expect("a free file descriptor");
        let dir = command.get_current_dir().map(Path::to_owned);
        let enter = move || {
            reset_glibc_signals();
            setns(network.as_fd(), CloneFlags::CLONE_NEWNET)?;
            setns(file.as_fd(), CloneFlags::CLONE_NEWNS)?;
            // setns has changed the working directory to the root.
            dir.as_deref().map_or(Ok(()), chdir)?;
            Ok(())
        };
        // SAFETY: the closure only makes system calls, on memory that exists before the fork.
        unsafe { command.pre_exec(enter) };
    }
}
