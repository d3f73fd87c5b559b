//! The cgroups of a cluster: in each of the machine's cgroup hierarchies, a cgroup with the
//! cluster's name.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::harness::poll;

pub fn make(name: &str) {
    for hierarchy in all() {
        let dir = hierarchy.join(name);
        fs::create_dir_all(&dir).expect("a cgroup");
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if let Ok(all) = fs::read(hierarchy.join(file)) {
                let _ = fs::write(dir.join(file), all);
            }
        }
    }
}

/// Removes the cluster's cgroups. Waits until they have no processes.
pub fn remove(name: &str) {
    for hierarchy in all() {
        let top = hierarchy.join(name);
        let gone = || {
            remove_below(&top);
            (!top.exists()).then_some(())
        };
        if poll(Duration::from_secs(20), gone).is_none() {
            eprintln!("left behind: cgroup {}", top.display());
        }
    }
}

fn all() -> Vec<PathBuf> {
    let top = Path::new("/sys/fs/cgroup");
    if top.join("cgroup.controllers").exists() {
        return vec![top.to_owned()];
    }
    let entries = fs::read_dir(top).expect("the cgroup file systems");
    let dirs = entries.map(|entry| entry.expect("an entry").path());
    dirs.filter(|dir| dir.join("cgroup.procs").exists())
        .collect()
}

/// Removes a cgroup and those below it, the deepest first.
fn remove_below(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_below(&entry.path());
        }
    }
    let _ = fs::remove_dir(dir);
}
