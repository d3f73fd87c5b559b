//! A pause container's program, as small as Rust makes it: it collects orphans, and exits on SIGINT
//! or SIGTERM.

use std::ffi::{c_int, c_void};

unsafe extern "C" {
    fn signal(number: c_int, handler: usize) -> usize;
    fn pause() -> c_int;
    fn waitpid(pid: c_int, status: *mut c_void, options: c_int) -> c_int;
    fn _exit(code: c_int) -> !;
}

const INT: c_int = 2;
const TERM: c_int = 15;
const CHILD: c_int = 17;
const NO_HANG: c_int = 1;

extern "C" fn leave(_signal: c_int) {
    // SAFETY: a signal handler may call _exit(2).
    unsafe { _exit(0) }
}

extern "C" fn fetch(_signal: c_int) {
    // SAFETY: a null pointer means that no status is returned.
    while unsafe { waitpid(-1, std::ptr::null_mut(), NO_HANG) } > 0 {}
}

fn main() {
    let handlers = [(INT, leave as *const () as usize), (TERM, leave as *const () as usize), (CHILD, fetch as *const () as usize)];
    for (number, handler) in handlers {
        // SAFETY: the handlers only make system calls.
        unsafe { signal(number, handler) };
    }
    loop {
        // SAFETY: pause(2) takes no arguments.
        unsafe { pause() };
    }
}
