//! Moving a process to a cgroup.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::MEMBERS;
use super::hierarchy::mounted;

/// Moves process `pid` to `cgroup`, a path below the root, in every hierarchy that has such a cgroup.
///
/// # Errors
///
/// What is wrong, as the predicate of a sentence about it: there is no such cgroup, or the process
/// cannot be moved there.
pub fn join(pid: u32, cgroup: &str) -> Result<(), String> {
    let below = Path::new(cgroup.trim_start_matches('/'));
    let paths = mounted().into_iter().map(|mount| mount.directory(below));
    let there: Vec<PathBuf> = paths.filter(|path| path.is_dir()).collect();
    if there.is_empty() {
        return Err("does not exist, expected the path of a cgroup".to_owned());
    }
    for path in there {
        fs::write(path.join(MEMBERS), pid.to_string())
            .map_err(|error| format!("cannot be joined: {}: {error}", path.display()))?;
    }
    Ok(())
}

/// Makes the cgroup that has these directories, one in each hierarchy, and moves this process to it. A hierarchy
/// without the cgroup above is left out; where none has that one, it is made.
///
/// # Errors
///
/// A sentence with the directory. The cgroup stays.
pub fn enter(cgroup: &BTreeSet<PathBuf>) -> Result<(), String> {
    let has_parent = |path: &&PathBuf| path.parent().is_some_and(Path::is_dir);
    let mut chosen: Vec<&PathBuf> = cgroup.iter().filter(has_parent).collect();
    if chosen.is_empty() {
        chosen = cgroup.iter().collect();
    }
    for path in chosen {
        // Zero stands for the process that writes it.
        fs::create_dir_all(path)
            .and_then(|()| fs::write(path.join(MEMBERS), "0"))
            .map_err(|error| format!("cgroup {}: {error}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_is_made_where_the_one_above_exists() {
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
