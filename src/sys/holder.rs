//! The smallest process that can hold the namespaces of a pod: a program of four hundred bytes, without a
//! library, a file system or a heap, which is in this shim's own program and executed from memory.
//!
//! It does what the first process of a shared PID namespace has to (`pid_namespaces(7)`): it collects what
//! has lost its parent, and hands SIGTERM and SIGINT on to all of the namespace. Where it is not the first
//! process these two end it. SIGKILL ends it in any case, and with it a PID namespace whose first it is.

use std::arch::global_asm;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::fexecve;

/// What `ps` calls it.
pub const NAME: &CStr = c"usher-sandbox";

/// Nobody can change the program, not even who finds it as `/proc/<pid>/exe`.
const SEALS: SealFlag = SealFlag::F_SEAL_SEAL
    .union(SealFlag::F_SEAL_WRITE)
    .union(SealFlag::F_SEAL_SHRINK)
    .union(SealFlag::F_SEAL_GROW);

// An executable file (`elf(5)`): its header, one segment that is all of it, one that says that the stack
// is no code; then the code, and what it reads. It is data here, and never executed in this process.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
global_asm!(
    ".pushsection .rodata.usher_holder, \"a\"",
    ".balign 8",
    "usher_holder_begin:",
    ".byte 0x7f, 0x45, 0x4c, 0x46, 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0",
    // EXEC, the machine, the version, the entry, where the segments are, no sections, no flags.
    ".2byte 2, {machine}",
    ".4byte 1",
    ".8byte {base} + (usher_holder_entry - usher_holder_begin)",
    ".8byte 64, 0",
    ".4byte 0",
    ".2byte 64, 56, 2, 64, 0, 0",
    // LOAD, to be read and executed.
    ".4byte 1, 5",
    ".8byte 0, {base}, {base}",
    ".8byte usher_holder_end - usher_holder_begin, usher_holder_end - usher_holder_begin",
    ".8byte 0x10000",
    // GNU_STACK, to be read and written.
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
    // prctl(PR_SET_DUMPABLE, 0): nobody of its user may trace it.
    "mov eax, 157",
    "mov edi, 4",
    "xor esi, esi",
    "syscall",
    // rt_sigprocmask(SIG_BLOCK, all, NULL, 8): what is blocked is not lost, even for a first process.
    "mov eax, 14",
    "xor edi, edi",
    "lea rsi, [rip + 60f]",
    "xor edx, edx",
    "mov r10d, 8",
    "syscall",
    // rt_sigtimedwait(all, NULL, NULL, 8)
    "20:",
    "mov eax, 128",
    "lea rdi, [rip + 60f]",
    "xor esi, esi",
    "xor edx, edx",
    "mov r10d, 8",
    "syscall",
    "cmp eax, 17", // SIGCHLD
    "je 30f",
    "cmp eax, 15", // SIGTERM
    "je 40f",
    "cmp eax, 2", // SIGINT
    "je 40f",
    "jmp 20b",
    // wait4(-1, NULL, WNOHANG, NULL) as long as there is one.
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
    // getpid()
    "40:",
    "mov ebx, eax",
    "mov eax, 39",
    "syscall",
    "cmp eax, 1",
    "jne 50f",
    // kill(-1, signal)
    "mov eax, 62",
    "mov rdi, -1",
    "mov esi, ebx",
    "syscall",
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
    // prctl(PR_SET_DUMPABLE, 0): nobody of its user may trace it.
    "mov x8, #167",
    "mov x0, #4",
    "mov x1, #0",
    "svc #0",
    // rt_sigprocmask(SIG_BLOCK, all, NULL, 8): what is blocked is not lost, even for a first process.
    "mov x8, #135",
    "mov x0, #0",
    "adr x1, 60f",
    "mov x2, #0",
    "mov x3, #8",
    "svc #0",
    // rt_sigtimedwait(all, NULL, NULL, 8)
    "20:",
    "mov x8, #137",
    "adr x0, 60f",
    "mov x1, #0",
    "mov x2, #0",
    "mov x3, #8",
    "svc #0",
    "cmp w0, #17", // SIGCHLD
    "b.eq 30f",
    "cmp w0, #15", // SIGTERM
    "b.eq 40f",
    "cmp w0, #2", // SIGINT
    "b.eq 40f",
    "b 20b",
    // wait4(-1, NULL, WNOHANG, NULL) as long as there is one.
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
    // getpid()
    "40:",
    "mov w19, w0",
    "mov x8, #172",
    "svc #0",
    "cmp w0, #1",
    "b.ne 50f",
    // kill(-1, signal)
    "mov x8, #129",
    "mov x0, #-1",
    "mov w1, w19",
    "svc #0",
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

/// The program, as an executable file.
fn program() -> &'static [u8] {
    // SAFETY: both names are in one section of this program's read-only data, the second behind the first,
    // with initialized bytes between them that live as long as the process.
    unsafe {
        let begin = (&raw const usher_holder_begin).cast::<u8>();
        let end = (&raw const usher_holder_end).cast::<u8>();
        let length = end.addr().saturating_sub(begin.addr());
        std::slice::from_raw_parts(begin, length)
    }
}

/// Becomes it. `word` is its only argument, by which it can be found among all processes.
///
/// # Errors
///
/// The kernel's refusal; the process is then what it was.
pub fn become_holder(word: &CStr) -> io::Error {
    let executed = write().and_then(|file| {
        let nothing: [CString; 0] = [];
        Ok(fexecve(file.as_fd(), &[NAME, word], &nothing)?)
    });
    match executed {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

/// The program in a file that is in memory alone, and gone with the last who has it.
fn write() -> io::Result<OwnedFd> {
    let file = memfd_create(NAME, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
    let mut file = File::from(file);
    file.write_all(program())?;
    fcntl(&file, FcntlArg::F_ADD_SEALS(SEALS))?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// Runs it, and waits until it holds.
    fn holder() -> Child {
        let file = write().unwrap();
        let child = Command::new(format!("/proc/self/fd/{}", file.as_raw_fd()))
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let is_named = || {
            let name = std::fs::read_to_string(format!("/proc/{}/comm", child.id())).unwrap();
            name.trim() == NAME.to_str().unwrap()
        };
        while !is_named() {
            std::thread::yield_now();
        }
        child
    }

    #[test]
    fn it_holds_until_it_is_told_to_end() {
        let mut child = holder();
        crate::sys::kill(child.id() as i32, nix::libc::SIGHUP).unwrap();
        assert!(child.try_wait().unwrap().is_none());
        crate::sys::kill(child.id() as i32, nix::libc::SIGTERM).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0));
        let mut child = holder();
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(nix::libc::SIGKILL));
    }

    #[test]
    fn it_takes_next_to_no_memory() {
        let mut child = holder();
        let smaps = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", child.id())).unwrap();
        let line = smaps.lines().find(|line| line.starts_with("Rss:")).unwrap();
        let kilobytes: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(kilobytes <= 64, "{smaps}");
    }

    #[test]
    fn nobody_can_change_its_program() {
        let mut child = holder();
        let path = format!("/proc/{}/exe", child.id());
        let found = std::fs::File::open(&path).unwrap();
        let opened = std::fs::OpenOptions::new().write(true).open(&path);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(opened.is_err(), "{opened:?}");
        // Not when nobody executes it any more either, by whoever has kept it.
        let kept = format!("/proc/self/fd/{}", found.as_raw_fd());
        let opened = std::fs::OpenOptions::new().write(true).open(kept);
        let written = opened.and_then(|mut file| file.write_all(b"x"));
        assert!(written.is_err(), "{written:?}");
    }
}
