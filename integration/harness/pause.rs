//! What holds the namespaces of a pod, as small as Rust makes it: it does nothing, collects what has
//! lost its parent, and goes when it is told to.

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
    // SAFETY: may be called in a handler, as all here.
    unsafe { _exit(0) }
}

extern "C" fn fetch(_signal: c_int) {
    // SAFETY: no status is asked for.
    while unsafe { waitpid(-1, std::ptr::null_mut(), NO_HANG) } > 0 {}
}

fn main() {
    let handlers = [(INT, leave as *const () as usize), (TERM, leave as *const () as usize), (CHILD, fetch as *const () as usize)];
    for (number, handler) in handlers {
        // SAFETY: the handlers do nothing but system calls.
        unsafe { signal(number, handler) };
    }
    loop {
        // SAFETY: it takes nothing.
        unsafe { pause() };
    }
}
