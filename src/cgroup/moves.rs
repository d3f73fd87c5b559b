//! What the kernel makes those wait for who move a process into a cgroup.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fs, io, thread};

use nix::unistd::gettid;

use super::Cgroup;
use super::hierarchy::Hierarchy;

/// Writes to a file.
const STACK: usize = 64 * 1024;

/// The files of a cgroup that take single threads in (`cgroups(7)`).
const THREADS_V1: &str = "tasks";
const THREADS_V2: &str = "cgroup.threads";

/// Somebody is waiting already.
static IS_UNDER_WAY: AtomicBool = AtomicBool::new(false);

/// Has the kernel get ready for the move of a container's first process into its cgroup.
///
/// The first move in a while has to wait until every processor has been seen outside of what the move
/// excludes (`cgroup_threadgroup_rwsem` in the kernel's `kernel/cgroup/cgroup.c`, which begins with an
/// RCU grace period): ten milliseconds are a fourth of an exec. Those that follow within another such
/// period wait for nothing. So a thread of this process is moved to where it is as soon as it is known
/// that something will be made, and once more while the runtime is starting; it ends with that. Where it
/// cannot be done, the runtime waits.
pub fn prepare_for_container() {
    prepare();
}

/// The same for a process that is executed in a container. In version 2 runc 1.4, and crun, move none:
/// they clone it into its cgroup. There the move would be for nothing, and all that forks on the node
/// waits for it.
pub fn prepare_for_exec() {
    if matches!(Hierarchy::get(), Hierarchy::V1(_)) {
        prepare();
    }
}

fn prepare() {
    if IS_UNDER_WAY.swap(true, Ordering::Relaxed) {
        return;
    }
    // Of any hierarchy: what moves have to wait for is common to all.
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

/// Moves the calling thread to the cgroup of its process, and no other thread: if somebody moves the
/// process meanwhile, as ShimCgroup has it, it stays there. Then version 1 has this thread elsewhere,
/// and version 2 refuses.
fn stay_in(directory: &Path) -> io::Result<()> {
    let threads = match Hierarchy::get() {
        Hierarchy::V1(_) => THREADS_V1,
        Hierarchy::V2 => THREADS_V2,
    };
    // Zero would do for the writer, but the kernel lets a thread that moves itself wait for nothing.
    fs::write(directory.join(threads), gettid().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_moved() {
        let before = fs::read_to_string("/proc/self/cgroup").unwrap();
        prepare_for_container();
        // Another test may have begun it as well: whoever did, it ends.
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
