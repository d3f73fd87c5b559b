//! System calls for mounts, for the user namespaces of ID-mapped mounts, and for loop devices.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::fcntl::OFlag;
use nix::libc;
use nix::sched::{CloneFlags, clone};
use nix::unistd::pipe2;

/// An idle process in a new user namespace. The process ends when this value is dropped.
///
/// The ID maps of a user namespace can only be written while a process is in it.
#[derive(Debug)]
pub struct UserNamespaceHolder {
    pid: i32,
    /// Writing end of a pipe. The process exits when this end is closed.
    _end: OwnedFd,
}

impl UserNamespaceHolder {
    /// Starts the process in its new user namespace.
    ///
    /// # Errors
    ///
    /// `ENOSPC` or `EPERM` if the kernel allows no further user namespace, `EAGAIN`, `ENOMEM`.
    pub fn new() -> io::Result<UserNamespaceHolder> {
        let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
        UserNamespaceHolder::with_pipe(&read, write)
    }

    /// Starts the process, which exits when `end`, the writing end of `leash`, is closed.
    fn with_pipe(leash: &OwnedFd, end: OwnedFd) -> io::Result<UserNamespaceHolder> {
        /// Stack size of the process, in bytes. The process makes only a few system calls.
        const STACK: usize = 64 * 1024;
        let leash = leash.as_raw_fd();
        let child = move || {
            // The child keeps only the reading end of its pipe. Close its copies of all other
            // descriptors of the shim, such as the writing ends of this pipe and of other holders'
            // pipes.
            // SAFETY: dup2(2) takes two integers. The child has its own table of descriptors, and
            // runs only this closure. So no code in the child owns a descriptor that is replaced or
            // closed here.
            unsafe { libc::dup2(leash, 0) };
            super::close_all_from(1);
            let mut byte = [0_u8; 1];
            // SAFETY: read(2) gets the length of the buffer.
            unsafe { libc::read(0, byte.as_mut_ptr().cast(), byte.len()) };
            0
        };
        let mut stack = vec![0; STACK];
        // SAFETY: as after a fork, the child has a copy of this process's memory, with the stack,
        // but none of the other threads. The child makes three system calls, allocates nothing,
        // takes no lock, and exits without returning to this function.
        let pid = unsafe {
            clone(
                Box::new(child),
                &mut stack,
                CloneFlags::CLONE_NEWUSER,
                Some(libc::SIGCHLD),
            )
        }?;
        Ok(UserNamespaceHolder {
            pid: pid.as_raw(),
            _end: end,
        })
    }

    /// The PID of the process that holds the namespace.
    pub fn pid(&self) -> i32 {
        self.pid
    }
}

/// Copies the mount at `path`. The copy is not attached to any directory yet.
///
/// Neither nix nor libc has a wrapper for open_tree(2).
///
/// # Errors
///
/// `ENOENT` and similar for the path, `EPERM`.
pub fn clone_tree(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC;
    // SAFETY: the string ends with a zero and outlives the call.
    let fd = unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags) };
    match i32::try_from(fd) {
        // SAFETY: the kernel has just made this descriptor, and it has no other owner.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Maps the owners of the files in `tree`, a mount that is not attached yet, by the ID maps of the
/// user namespace `users`. Sets `attributes` (`MOUNT_ATTR_…`) as well.
///
/// Neither nix nor libc has a wrapper for mount_setattr(2).
///
/// # Errors
///
/// `EINVAL` if the file system does not support mapped owners, `ENOSYS` before Linux 5.12.
pub fn map_owners(tree: BorrowedFd<'_>, users: BorrowedFd<'_>, attributes: u64) -> io::Result<()> {
    let attr = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP | attributes,
        attr_clr: 0,
        propagation: 0,
        userns_fd: u64::try_from(users.as_raw_fd()).map_err(io::Error::other)?,
    };
    // SAFETY: the path is an empty string that ends with a zero. The structure outlives the call,
    // and the kernel gets the structure's size.
    let outcome = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attr,
            size_of_val(&attr),
        )
    };
    match outcome {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Attaches the mount `tree` at `target`.
///
/// Neither nix nor libc has a wrapper for move_mount(2).
///
/// # Errors
///
/// `ENOENT` and similar for the path, `EPERM`.
pub fn attach_tree(tree: BorrowedFd<'_>, target: &Path) -> io::Result<()> {
    let target = CString::new(target.as_os_str().as_bytes())?;
    // The target may be a link in `/proc`, which this flag follows.
    let flags = libc::MOVE_MOUNT_F_EMPTY_PATH | libc::MOVE_MOUNT_T_SYMLINKS;
    // SAFETY: both strings end with a zero and outlive the call.
    let outcome = unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_FDCWD,
            target.as_ptr(),
            flags,
        )
    };
    match outcome {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// `struct loop_info64` of `linux/loop.h`.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config` of `linux/loop.h`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// Returns the number of an unused loop device. `control` is `/dev/loop-control`.
///
/// # Errors
///
/// If the kernel allows no further loop device.
pub fn free_loop_device(control: BorrowedFd<'_>) -> io::Result<i32> {
    const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4c82;
    // SAFETY: this request takes no argument.
    match unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) } {
        number if number >= 0 => Ok(number),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Attaches `file` to the loop device, until the device is neither open nor mounted.
///
/// # Errors
///
/// `EBUSY` if the device is in use; `EINVAL` on Linux before 5.8.
pub fn attach_loop_device(
    device: BorrowedFd<'_>,
    file: BorrowedFd<'_>,
    read_only: bool,
    direct: bool,
) -> io::Result<()> {
    const LOOP_CONFIGURE: libc::Ioctl = 0x4c0a;
    const READ_ONLY: u32 = 1;
    const AUTOCLEAR: u32 = 4;
    const DIRECT_IO: u32 = 16;
    let flag = |set: bool, flag: u32| if set { flag } else { 0 };
    let config = LoopConfig {
        fd: u32::try_from(file.as_raw_fd()).map_err(io::Error::other)?,
        block_size: 0,
        info: LoopInfo {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags: AUTOCLEAR | flag(read_only, READ_ONLY) | flag(direct, DIRECT_IO),
            file_name: [0; 64],
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        },
        reserved: [0; 8],
    };
    // SAFETY: the request takes this structure, which outlives the call.
    match unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::ProcessStat;

    /// Waits five seconds at most until a child has exited, and collects it. If the child still
    /// runs then, kills it and returns false.
    fn exits(pid: i32) -> bool {
        let has_exited = || ProcessStat::read(pid).map_or(true, |stat| stat.is_exiting());
        let tries = std::iter::repeat_with(|| std::thread::sleep(Duration::from_millis(10)));
        let exited = tries.take(500).any(|()| has_exited());
        if !exited {
            let _ = crate::sys::kill(pid, libc::SIGKILL);
        }
        let _ = nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(pid), None);
        exited
    }

    #[test]
    fn holders_that_start_at_the_same_time_exit() {
        let pipes = [(); 2].map(|()| pipe2(OFlag::O_CLOEXEC).unwrap());
        let holders =
            pipes.map(|(read, write)| UserNamespaceHolder::with_pipe(&read, write).unwrap());
        let pids = holders.map(|holder| holder.pid());
        assert_eq!(pids.map(exits), [true, true]);
    }
}
