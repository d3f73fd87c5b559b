//! What is left of a container's cgroups when nobody knows them any more: after a command of the OCI
//! runtime that was ended, or a shim that has died.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use super::hierarchy::mounted;
use super::{below, is_named_after, kill};

/// How long killed processes, and their cgroups, may take to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(1);

/// The directories of a container's own cgroups: as its OCI runtime has `noted` them, or as the bundle wants
/// them, for one that was being created. They are its own by their name, which has its id: in any other there
/// may be anybody.
pub fn of_container(noted: BTreeSet<PathBuf>, wanted: Option<&str>, id: &str) -> BTreeSet<PathBuf> {
    let mut cgroups = noted;
    // A path that does not begin with a slash is in systemd's form (`slice:prefix:name`): systemd removes that.
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

/// Kills everything in these cgroups and those below them, and removes them.
pub async fn raze(cgroups: &BTreeSet<PathBuf>) {
    let roots: Vec<_> = cgroups.iter().cloned().collect();
    let remove = || {
        roots.iter().fold(true, |all, root| {
            // The deepest first: each is named before those below it.
            let directories: Vec<_> = below(Some(root.clone())).collect();
            for directory in directories.iter().rev() {
                // Whoever comes meanwhile keeps it: it is looked for again.
                let _ = fs::remove_dir(directory);
            }
            all && !root.exists()
        })
    };
    if !kill::until_empty(&roots, GONE_WITHIN, remove).await {
        tracing::warn!(?cgroups, "cgroups are left behind");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_that_others_may_be_in_is_nobodys_own() {
        let directory = tempfile::tempdir().unwrap();
        let [own, shared] = ["web", "shared"].map(|name| directory.path().join(name));
        for path in [&own, &shared] {
            fs::create_dir(path).unwrap();
        }
        let found = of_container(BTreeSet::from([own.clone(), shared]), None, "web");
        assert_eq!(found, BTreeSet::from([own]));
    }
}
