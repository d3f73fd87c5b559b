//! A small process that holds the namespaces of a pod. Its program has four hundred bytes, and uses
//! no library, file system or heap. The program is part of the shim's program, and is executed from
//! memory.
//!
//! The holder does the work of a pause container's program. As the first process of a shared PID
//! namespace it collects orphans (`pid_namespaces(7)`). SIGTERM and SIGINT end the holder, and no
//! signal makes it signal another process. When the first process of a PID namespace exits, the
//! kernel kills all processes in the namespace.
//!
//! The holder's standard input is a *leash*: a pipe whose only writing end the shim has. When the
//! shim closes that end, or dies, the kernel sends SIGIO to the holder (`F_SETOWN` in `fcntl(2)`),
//! which reads the end of the pipe and exits. So no other process has to find and end a holder
//! whose shim has died.

use std::arch::global_asm;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl};
use nix::libc;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::fexecve;

/// The process name that `ps` shows.
pub const NAME: &CStr = c"usher-sandbox";

/// Seals against every change of the program, even through `/proc/<pid>/exe`.
const SEALS: SealFlag = SealFlag::F_SEAL_SEAL
    .union(SealFlag::F_SEAL_WRITE)
    .union(SealFlag::F_SEAL_SHRINK)
    .union(SealFlag::F_SEAL_GROW);

// An executable file (`elf(5)`): its header; a segment with the whole file; a segment that makes
// the stack non-executable; the code and its data. The shim never executes this code itself, so the
// file is mere data in the shim.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
global_asm!(
    ".pushsection .rodata.usher_holder, \"a\"",
    ".balign 8",
    "usher_holder_begin:",
    ".byte 0x7f, 0x45, 0x4c, 0x46, 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0",
    // The rest of the ELF header: the type EXEC, the machine, the version, the entry point, the
    // offset of the segments, no sections, no flags, and the sizes of the tables.
    ".2byte 2, {machine}",
    ".4byte 1",
    ".8byte {base} + (usher_holder_entry - usher_holder_begin)",
    ".8byte 64, 0",
    ".4byte 0",
    ".2byte 64, 56, 2, 64, 0, 0",
    // A LOAD segment, readable and executable.
    ".4byte 1, 5",
    ".8byte 0, {base}, {base}",
    ".8byte usher_holder_end - usher_holder_begin, usher_holder_end - usher_holder_begin",
    ".8byte 0x10000",
    // A GNU_STACK segment, readable and writable.
    ".4byte 0x6474e551, 6",
    ".8byte 0, 0, 0, 0, 0, 16",
    "usher_holder_entry:",
    base = const 0x400000,
    machine = const if cfg!(target_arch = "x86_64") { 62 } else { 183 },
);

#[cfg(target_arch = "x86_64")]
global_asm!(
    // prctl(PR_SET_NAME, name)
    "mov eax, 157",
    "mov edi, 15",
    "lea rsi, [rip + 70f]",
    "syscall",
    // prctl(PR_SET_DUMPABLE, 0): other processes of the same user must not trace the holder.
    "mov eax, 157",
    "mov edi, 4",
    "xor esi, esi",
    "syscall",
    // rt_sigprocmask(SIG_BLOCK, all, NULL, 8): a blocked signal waits for rt_sigtimedwait, even if
    // the holder is the first process of a PID namespace.
    "mov eax, 14",
    "xor edi, edi",
    "lea rsi, [rip + 60f]",
    "xor edx, edx",
    "mov r10d, 8",
    "syscall",
    // Loops over read(0, rsp - 128, 128) until read returns 0. The shim, which holds the other end
    // of the pipe, has then exited.
    "20:",
    "xor eax, eax",
    "xor edi, edi",
    "lea rsi, [rsp - 128]",
    "mov edx, 128",
    "syscall",
    "test rax, rax",
    "jz 50f",
    "jg 20b",
    // rt_sigtimedwait(all, NULL, NULL, 8)
    "mov eax, 128",
    "lea rdi, [rip + 60f]",
    "xor esi, esi",
    "xor edx, edx",
    "mov r10d, 8",
    "syscall",
    "cmp eax, 17", // SIGCHLD
    "je 30f",
    "cmp eax, 15", // SIGTERM
    "je 50f",
    "cmp eax, 2", // SIGINT
    "je 50f",
    "jmp 20b",
    // wait4(-1, NULL, WNOHANG, NULL), repeated as long as the call collects a child.
    "30:",
    "mov eax, 61",
    "mov rdi, -1",
    "xor esi, esi",
    "mov edx, 1",
    "xor r10d, r10d",
    "syscall",
    "test eax, eax",
    "jg 30b",
    "jmp 20b",
    // exit_group(0)
    "50:",
    "mov eax, 231",
    "xor edi, edi",
    "syscall",
);

