//! System calls without a safe wrapper.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::libc;

/// A copy of the mount that `path` is on, which is mounted nowhere: `open_tree(2)`.
///
/// # Errors
///
/// `ENOENT` and such for the path, `EPERM`.
pub fn clone_mount(path: &CStr) -> io::Result<OwnedFd> {
    let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC;
    // SAFETY: the string ends with a zero and outlives the call.
    let fd = unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags) };
    match i32::try_from(fd) {
        // SAFETY: the kernel has just made it, for nobody else.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Nobody can write any more through a mount that is mounted nowhere: `mount_setattr(2)`.
///
/// # Errors
///
/// `ENOSYS` before Linux 5.12, `EPERM`.
pub fn make_read_only(mount: BorrowedFd<'_>) -> io::Result<()> {
    set_attributes(
        mount.as_raw_fd(),
        c"",
        libc::AT_EMPTY_PATH,
        libc::MOUNT_ATTR_RDONLY,
        0,
    )
}

/// Gives the mount at `path`, with all that are mounted below if it is `recursive`, `attributes`
/// (`MOUNT_ATTR_…`) and a propagation (`MS_SHARED` and such), as far as they are not 0: `mount_setattr(2)`.
///
/// # Errors
///
/// `EINVAL` if nothing is mounted there.
pub fn change_mount(
    path: &CStr,
    recursive: bool,
    attributes: u64,
    propagation: u64,
) -> io::Result<()> {
    let flags = match recursive {
        true => libc::AT_RECURSIVE,
        false => 0,
    };
    set_attributes(libc::AT_FDCWD, path, flags, attributes, propagation)
}

fn set_attributes(
    fd: i32,
    path: &CStr,
    flags: i32,
    attributes: u64,
    propagation: u64,
) -> io::Result<()> {
    let attr = libc::mount_attr {
        attr_set: attributes,
        attr_clr: 0,
        propagation,
        userns_fd: 0,
    };
    // SAFETY: the string ends with a zero; it and the structure, whose size is told, outlive the call.
    let outcome = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            fd,
            path.as_ptr(),
            flags,
            &raw const attr,
            size_of_val(&attr),
        )
    };
    done(outcome).map(drop)
}

/// Joins the session keyring of a name, which is made if there is none; its number is given back: `keyctl(2)`.
///
/// # Errors
///
/// `ENOSYS` if the kernel has no keys, `EDQUOT` if there are too many.
pub fn join_session_keyring(name: &CStr) -> io::Result<libc::c_long> {
    // SAFETY: the string ends with a zero and outlives the call.
    done(unsafe {
        libc::syscall(
            libc::SYS_keyctl,
            libc::KEYCTL_JOIN_SESSION_KEYRING,
            name.as_ptr(),
        )
    })
}

/// The size of a terminal: `ioctl_tty(2)`.
///
/// # Errors
///
/// `ENOTTY` if it is none.
pub fn set_size(terminal: BorrowedFd<'_>, rows: u16, columns: u16) -> io::Result<()> {
    let size = libc::winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: the structure is the one that this request takes, and outlives the call.
    let outcome = unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
    done(outcome.into()).map(drop)
}

/// Sends a signal by its number, as nix knows none of those in real time: `kill(2)`.
///
/// # Errors
///
/// `ESRCH` if there is no such process, `EINVAL` if there is no such signal.
pub fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: only numbers are given.
    done(unsafe { libc::kill(pid, signal) }.into()).map(drop)
}

/// What may be done with a key: `keyctl(2)`.
///
/// # Errors
///
/// `EACCES` if it is not ours.
pub fn set_key_permissions(key: libc::c_long, permissions: u32) -> io::Result<()> {
    // SAFETY: only numbers are given.
    done(unsafe { libc::syscall(libc::SYS_keyctl, libc::KEYCTL_SETPERM, key, permissions) })
        .map(drop)
}

/// Closes what no program is to find open, nor anybody who looks at this process: all but its streams, and pipes, of
/// which libcontainer and we have some. Nobody but us has to know of any of the others.
pub fn close_all_but_pipes() {
    for fd in 3..MOST_FDS {
        // SAFETY: zeroes are a value of it.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the structure outlives the call; a number that is no descriptor is an error.
        let is_open = unsafe { libc::fstat(fd, &raw mut stat) } == 0;
        if is_open && stat.st_mode & libc::S_IFMT != libc::S_IFIFO {
            // SAFETY: what has it open is not used any more: this process executes another program, or ends.
            let _ = unsafe { libc::close(fd) };
        }
    }
}

/// Descriptors have the lowest free numbers, and there are a dozen.
const MOST_FDS: i32 = 256;

/// Has nobody's descriptors be inherited but the streams: `close_range(2)`.
///
/// # Errors
///
/// `ENOSYS` before Linux 5.11.
pub fn inherit_only_streams() -> io::Result<()> {
    let flags = libc::CLOSE_RANGE_CLOEXEC;
    // SAFETY: nothing is closed.
    done(unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, flags) }).map(drop)
}

/// All signals do again what the kernel does with them by itself, as in a process that nobody has made ready.
pub fn leave_signals_to_the_kernel() {
    for signal in 1..=libc::SIGRTMAX() {
        // Some cannot be changed, and never were.
        // SAFETY: there is no handler, neither before nor after.
        let _ = unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

fn done(outcome: libc::c_long) -> io::Result<libc::c_long> {
    match outcome {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value),
    }
}
