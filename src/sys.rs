//! The system calls that have no safe wrapper, each with the reason why it is sound.

pub mod holder;
#[cfg(test)]
pub mod lease;
pub mod mounts;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::Duration;

use nix::libc;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::process::ExitStatus;

/// Sends signal number `signal` to process `pid`.
///
/// nix's `kill` takes an enum without the real-time signals, which are stop signals of real images
/// (systemd's is RTMIN+3).
///
/// # Errors
///
/// `ESRCH` if there is no such process, `EINVAL` if there is no such signal, `EPERM`.
pub fn kill(pid: i32, signal: i32) -> io::Result<()> {
    if pid <= 0 {
        // Zero and negative numbers mean process groups, and -1 everything there is.
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: kill(2) takes two integers and touches no memory of this process.
    match unsafe { libc::kill(pid, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Spawns a command whose process ignores no signal that only glibc knows of.
///
/// std leaves the work to glibc's `posix_spawn`, after which the child ignores signal 32
/// (`SIGCANCEL`), and so does each program that it executes: every container of a pod. A step of our
/// own before execve(2) has std call fork(2) instead, which ignores nothing. The step itself undoes
/// what this process may have inherited: systemd starts its services by `posix_spawn`, too.
///
/// # Errors
///
/// If the command cannot be spawned.
#[expect(
    clippy::disallowed_methods,
    reason = "the reaper calls it on a thread that may stall, or for the shim's own program, which runs already"
)]
pub fn spawn(command: &mut Command) -> io::Result<Child> {
    // SAFETY: between fork(2) and execve(2) the step makes system calls, which touch nothing but
    // one variable of its own. It allocates nothing and takes no lock.
    unsafe { command.pre_exec(heed_internal_signals) };
    command.spawn()
}

/// Gives the signals that glibc has for itself (`nptl(7)`) their default action.
fn heed_internal_signals() -> io::Result<()> {
    /// What the kernel calls `sizeof(sigset_t)`.
    const SET_SIZE: usize = 8;
    // The kernel's `struct sigaction`, which has no more than four words: `SIG_DFL`, and no flags.
    let default = [0_u64; 4];
    for signal in [32, 33] {
        // The system call, since glibc's function refuses these signals.
        // SAFETY: rt_sigaction(2) reads one sigaction, from a variable that outlives the call.
        let _ = unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                std::ptr::null_mut::<u64>(),
                SET_SIZE,
            )
        };
    }
    Ok(())
}

/// Kills a process that is not ours, and may have ended already.
pub fn end(pid: u32) {
    let Ok(number) = i32::try_from(pid) else {
        return;
    };
    match kill(number, libc::SIGKILL) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
        Err(error) => tracing::debug!(pid, %error, "not killed"),
    }
}

/// Holds a process that is not ours by a descriptor, which never means another process (`pidfd_open(2)`, Linux 5.3).
///
/// # Errors
///
/// `ESRCH` if there is no such process, `ENOSYS`, or if there is no room for a descriptor.
pub fn hold(pid: u32) -> io::Result<OwnedFd> {
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    // SAFETY: pidfd_open(2) takes two integers and touches no memory of this process.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    match RawFd::try_from(fd) {
        // SAFETY: the kernel has just made this descriptor, and no other owner knows of it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Kills a process that is [held](hold). It may have ended.
pub fn end_held(process: BorrowedFd<'_>) {
    let none: *const libc::siginfo_t = std::ptr::null();
    // SAFETY: with a null pointer pidfd_send_signal(2) reads no memory of this process.
    let sent = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            process.as_raw_fd(),
            libc::SIGKILL,
            none,
            0,
        )
    };
    if sent != 0 {
        let error = io::Error::last_os_error();
        tracing::debug!(%error, "not killed");
    }
}

/// The exit of a child that was collected.
#[derive(Clone, Copy, Debug)]
pub struct Exit {
    pub pid: i32,
    pub status: ExitStatus,
    /// How much CPU time it took, and its own children that it waited for.
    pub cpu: Duration,
}

/// Collects the exit of any child that has ended; none if no child has. `is_own_only` leaves alone the children
/// of other threads.
///
/// nix's `waitpid` fails for a child that died of a real-time signal, after the kernel has
/// forgotten it: its exit would be lost, and whoever waits for it would wait for ever.
///
/// # Errors
///
/// `ECHILD` if there are no children at all, `EINTR`.
pub fn wait_any(is_own_only: bool) -> io::Result<Option<Exit>> {
    let own = if is_own_only { libc::__WNOTHREAD } else { 0 };
    let flags = libc::WNOHANG | own;
    let mut status = 0;
    // SAFETY: rusage is plain data, for which zeroes are a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: wait4(2) writes one integer and one rusage, to variables that outlive the call.
    let pid = unsafe { libc::wait4(-1, &raw mut status, flags, &raw mut usage) };
    let status = match pid {
        0 => return Ok(None),
        pid if pid < 0 => return Err(io::Error::last_os_error()),
        _ if libc::WIFSIGNALED(status) => ExitStatus::Signal(libc::WTERMSIG(status)),
        // The kernel gives eight bits.
        _ => ExitStatus::Code((libc::WEXITSTATUS(status) & 0xff) as u8),
    };
    Ok(Some(Exit {
        pid,
        status,
        cpu: cpu(&usage),
    }))
}

