//! Freezes and thaws cgroups v1 and v2.

use std::path::Path;

use super::below;
use super::read::{text, write};

/// The file that freezes or thaws a v1 cgroup, and the words to write to it.
const STATE: &str = "freezer.state";
const FROZEN: &str = "FROZEN";
const THAWED: &str = "THAWED";

/// The file that freezes or thaws a v2 cgroup, and its content while the cgroup is not frozen.
const FREEZE: &str = "cgroup.freeze";
const NOT_FROZEN: &str = "0";

/// Freezes a v1 cgroup and the cgroups below it, so that their processes cannot fork while the shim
/// kills them one by one.
pub(super) fn freeze(cgroup: &Path) {
    let file = cgroup.join(STATE);
    if file.exists()
        && let Err(error) = write(&file, FROZEN)
    {
        tracing::debug!(file = %file.display(), %error, "cgroup not frozen");
    }
}

/// Thaws a cgroup and the cgroups below it, whichever program has frozen them.
pub(super) fn thaw(cgroup: &Path) {
    for directory in below(Some(cgroup.to_owned())) {
        for (file, thawed) in [(STATE, THAWED), (FREEZE, NOT_FROZEN)] {
            let file = directory.join(file);
            if text(&file).is_some_and(|state| state.trim() != thawed)
                && let Err(error) = write(&file, thawed)
            {
                tracing::warn!(file = %file.display(), %error, "cgroup not thawed");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn cgroups_of_both_versions_are_thawed_with_those_below() {
        let cgroup = tempfile::tempdir().unwrap();
        let child = cgroup.path().join("child");
        fs::create_dir(&child).unwrap();
        fs::write(cgroup.path().join(STATE), "FREEZING\n").unwrap();
        fs::write(child.join(STATE), "FROZEN\n").unwrap();
        fs::write(child.join(FREEZE), "1\n").unwrap();
        thaw(cgroup.path());
        let read = |file: &Path| fs::read_to_string(file).unwrap();
        // The test's files are plain files: a short word overwrites only the beginning of a longer
        // one.
        assert!(read(&cgroup.path().join(STATE)).starts_with(THAWED));
        assert!(read(&child.join(STATE)).starts_with(THAWED));
        assert!(read(&child.join(FREEZE)).starts_with(NOT_FROZEN));
        assert!(!cgroup.path().join(FREEZE).exists());
    }
}
