//! What the kernel makes those wait for who move a process into a cgroup.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::{Cgroup, MEMBERS};

/// Writes to a file.
const STACK: usize = 64 * 1024;

/// Somebody is waiting already.
static IS_UNDER_WAY: AtomicBool = AtomicBool::new(false);

/// Has the kernel get ready for a process that is to be moved into a cgroup, as the OCI runtime does
/// with each that it makes.
///
/// The first move in a while has to wait until every processor has been seen outside of what the move
/// excludes (`cgroup_threadgroup_rwsem` in the kernel's `kernel/cgroup/cgroup.c`, which begins with an
/// RCU grace period): ten milliseconds are a fourth of an exec. Those that follow within another such
/// period wait for nothing. So this process is moved to where it is as soon as it is known that something
/// will be made, and once more while the runtime is starting, by a thread that ends with that. Where it
/// cannot be done, the runtime waits.
pub fn prepare() {
    if IS_UNDER_WAY.swap(true, Ordering::Relaxed) {
        return;
    }
    // Of any hierarchy: what moves have to wait for is common to all. Looked for anew each time, since
    // a stale one would move us back.
    let own = i32::try_from(std::process::id()).ok();
    let directory = own.and_then(|own| Cgroup::of(own).ok()?.directory());
    let work = move || {
        // Zero stands for who writes.
        if let Some(file) = directory.map(|directory| directory.join(MEMBERS))
            && let Err(error) = fs::write(&file, "0")
        {
            tracing::debug!(file = %file.display(), %error, "not prepared for moves");
        }
        IS_UNDER_WAY.store(false, Ordering::Relaxed);
    };
    let thread = thread::Builder::new().stack_size(STACK).spawn(work);
    if let Err(error) = thread {
        IS_UNDER_WAY.store(false, Ordering::Relaxed);
        tracing::debug!(%error, "not prepared for moves");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_moved() {
        let before = fs::read_to_string("/proc/self/cgroup").unwrap();
        prepare();
        // Another test may have begun it as well: whoever did, it ends.
        while IS_UNDER_WAY.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        assert_eq!(fs::read_to_string("/proc/self/cgroup").unwrap(), before);
    }
}