#[cfg(target_arch = "aarch64")]
global_asm!(
    // prctl(PR_SET_NAME, name)
    "mov x8, #167",
    "mov x0, #15",
    "adr x1, 70f",
    "svc #0",
    // prctl(PR_SET_DUMPABLE, 0): other processes of the same user must not trace the holder.
    "mov x8, #167",
    "mov x0, #4",
    "mov x1, #0",
    "svc #0",
    // rt_sigprocmask(SIG_BLOCK, all, NULL, 8): a blocked signal waits for rt_sigtimedwait, even if
    // the holder is the first process of a PID namespace.
    "mov x8, #135",
    "mov x0, #0",
    "adr x1, 60f",
    "mov x2, #0",
    "mov x3, #8",
    "svc #0",
    // read(0, below the stack, 128), until the pipe is empty. The end of the pipe means that the
    // shim is gone.
    "20:",
    "mov x8, #63",
    "mov x0, #0",
    "sub x1, sp, #128",
    "mov x2, #128",
    "svc #0",
    "cmp x0, #0",
    "b.eq 50f",
    "b.gt 20b",
    // rt_sigtimedwait(all, NULL, NULL, 8)
    "mov x8, #137",
    "adr x0, 60f",
    "mov x1, #0",
    "mov x2, #0",
    "mov x3, #8",
    "svc #0",
    "cmp w0, #17", // SIGCHLD
    "b.eq 30f",
    "cmp w0, #15", // SIGTERM
    "b.eq 50f",
    "cmp w0, #2", // SIGINT
    "b.eq 50f",
    "b 20b",
    // wait4(-1, NULL, WNOHANG, NULL), repeated as long as the call collects a child.
    "30:",
    "mov x8, #260",
    "mov x0, #-1",
    "mov x1, #0",
    "mov x2, #1",
    "mov x3, #0",
    "svc #0",
    "cmp w0, #0",
    "b.gt 30b",
    "b 20b",
    // exit_group(0)
    "50:",
    "mov x8, #94",
    "mov x0, #0",
    "svc #0",
);

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
global_asm!(
    ".balign 8",
    "60:",
    ".8byte -1",
    "70:",
    ".asciz \"usher-sandbox\"",
    ".balign 8",
    "usher_holder_end:",
    ".popsection",
);

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the holder of a pod's namespaces is written for x86-64 and arm64");

unsafe extern "C" {
    static usher_holder_begin: [u8; 0];
    static usher_holder_end: [u8; 0];
}

/// The bytes of the holder's executable file.
fn program() -> &'static [u8] {
    // SAFETY: both symbols are in one section of this program's read-only data, and
    // `usher_holder_begin` comes first. All bytes between them are initialized, and live as long as
    // the process.
    unsafe {
        let begin = (&raw const usher_holder_begin).cast::<u8>();
        let end = (&raw const usher_holder_end).cast::<u8>();
        let length = end.addr().saturating_sub(begin.addr());
        std::slice::from_raw_parts(begin, length)
    }
}

