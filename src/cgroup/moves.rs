//! What the kernel makes those wait for who move a process into a cgroup.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Reads a short file and writes to another.
const STACK: usize = 64 * 1024;

/// Somebody is waiting already.
static IS_UNDER_WAY: AtomicBool = AtomicBool::new(false);

/// Has the kernel get ready for a process that is to be moved into a cgroup, as the OCI runtime does
/// with each that it makes.
///
/// The first move in a while has to wait until every processor has been seen outside of what the move
/// excludes (`cgroup_threadgroup_rwsem` in the kernel's `kernel/cgroup/cgroup.c`, which begins with an
/// RCU grace period): ten milliseconds are a fourth of an exec. Those that follow soon wait for
/// nothing. So this process is moved to where it is while the runtime is still starting, by a thread
/// that ends with that. Where it cannot be done, the runtime waits.
pub fn prepare() {
    if IS_UNDER_WAY.swap(true, Ordering::Relaxed) {
        return;
    }
    let work = || {
        if let Some(file) = own_members() {
            // Zero stands for who writes.
            if let Err(error) = fs::write(&file, "0") {
                tracing::debug!(file = %file.display(), %error, "not prepared for moves");
            }
        }
        IS_UNDER_WAY.store(false, Ordering::Relaxed);
    };
    let thread = thread::Builder::new().stack_size(STACK).spawn(work);
    if let Err(error) = thread {
        IS_UNDER_WAY.store(false, Ordering::Relaxed);
        tracing::debug!(%error, "not prepared for moves");
    }
}

/// The file with the members of the cgroup that this process is in, of any hierarchy: what moves have
/// to wait for is common to all. Looked for anew each time, since a stale one would move us back.
fn own_members() -> Option<PathBuf> {
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    members(&text).into_iter().find(|file| file.is_file())
}

/// Where that file may be, by `/proc/self/cgroup` (`cgroups(7)`) and where hierarchies are mounted by
/// custom.
fn members(text: &str) -> Vec<PathBuf> {
    let memberships = text.lines().filter_map(|line| {
        let (_number, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        Some((controllers, path.strip_prefix('/')?))
    });
    let places = memberships.flat_map(|(controllers, path)| {
        let roots = match controllers {
            // Version 2, beside version 1 or alone.
            "" => vec!["unified", ""],
            _ => vec![controllers.strip_prefix("name=").unwrap_or(controllers)],
        };
        let place = |root| PathBuf::from("/sys/fs/cgroup").join(root).join(path);
        roots.into_iter().map(place).collect::<Vec<_>>()
    });
    places.map(|place| place.join("cgroup.procs")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_looked_for_where_hierarchies_are_mounted() {
        let files =
            members("9:name=systemd:/a\n4:cpu,cpuacct:/b/c\n0::/\nnonsense\n1:x:relative\n");
        let files: Vec<_> = files
            .iter()
            .map(|file| file.display().to_string())
            .collect();
        assert_eq!(
            files,
            [
                "/sys/fs/cgroup/systemd/a/cgroup.procs",
                "/sys/fs/cgroup/cpu,cpuacct/b/c/cgroup.procs",
                "/sys/fs/cgroup/unified/cgroup.procs",
                "/sys/fs/cgroup/cgroup.procs",
            ]
        );
    }

    #[test]
    fn nobody_is_moved() {
        let before = fs::read_to_string("/proc/self/cgroup").unwrap();
        prepare();
        // One that has found another under way was not needed, and one that has not ends.
        while IS_UNDER_WAY.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        assert_eq!(fs::read_to_string("/proc/self/cgroup").unwrap(), before);
    }
}