fn cpu(usage: &libc::rusage) -> Duration {
    let time = |time: libc::timeval| {
        let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or_default());
        let micros = Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or_default());
        seconds.saturating_add(micros)
    };
    time(usage.ru_utime).saturating_add(time(usage.ru_stime))
}

/// Collects the exit of one child, or, if it is to be `kept`, only looks at it; none if it has not
/// ended. As [`wait_any`], for one process.
///
/// # Errors
///
/// `ECHILD` if it is no child of this process, `EINTR`.
pub fn wait_for(pid: i32, kept: bool) -> io::Result<Option<Exit>> {
    let Ok(id) = libc::id_t::try_from(pid) else {
        return Err(io::Error::from_raw_os_error(libc::ECHILD));
    };
    let keep = if kept { libc::WNOWAIT } else { 0 };
    wait(libc::P_PID, id, keep)
}

/// The first child, in the kernel's order, that has ended and has not been collected; it stays so.
/// `is_own_only` leaves out the children of other threads.
///
/// # Errors
///
/// `ECHILD` if there are no children at all, `EINTR`.
pub fn first_ended(is_own_only: bool) -> io::Result<Option<i32>> {
    let own = if is_own_only { libc::__WNOTHREAD } else { 0 };
    let exit = wait(libc::P_ALL, 0, libc::WNOWAIT | own)?;
    Ok(exit.map(|exit| exit.pid))
}

/// waitid(2) for children that have ended, with these flags beside the usual ones.
fn wait(which: libc::idtype_t, id: libc::id_t, flags: libc::c_int) -> io::Result<Option<Exit>> {
    // SAFETY: siginfo_t is plain data, for which zeroes are a value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = libc::WEXITED | libc::WNOHANG | flags;
    // SAFETY: rusage is plain data, for which zeroes are a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // The system call, since libc's function does not have its last argument.
    // SAFETY: waitid(2) writes one siginfo_t and one rusage, to variables that outlive the call.
    let waited = unsafe {
        libc::syscall(
            libc::SYS_waitid,
            which,
            id,
            &raw mut info,
            flags,
            &raw mut usage,
        )
    };
    if waited != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: for these flags the kernel fills in the fields of SIGCHLD, or leaves them zero.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    let status = match info.si_code {
        libc::CLD_EXITED => ExitStatus::Code((status & 0xff) as u8),
        // Killed, with a core dump or without.
        _ => ExitStatus::Signal(status),
    };
    Ok((pid != 0).then_some(Exit {
        pid,
        status,
        cpu: cpu(&usage),
    }))
}

/// Closes every descriptor from this number on, as a process that has just begun may: nobody in it has
/// any of them. Nothing happens on kernels before 5.9.
pub fn close_all_from(first: u32) {
    // SAFETY: close_range(2) takes three integers and touches no memory. Whoever calls this at the
    // beginning of the process breaks no owner of a descriptor, since there is none yet.
    let _ = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) };
}

