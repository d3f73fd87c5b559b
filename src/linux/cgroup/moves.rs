//! Prepares the kernel for moves of processes into cgroups. After a pause, the kernel delays the
//! first move. The shim makes a move of its own early, so that the delay passes while the OCI
//! runtime is still starting.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fs, io, thread};

use nix::unistd::gettid;

use super::Cgroup;
use super::hierarchy::Hierarchy;

/// Stack size of the thread in bytes. The thread only writes to a file.
const STACK: usize = 64 * 1024;

/// Files of a cgroup: writing a thread's ID moves that thread alone into the cgroup (`cgroups(7)`).
const THREADS_V1: &str = "tasks";
const THREADS_V2: &str = "cgroup.threads";

/// True while a thread prepares the kernel for moves. No second thread starts in this time.
static IS_UNDER_WAY: AtomicBool = AtomicBool::new(false);

/// Prepares the kernel for the move of a container's init process into its cgroup.
///
/// When no process was moved for a while, the next move waits for an RCU grace period
/// (`cgroup_threadgroup_rwsem` in the kernel's `kernel/cgroup/cgroup.c`): ten milliseconds, which
/// is a fourth of an exec. Further moves soon afterward do not wait. So as soon as the shim expects
/// a creation, it starts a thread that moves itself to its current cgroup, and ends. The shim does
/// the same again while the runtime is starting. If the thread's move fails, the runtime's move
/// waits instead.
pub fn prepare_for_container() {
    prepare();
}

/// Prepares the kernel for an exec. Does nothing on cgroup v2: runc 1.4 and crun create the process
/// in its cgroup and move no process, and a needless move would delay all forks on the node.
pub fn prepare_for_exec() {
    if matches!(Hierarchy::get(), Hierarchy::V1(_)) {
        prepare();
    }
}

fn prepare() {
    if IS_UNDER_WAY.swap(true, Ordering::Relaxed) {
        return;
    }
    // The kernel has one lock for moves in all hierarchies, so a move in any hierarchy is enough.
    let own = i32::try_from(std::process::id()).ok();
    let directory = own.and_then(|own| Cgroup::of(own).ok()?.directory());
    let work = move || {
        if let Some(directory) = directory
            && let Err(error) = stay_in(&directory)
        {
            tracing::debug!(directory = %directory.display(), %error, "not prepared for moves");
        }
        IS_UNDER_WAY.store(false, Ordering::Relaxed);
    };
    let thread = thread::Builder::new().stack_size(STACK).spawn(work);
    if let Err(error) = thread {
        IS_UNDER_WAY.store(false, Ordering::Relaxed);
        tracing::debug!(%error, "not prepared for moves");
    }
}

/// Moves the calling thread to `directory`, the cgroup of its process. The other threads stay where
/// they are. The process may have been moved to another cgroup in the meantime (option ShimCgroup).
/// Then v1 moves only this thread back, and v2 refuses the move.
fn stay_in(directory: &Path) -> io::Result<()> {
    let threads = match Hierarchy::get() {
        Hierarchy::V1(_) => THREADS_V1,
        Hierarchy::V2 => THREADS_V2,
    };
    // Write the thread's ID, not 0. For an ID the kernel waits for its slow lock now, so that a
    // later move need not wait. For 0 the kernel would not take the lock.
    fs::write(directory.join(threads), gettid().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_stays_in_its_cgroup() {
        let before = fs::read_to_string("/proc/self/cgroup").unwrap();
        prepare_for_container();
        // This test or another one has started the thread. It ends by itself.
        while IS_UNDER_WAY.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        assert_eq!(fs::read_to_string("/proc/self/cgroup").unwrap(), before);
    }

    #[test]
    fn only_the_calling_thread_is_moved() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_owned();
        let thread = thread::spawn(move || stay_in(&path).map(|()| gettid()));
        let tid = thread.join().unwrap().unwrap();
        let files = fs::read_dir(directory.path()).unwrap().flatten();
        let written: Vec<_> = files
            .map(|file| {
                let name = file.file_name().to_str().unwrap().to_owned();
                (name, fs::read_to_string(file.path()).unwrap())
            })
            .collect();
        let [(name, text)] = &written[..] else {
            panic!("one file, not {written:?}")
        };
        assert!([THREADS_V1, THREADS_V2].contains(&name.as_str()), "{name}");
        assert_eq!(*text, tid.to_string());
    }
}
