//! Moves a process to a cgroup.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::MEMBERS;
use super::hierarchy::mounted;
use crate::PathError;

/// The reason why a process cannot be moved to a cgroup. The message has no subject: the caller
/// puts the cgroup's path before the message.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error("does not exist; expected a path below the root cgroup, such as /system.slice")]
    NoCgroup,
    #[error("cannot be joined: {0}")]
    Refused(#[from] PathError),
}

/// Moves process `pid` to `cgroup`, a path below the root, in each hierarchy that has this cgroup.
///
/// # Errors
///
/// If the cgroup does not exist, or the process cannot be moved.
pub fn join(pid: u32, cgroup: &str) -> Result<(), JoinError> {
    let below = Path::new(cgroup.trim_start_matches('/'));
    let paths = mounted().into_iter().map(|mount| mount.directory(below));
    let there: Vec<PathBuf> = paths.filter(|path| path.is_dir()).collect();
    if there.is_empty() {
        return Err(JoinError::NoCgroup);
    }
    for path in there {
        let members = path.join(MEMBERS);
        fs::write(&members, pid.to_string()).map_err(PathError::cannot("write", &members))?;
    }
    Ok(())
}

/// Makes a cgroup, and moves this process to it. `cgroup` has the cgroup's directory in each
/// hierarchy. A hierarchy that lacks the parent cgroup is left out. If all hierarchies lack the
/// parent, the parent is made in all of them.
///
/// # Errors
///
/// The first error. The function does not remove the directories that it has made before the error.
pub fn enter(cgroup: &BTreeSet<PathBuf>) -> Result<(), PathError> {
    let has_parent = |path: &&PathBuf| path.parent().is_some_and(Path::is_dir);
    let mut chosen: Vec<&PathBuf> = cgroup.iter().filter(has_parent).collect();
    if chosen.is_empty() {
        chosen = cgroup.iter().collect();
    }
    for path in chosen {
        // The kernel takes 0 as the process that writes.
        fs::create_dir_all(path)
            .and_then(|()| fs::write(path.join(MEMBERS), "0"))
            .map_err(PathError::cannot("enter cgroup", path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_is_made_in_the_hierarchies_that_have_its_parent() {
        let root = tempfile::tempdir().unwrap();
        let [cpu, pids] = ["cpu", "pids"].map(|name| root.path().join(name));
        fs::create_dir_all(cpu.join("pod")).unwrap();
        fs::create_dir_all(&pids).unwrap();
        let own = |pod: &str| [&cpu, &pids].map(|root| root.join(pod).join("own"));
        enter(&own("pod").into()).unwrap();
        assert_eq!(own("pod").map(|path| path.is_dir()), [true, false]);
        assert_eq!(
            fs::read_to_string(cpu.join("pod/own").join(MEMBERS)).unwrap(),
            "0"
        );
        enter(&own("other").into()).unwrap();
        assert_eq!(own("other").map(|path| path.is_dir()), [true, true]);
    }
}
