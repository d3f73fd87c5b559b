//! The seccomp filter of a prober. It is installed when the prober's async runtime has opened its
//! own descriptors. A system call that the filter does not allow kills the prober.
//!
//! The filter allows calls for TCP connections, for waiting and for memory, and the calls that the
//! libraries of C and Rust make when a process exits.

use std::collections::BTreeMap;

use nix::libc;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch, apply_filter,
};

/// System calls that are allowed with any arguments.
const ALLOWED: &[libc::c_long] = &[
    // TCP connections need these calls.
    libc::SYS_connect,
    libc::SYS_getsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_shutdown,
    libc::SYS_close,
    // For waiting.
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_ppoll,
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_restart_syscall,
    // These calls manage memory. The function `program` adds `mmap` and `mprotect`, with
    // conditions.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    // TLS and hash maps get their random keys from this call.
    libc::SYS_getrandom,
    // Exit and abort need these calls. The C library also asks for process ids and for the number
    // of processors.
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_tgkill,
    libc::SYS_sched_getaffinity,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// System calls that only older platforms have.
#[cfg(target_arch = "x86_64")]
const ALLOWED_HERE: &[libc::c_long] = &[libc::SYS_epoll_wait, libc::SYS_poll, libc::SYS_time];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_HERE: &[libc::c_long] = &[];

/// Commands of fcntl(2) that query a descriptor. A debug build queries each descriptor before it
/// closes the descriptor.
const DESCRIPTOR_QUESTIONS: [libc::c_int; 2] = [libc::F_GETFD, libc::F_GETFL];

/// Flag of memory from which code can be executed.
const EXECUTABLE: u64 = libc::PROT_EXEC as u64;

/// Bits of a socket's type that are not flags.
const TYPE: u64 = 0xf;

/// Installs the filter, which the process cannot remove.
///
/// # Errors
///
/// If the kernel does not support filters, or the filter cannot be made for this platform.
pub(super) fn install() -> Result<(), seccompiler::Error> {
    let program = program()?;
    apply_filter(&program)
}

fn program() -> Result<BpfProgram, BackendError> {
    let allowed = ALLOWED.iter().chain(ALLOWED_HERE);
    let mut rules: BTreeMap<_, _> = allowed.map(|call| (*call, Vec::new())).collect();
    // Allow sockets only for TCP over IPv4 and IPv6.
    let stream = libc::SOCK_STREAM as u64;
    let is_stream = || argument(1, SeccompCmpOp::MaskedEq(TYPE), stream);
    let of_family = |family: i32| {
        SeccompRule::new(vec![
            argument(0, SeccompCmpOp::Eq, family as u64)?,
            is_stream()?,
        ])
    };
    let sockets = vec![of_family(libc::AF_INET)?, of_family(libc::AF_INET6)?];
    rules.insert(libc::SYS_socket, sockets);
    let questions = DESCRIPTOR_QUESTIONS
        .map(|question| SeccompRule::new(vec![argument(1, SeccompCmpOp::Eq, question as u64)?]));
    let questions = questions.into_iter().collect::<Result<_, _>>()?;
    rules.insert(libc::SYS_fcntl, questions);
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        let is_data = argument(2, SeccompCmpOp::MaskedEq(EXECUTABLE), 0)?;
        rules.insert(call, vec![SeccompRule::new(vec![is_data])?]);
    }
    SeccompFilter::new(
        rules,
        SeccompAction::KillProcess,
        SeccompAction::Allow,
        TargetArch::try_from(std::env::consts::ARCH)?,
    )?
    .try_into()
}

fn argument(
    number: u8,
    comparison: SeccompCmpOp,
    value: u64,
) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(number, SeccompCmpArgLen::Dword, comparison, value)
}
