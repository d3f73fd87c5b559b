//! Taking a process to a cgroup that there is.

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
