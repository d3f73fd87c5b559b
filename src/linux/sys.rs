//! System calls without a safe wrapper in std or nix. A comment at each call says why the call is
//! sound.

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

use usher_core::process::ExitStatus;

/// Sends signal number `signal` to process `pid`.
///
/// nix's `kill` takes an enum without the real-time signals, which some images use as stop signals
/// (systemd's is RTMIN+3).
///
/// # Errors
///
/// `ESRCH` if there is no such process, `EINVAL` if there is no such signal, `EPERM`.
pub fn kill(pid: i32, signal: i32) -> io::Result<()> {
    if pid <= 0 {
        // For kill(2), zero and negative numbers are process groups, and -1 is all processes.
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: kill(2) takes two integers and touches no memory of this process.
    match unsafe { libc::kill(pid, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Spawns a command, and gives glibc's internal signals 32 and 33 their default action in the
/// child.
///
/// Without a `pre_exec` step, std would call glibc's `posix_spawn`. Its child ignores signal 32
/// (`SIGCANCEL`), and so do all programs that the child executes. In the end, every container of a
/// pod would ignore this signal. With a step, std calls fork(2), which changes no signal's action.
/// The step itself resets both signals, because this process may ignore them: systemd starts its
/// services with `posix_spawn`, too.
///
/// # Errors
///
/// If the command cannot be spawned.
#[expect(
    clippy::disallowed_methods,
    reason = "the reaper calls it on a thread that may stall, or for the shim's own program, which runs already"
)]
pub fn spawn(command: &mut Command) -> io::Result<Child> {
    // SAFETY: between fork(2) and execve(2) the step makes system calls, which use only one local
    // variable. It allocates nothing and takes no lock.
    unsafe { command.pre_exec(heed_internal_signals) };
    command.spawn()
}

/// Gives glibc's internal signals (`nptl(7)`) their default action.
fn heed_internal_signals() -> io::Result<()> {
    /// The kernel's `sizeof(sigset_t)`.
    const SET_SIZE: usize = 8;
    // The value has the layout of the kernel's `struct sigaction`, which has at most four words.
    // Zeros mean `SIG_DFL` and no flags.
    let default = [0_u64; 4];
    for signal in [32, 33] {
        // Make the system call directly, because glibc's function refuses these signals.
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

/// Kills a process that is not a child; it may have exited already.
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

/// Opens a descriptor for a process that is not a child. The descriptor never refers to another
/// process (`pidfd_open(2)`, Linux 5.3).
///
/// # Errors
///
/// `ESRCH` if there is no such process, `ENOSYS` before Linux 5.3, or another error if no
/// descriptor is free.
pub fn hold(pid: u32) -> io::Result<OwnedFd> {
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    // SAFETY: pidfd_open(2) takes two integers and touches no memory of this process.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    match RawFd::try_from(fd) {
        // SAFETY: the kernel has just made this descriptor, and it has no other owner.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Kills a process [by its descriptor](hold). The process may have exited already.
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

/// The exit of a child, as wait4(2) or waitid(2) returns it.
#[derive(Clone, Copy, Debug)]
pub struct Exit {
    pub pid: i32,
    pub status: ExitStatus,
    /// CPU time of the process, and of the children whose exits it has collected.
    pub cpu: Duration,
}

/// Collects the exit of any child; `None` if no child has exited. With `is_own_only`, ignores the
/// children of other threads.
///
/// nix's `waitpid` returns an error for a child that died of a real-time signal. By then the kernel
/// has forgotten the child, so the exit would be lost, and its waiter would wait forever.
///
/// # Errors
///
/// `ECHILD` if there are no children, `EINTR`.
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
        // The kernel keeps only eight bits of the exit code.
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

/// Collects the exit of one child. If `kept` is true, reads the exit, and leaves the child as a
/// zombie. `None` if the child has not exited.
///
/// # Errors
///
/// `ECHILD` if `pid` is not a child of this process, `EINTR`.
pub fn wait_for(pid: i32, kept: bool) -> io::Result<Option<Exit>> {
    let Ok(id) = libc::id_t::try_from(pid) else {
        return Err(io::Error::from_raw_os_error(libc::ECHILD));
    };
    let keep = if kept { libc::WNOWAIT } else { 0 };
    wait(libc::P_PID, id, keep)
}

/// Returns the first child, in the kernel's order, that has exited, and leaves this child as a
/// zombie. With `is_own_only`, ignores the children of other threads.
///
/// # Errors
///
/// `ECHILD` if there are no children, `EINTR`.
pub fn first_ended(is_own_only: bool) -> io::Result<Option<i32>> {
    let own = if is_own_only { libc::__WNOTHREAD } else { 0 };
    let exit = wait(libc::P_ALL, 0, libc::WNOWAIT | own)?;
    Ok(exit.map(|exit| exit.pid))
}

/// Calls waitid(2) for children that have exited, with these additional flags.
fn wait(which: libc::idtype_t, id: libc::id_t, flags: libc::c_int) -> io::Result<Option<Exit>> {
    // SAFETY: siginfo_t is plain data, for which zeroes are a value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = libc::WEXITED | libc::WNOHANG | flags;
    // SAFETY: rusage is plain data, for which zeroes are a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // Make the system call directly, because libc's function lacks the last argument.
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
        // The child was killed by a signal, with or without a core dump.
        _ => ExitStatus::Signal(status),
    };
    Ok((pid != 0).then_some(Exit {
        pid,
        status,
        cpu: cpu(&usage),
    }))
}

/// Closes every descriptor from number `first` on. Only for a process that has just begun, in which
/// no code owns these descriptors. Does nothing on kernels before 5.9.
pub fn close_all_from(first: u32) {
    // SAFETY: close_range(2) takes three integers and touches no memory. At the beginning of a
    // process, no code owns these descriptors yet, so no code loses a descriptor.
    let _ = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) };
}

/// Opens the user namespace that owns `namespace`, which is an open file of `/proc/<pid>/ns`, or of
/// a mount of such a file.
///
/// # Errors
///
/// `EPERM` if the user namespace is outside of this process's own, `ENOTTY` if the file is no
/// namespace.
pub fn owner_of_namespace(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    /// `NS_GET_USERNS` of `ioctl_nsfs(2)`.
    const GET_USER_NAMESPACE: libc::Ioctl = 0xb701;
    // SAFETY: this request takes no argument, and returns a new descriptor without another owner.
    unsafe {
        match libc::ioctl(namespace.as_raw_fd(), GET_USER_NAMESPACE) {
            fd if fd >= 0 => Ok(OwnedFd::from_raw_fd(fd)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Watches a descriptor for readiness.
///
/// # Errors
///
/// If the kernel cannot watch the descriptor, or refuses to watch one more.
pub fn watch(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the AsyncFd owns the descriptor, which therefore stays open, and an OwnedFd always
    // returns the same one.
    let watched = unsafe { AsyncFd::register_with_interest(fd, interest) };
    watched.map_err(|failed| failed.into_parts().1)
}

/// Opens the process's side of a pseudo-terminal through its master, so that it does not matter
/// where devpts is mounted (`ioctl_tty(2)`, Linux 4.13).
///
/// # Errors
///
/// If the kernel does not support this call, or no descriptor is free.
pub fn open_peer(master: &OwnedFd) -> io::Result<OwnedFd> {
    // Without O_NOCTTY the terminal could become the controlling terminal of the shim, because the
    // shim is a session leader.
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: this request takes an integer and touches no memory of this process.
    match unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags) } {
        // SAFETY: the kernel has just made this descriptor, and it has no other owner.
        peer if peer >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(peer) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Changes the size of a terminal, in characters; the kernel notifies its foreground processes.
///
/// # Errors
///
/// If the descriptor is no terminal.
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

/// Returns the number of unread bytes in a pipe or FIFO (`FIONREAD`, `ioctl_pipe(2)`).
///
/// # Errors
///
/// `ENOTTY` if the kernel does not support this for the descriptor.
pub fn unread(pipe: BorrowedFd<'_>) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: this request writes one int, to a variable that outlives the call.
    match unsafe { libc::ioctl(pipe.as_raw_fd(), libc::FIONREAD, &raw mut bytes) } {
        0 => Ok(u64::try_from(bytes).unwrap_or_default()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Receives a message's only descriptor (`SCM_RIGHTS`, `unix(7)`).
///
/// nix returns descriptors as plain numbers, which no code closes. So this function returns an
/// owned descriptor.
///
/// # Errors
///
/// `WouldBlock` if no message has arrived yet; another error if the message does not have exactly
/// one descriptor.
pub fn receive_descriptor(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // The text of the message, which is ignored. runc sends the terminal's name.
    let mut words = [0; 4096];
    let mut words = [io::IoSliceMut::new(&mut words)];
    let mut room = nix::cmsg_space!([RawFd; 4]);
    let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut words, Some(&mut room), flags)?;
    let mut received = Vec::new();
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(numbers) = part {
            // SAFETY: the kernel has just made these descriptors, and they have no other owner.
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
            "a message has no descriptor or several, expected one",
        )),
    }
}

/// Puts the process group of this process into a new core scheduling group. Children of the process
/// inherit the core scheduling group.
///
/// nix has no wrapper for this option of prctl(2).
///
/// # Errors
///
/// `EINVAL` if the kernel has no core scheduling, `ENODEV` if there are no sibling threads.
pub fn create_core_scheduling_group() -> io::Result<()> {
    // libc does not have these constants for this platform. They are from `linux/prctl.h`, and
    // `PIDTYPE_PGID` is from the kernel's `pid_type`.
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
        // The program that runs the test may ignore some signals, as nohup does.
        let ignored = |status: &str| {
            let line = status.lines().find(|line| line.starts_with("SigIgn:"));
            line.expect("a line").to_owned()
        };
        let own = ignored(&std::fs::read_to_string("/proc/self/status").unwrap());
        let own = u64::from_str_radix(own.trim_start_matches("SigIgn:").trim(), 16).unwrap();
        // This process ignores SIGPIPE, because std sets that at the start; std resets it in
        // children.
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
    fn a_held_process_is_killed_and_its_descriptor_means_no_other_afterwards() {
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let held = hold(child.id()).unwrap();
        end_held(held.as_fd());
        assert!(!child.wait().unwrap().success());
        // The process is gone, so this kills nothing.
        end_held(held.as_fd());
        assert_eq!(
            hold(child.id()).unwrap_err().raw_os_error(),
            Some(libc::ESRCH)
        );
    }

    #[test]
    #[expect(clippy::zombie_processes, reason = "it is waited for here")]
    fn an_exit_has_the_cpu_time_of_a_command_and_of_the_children_it_waited_for() {
        // The shell runs the loop in a child process.
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