/// The user namespace that owns a namespace, which an open file of `/proc/<pid>/ns` or a mount of one is.
///
/// # Errors
///
/// `EPERM` if it is not to be seen from here, `ENOTTY` if the file is no namespace.
pub fn owner_of_namespace(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    /// `NS_GET_USERNS` of `ioctl_nsfs(2)`.
    const GET_USER_NAMESPACE: libc::Ioctl = 0xb701;
    // SAFETY: this request takes no argument, and gives a new descriptor that nobody else has.
    unsafe {
        match libc::ioctl(namespace.as_raw_fd(), GET_USER_NAMESPACE) {
            fd if fd >= 0 => Ok(OwnedFd::from_raw_fd(fd)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Watches a descriptor for being ready.
///
/// # Errors
///
/// If the kernel cannot watch it, or has no room for one more.
pub fn watch(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the AsyncFd owns the descriptor, which so stays open, and an OwnedFd always gives the
    // same one.
    let watched = unsafe { AsyncFd::register_with_interest(fd, interest) };
    watched.map_err(|failed| failed.into_parts().1)
}

/// Opens the process's own end of a pseudo-terminal, of which we have the master, wherever it is
/// mounted (`ioctl_tty(2)`, Linux 4.13).
///
/// # Errors
///
/// If the kernel does not know how, or the descriptors have run out.
pub fn open_peer(master: &OwnedFd) -> io::Result<OwnedFd> {
    // Not as the controlling terminal of the shim, which leads a session.
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: this request takes an integer and touches no memory of this process.
    match unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags) } {
        // SAFETY: the kernel has just made this descriptor, and nobody else knows of it.
        peer if peer >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(peer) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Changes the size of a terminal, in characters; its foreground processes are told.
///
/// # Errors
///
/// If it is no terminal.
pub fn resize(terminal: BorrowedFd<'_>, width: u16, height: u16) -> io::Result<()> {
    let size = libc::winsize {
        ws_row: height,
        ws_col: width,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: this request reads one winsize, from a variable that outlives the call.
    match unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns how many bytes a pipe or FIFO holds that nobody has read (`FIONREAD`, `ioctl_pipe(2)`).
///
/// # Errors
///
/// `ENOTTY` for a descriptor that cannot say.
pub fn unread(pipe: BorrowedFd<'_>) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: this request writes one int, to a variable that outlives the call.
    match unsafe { libc::ioctl(pipe.as_raw_fd(), libc::FIONREAD, &raw mut bytes) } {
        0 => Ok(u64::try_from(bytes).unwrap_or_default()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Receives the one descriptor that comes with a message (`SCM_RIGHTS`, `unix(7)`).
///
/// nix gives the numbers of descriptors, which nobody closes.
///
/// # Errors
///
/// `WouldBlock` if no message has come yet; if it has not exactly one descriptor.
pub fn receive_descriptor(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // Whatever is said beside it: runc gives the terminal's name.
    let mut words = [0; 4096];
    let mut words = [io::IoSliceMut::new(&mut words)];
    let mut room = nix::cmsg_space!([RawFd; 4]);
    let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut words, Some(&mut room), flags)?;
    let mut received = Vec::new();
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(numbers) = part {
            // SAFETY: the kernel has just made these descriptors, and nobody else knows of them.
            received.extend(
                numbers
                    .into_iter()
                    .map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }),
            );
        }
    }
    match (received.pop(), received.pop()) {
        (Some(only), None) => Ok(only),
        _ => Err(io::Error::other(
            "a message came without a descriptor, or with several, expected one",
        )),
    }
}

/// Begins a core scheduling group for the process group of this process; children inherit it.
///
/// nix has no wrapper for this option of prctl(2).
///
/// # Errors
///
/// `EINVAL` if the kernel knows no core scheduling, `ENODEV` if there are no sibling threads.
pub fn create_core_scheduling_group() -> io::Result<()> {
    // Not in libc for this platform; `linux/prctl.h`, and `PIDTYPE_PGID` of the kernel's `pid_type`.
    const PR_SCHED_CORE: libc::c_int = 62;
    const PR_SCHED_CORE_CREATE: libc::c_ulong = 1;
    const PROCESS_GROUP: libc::c_ulong = 2;
    // SAFETY: this option takes four integers and touches no memory of this process.
    let outcome = unsafe {
        libc::prctl(
            PR_SCHED_CORE,
            PR_SCHED_CORE_CREATE,
            0_u64,
            PROCESS_GROUP,
            0_u64,
        )
    };
    match outcome {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::process::Stdio;

    use super::*;

    #[test]
    fn a_spawned_process_ignores_no_signal() {
        // A test may be run by a program that ignores some, as nohup does.
        let ignored = |status: &str| {
            let line = status.lines().find(|line| line.starts_with("SigIgn:"));
            line.expect("a line").to_owned()
        };
        let own = ignored(&std::fs::read_to_string("/proc/self/status").unwrap());
        let own = u64::from_str_radix(own.trim_start_matches("SigIgn:").trim(), 16).unwrap();
        // std ignores SIGPIPE for itself alone.
        let expected = own & !(0b11 << 31) & !(1 << (libc::SIGPIPE - 1));
        let mut command = Command::new("cat");
        command.arg("/proc/self/status").stdout(Stdio::piped());
        let mut child = spawn(&mut command).unwrap();
        let mut said = String::new();
        let output = child.stdout.as_mut().unwrap();
        output.read_to_string(&mut said).unwrap();
        assert!(child.wait().unwrap().success());
        assert_eq!(ignored(&said), format!("SigIgn:\t{expected:016x}"));
    }

    #[test]
    fn a_held_process_is_killed_and_its_number_means_no_other_afterwards() {
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let held = hold(child.id()).unwrap();
        end_held(held.as_fd());
        assert!(!child.wait().unwrap().success());
        // Nothing is left that this could kill.
        end_held(held.as_fd());
        assert_eq!(
            hold(child.id()).unwrap_err().raw_os_error(),
            Some(libc::ESRCH)
        );
    }

    #[test]
    #[expect(clippy::zombie_processes, reason = "it is waited for here")]
    fn an_exit_tells_the_cpu_time_of_a_command_and_of_what_it_has_waited_for() {
        // The loop runs in a child of the shell.
        let work = "(i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done); exit 7";
        let mut command = std::process::Command::new("sh");
        let child = command.args(["-c", work]).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let ended = |kept| loop {
            match wait_for(pid, kept).unwrap() {
                Some(exit) => break exit,
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        for kept in [true, false] {
            let exit = ended(kept);
            assert_eq!((exit.pid, exit.status), (pid, ExitStatus::Code(7)));
            assert!(exit.cpu > Duration::from_millis(5), "{exit:?}");
        }
    }
}
