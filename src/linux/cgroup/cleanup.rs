//! Cleanup of a container's cgroups after a command of the OCI runtime was killed, or a shim has
//! died.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use super::hierarchy::mounted;
use super::{below, is_named_after, kill};

/// Time limit for killed processes to exit, and for their cgroups to be removed.
const GONE_WITHIN: Duration = Duration::from_secs(1);

/// Directories of the cgroups of one container. `noted` are the cgroups in the OCI runtime's state
/// of the container. `wanted` is the cgroup path in the container's bundle: the state may be
/// missing, because the creation was cut short. A cgroup without the container's ID in its name is
/// left out, because it may also contain other processes.
pub fn of_container(noted: BTreeSet<PathBuf>, wanted: Option<&str>, id: &str) -> BTreeSet<PathBuf> {
    let mut cgroups = noted;
    // A path without a leading slash has systemd's form (`slice:prefix:name`); systemd removes such
    // a cgroup itself.
    if let Some(path) = wanted.and_then(|path| path.strip_prefix('/')) {
        let path = Path::new(path);
        let is_plain = |part| matches!(part, Component::Normal(_));
        if path.components().next().is_some() && path.components().all(is_plain) {
            cgroups.extend(mounted().iter().map(|mount| mount.directory(path)));
        }
    }
    cgroups.retain(|directory| is_named_after(directory, id) && directory.is_dir());
    cgroups
}

/// Kills all processes in these cgroups and in the cgroups below them, and removes the cgroups.
pub async fn kill_and_remove(cgroups: &BTreeSet<PathBuf>) {
    let roots: Vec<_> = cgroups.iter().cloned().collect();
    let remove = || {
        roots.iter().fold(true, |all, root| {
            // Remove subdirectories first: `below` returns a directory before its subdirectories,
            // so go backward.
            let directories: Vec<_> = below(Some(root.clone())).collect();
            for directory in directories.iter().rev() {
                // This fails if a process has entered the cgroup in the meantime. The next round
                // kills that process.
                let _ = fs::remove_dir(directory);
            }
            all && !root.exists()
        })
    };
    if !kill::until_empty(&roots, GONE_WITHIN, remove).await {
        tracing::warn!(?cgroups, "cannot remove cgroups of a container");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_that_may_have_foreign_processes_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let [own, shared] = ["web", "shared"].map(|name| directory.path().join(name));
        for path in [&own, &shared] {
            fs::create_dir(path).unwrap();
        }
        let found = of_container(BTreeSet::from([own.clone(), shared]), None, "web");
        assert_eq!(found, BTreeSet::from([own]));
    }
}
