//! Lets the kernel's delay of moves into cgroups pass while the OCI runtime is still starting.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fs, io, thread};

use nix::unistd::gettid;

use super::Cgroup;
use super::hierarchy::Hierarchy;

/// Stack of the thread, which only writes to a file.
const STACK: usize = 64 * 1024;

/// Files of a cgroup to which single threads are moved (`cgroups(7)`).
const THREADS_V1: &str = "tasks";
const THREADS_V2: &str = "cgroup.threads";

/// True while a thread prepares the kernel.
static IS_UNDER_WAY: AtomicBool = AtomicBool::new(false);

/// Prepares the kernel for the move of a container's init process into its cgroup.
///
/// After a pause, the first move waits for an RCU grace period (`cgroup_threadgroup_rwsem` in the
/// kernel's `kernel/cgroup/cgroup.c`): ten milliseconds, which is a fourth of an exec. Moves that
/// follow soon after do not wait. So as soon as the shim expects a creation, a thread of this
/// process moves itself to the cgroup that it is in already. It does so again while the runtime is
/// starting, and ends. If these moves fail, the runtime waits instead.
pub fn prepare_for_container() {
    prepare();
}

/// Prepares the kernel for an exec. On cgroup v2 it does nothing: runc 1.4 and crun clone the
/// process into its cgroup and move none, and a needless move would delay all forks on the node.
pub fn prepare_for_exec() {
    if matches!(Hierarchy::get(), Hierarchy::V1(_)) {
        prepare();
    }
}

fn prepare() {
    if IS_UNDER_WAY.swap(true, Ordering::Relaxed) {
        return;
    }
    // Any hierarchy will do: moves in all of them share the lock.
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

/// Moves only the calling thread to the cgroup of its process. The process may be moved elsewhere
/// meanwhile (option ShimCgroup), and this does not move it back. In v1 only this thread returns,
/// and v2 refuses the move.
fn stay_in(directory: &Path) -> io::Result<()> {
    let threads = match Hierarchy::get() {
        Hierarchy::V1(_) => THREADS_V1,
        Hierarchy::V2 => THREADS_V2,
    };
    // The thread's ID, not 0: a thread that moves itself by writing 0 does not wait, so the kernel
    // would not be prepared.
    fs::write(directory.join(threads), gettid().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_stays_in_its_cgroup() {
        let before = fs::read_to_string("/proc/self/cgroup").unwrap();
        prepare_for_container();
        // Another test may have started the thread; in any case it ends.
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