/// Replaces this process by the holder. Standard input must be the [leash](obey). The only argument
/// is the holder's name, because any container in a shared PID namespace can read the arguments.
///
/// # Errors
///
/// The kernel's error. After an error the process is unchanged.
pub fn become_holder() -> io::Error {
    let executed = write().and_then(|file| {
        let nothing: [CString; 0] = [];
        Ok(fexecve(file.as_fd(), &[NAME], &nothing)?)
    });
    match executed {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

/// Has the kernel send SIGIO to this process when no process has the writing end of the pipe
/// `leash` open anymore. The default action of SIGIO ends the process.
///
/// The kernel sends SIGIO with the rights that the process has at this call. So after a process has
/// changed its user, it must call this function again.
///
/// # Errors
///
/// `EPIPE` if the writing end is closed already, or the kernel's error.
pub fn obey(leash: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: F_SETOWN takes two integers and touches no memory of this process.
    let owned = unsafe { libc::fcntl(leash.as_raw_fd(), libc::F_SETOWN, libc::getpid()) };
    if owned < 0 {
        return Err(io::Error::last_os_error());
    }
    fcntl(leash, FcntlArg::F_SETFL(OFlag::O_ASYNC | OFlag::O_NONBLOCK))?;
    // If the writing end was closed before the calls above, no signal comes, so check it now.
    match nix::unistd::read(leash, &mut [0]) {
        Ok(0) => Err(io::Error::from_raw_os_error(libc::EPIPE)),
        _ => Ok(()),
    }
}

/// Writes the program to a file in memory. The file disappears when no process has it open or
/// executes it.
fn write() -> io::Result<OwnedFd> {
    let file = memfd_create(NAME, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
    let mut file = File::from(file);
    file.write_all(program())?;
    fcntl(&file, FcntlArg::F_ADD_SEALS(SEALS))?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::{Child, Command};

    use nix::unistd::pipe2;

    use super::*;

    /// Runs the holder, and waits until it is ready. The holder ends when the returned leash is
    /// closed.
    fn holder() -> (Child, OwnedFd) {
        let file = write().unwrap();
        let (leash, end) = pipe2(OFlag::O_CLOEXEC).unwrap();
        let mut command = Command::new(format!("/proc/self/fd/{}", file.as_raw_fd()));
        command.stdin(leash);
        // SAFETY: `obey` only makes system calls, which are allowed between fork and exec.
        let command = unsafe { command.pre_exec(|| obey(BorrowedFd::borrow_raw(0))) };
        let child = command.spawn().unwrap();
        let is_named = || {
            let name = std::fs::read_to_string(format!("/proc/{}/comm", child.id())).unwrap();
            name.trim() == NAME.to_str().unwrap()
        };
        while !is_named() {
            std::thread::yield_now();
        }
        (child, end)
    }

    #[test]
    fn sigterm_ends_the_holder_and_other_signals_do_not() {
        let (mut child, _end) = holder();
        for signal in [libc::SIGHUP, libc::SIGIO, libc::SIGUSR1] {
            crate::sys::kill(child.id() as i32, signal).unwrap();
        }
        assert!(child.try_wait().unwrap().is_none());
        crate::sys::kill(child.id() as i32, libc::SIGTERM).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0));
        let (mut child, _end) = holder();
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    }

    #[test]
    fn the_holder_ends_when_its_leash_is_closed() {
        let (mut child, end) = holder();
        drop(end);
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }

    #[test]
    fn bytes_in_the_leash_neither_end_the_holder_nor_hide_its_end() {
        let (mut child, end) = holder();
        let mut end = File::from(end);
        end.write_all(&[b'x'; 4096]).unwrap();
        assert!(child.try_wait().unwrap().is_none());
        drop(end);
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }

    #[test]
    fn a_leash_that_was_closed_before_is_refused() {
        let (leash, end) = pipe2(OFlag::O_CLOEXEC).unwrap();
        drop(end);
        let refused = obey(leash.as_fd()).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPIPE));
    }

    #[test]
    fn the_holder_uses_almost_no_memory() {
        let (mut child, _end) = holder();
        let smaps = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", child.id())).unwrap();
        let line = smaps.lines().find(|line| line.starts_with("Rss:")).unwrap();
        let kilobytes: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(kilobytes <= 64, "{smaps}");
    }

    #[test]
    fn the_program_of_the_holder_cannot_be_changed() {
        let (mut child, _end) = holder();
        let path = format!("/proc/{}/exe", child.id());
        let found = std::fs::File::open(&path).unwrap();
        let opened = std::fs::OpenOptions::new().write(true).open(&path);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(opened.is_err(), "{opened:?}");
        // A file descriptor that refers to the holder's program may stay open after the holder has
        // exited. The program cannot be changed through that descriptor.
        let kept = format!("/proc/self/fd/{}", found.as_raw_fd());
        let opened = std::fs::OpenOptions::new().write(true).open(kept);
        let written = opened.and_then(|mut file| file.write_all(b"x"));
        assert!(written.is_err(), "{written:?}");
    }
}
