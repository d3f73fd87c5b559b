//! A wrapper of a shim: executes the shim as if on Linux 5.0. The kernel then answers `ENOSYS` to
//! all system calls that are newer, in the shim and in everything that the shim executes.
//!
//! The shim is a file of the same name in the directory `real` beside this program.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// The first system call that is newer than Linux 5.0. Since then, each system call has the same
/// number on every processor.
const FIRST_NEW: u32 = 424;

const ENOSYS: u32 = 38;

const PR_SET_SECCOMP: i32 = 22;
const SECCOMP_MODE_FILTER: u64 = 2;

const LOAD_WORD: u16 = 0x20;
const JUMP_IF_AT_LEAST: u16 = 0x35;
const RETURN: u16 = 0x06;

const ALLOW: u32 = 0x7fff_0000;
const FAIL: u32 = 0x0005_0000;

/// An instruction of a filter (`struct sock_filter`).
#[repr(C)]
struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    value: u32,
}

/// A filter (`struct sock_fprog`).
#[repr(C)]
struct Filter {
    length: u16,
    instructions: *const Instruction,
}

unsafe extern "C" {
    fn prctl(option: i32, mode: u64, filter: *const Filter) -> i32;
}

const fn instruction(code: u16, if_false: u8, value: u32) -> Instruction {
    Instruction {
        code,
        if_true: 0,
        if_false,
        value,
    }
}

fn main() {
    // The number of the system call is the first word that a filter sees.
    let instructions = [
        instruction(LOAD_WORD, 0, 0),
        instruction(JUMP_IF_AT_LEAST, 1, FIRST_NEW),
        instruction(RETURN, 0, FAIL | ENOSYS),
        instruction(RETURN, 0, ALLOW),
    ];
    let filter = Filter {
        length: instructions.len() as u16,
        instructions: instructions.as_ptr(),
    };
    // SAFETY: the filter and its instructions outlive the call.
    let outcome = unsafe { prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) };
    assert_eq!(outcome, 0, "seccomp: {}", std::io::Error::last_os_error());
    let this = std::env::current_exe().expect("the path of this program");
    let name = this.file_name().expect("a name");
    let real = this.with_file_name("real").join(name);
    let error = Command::new(&real).args(std::env::args_os().skip(1)).exec();
    panic!("{}: {error}", real.display());
}
