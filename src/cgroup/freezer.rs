//! Freezing what is in a cgroup, in the words of either version.

use std::path::Path;

use super::below;
use super::read::{text, write};

/// The file of version 1, and what is written to it.
const STATE: &str = "freezer.state";
const FROZEN: &str = "FROZEN";
const THAWED: &str = "THAWED";

/// The file of version 2, and what is in it where nothing is frozen.
const FREEZE: &str = "cgroup.freeze";
const NOT_FROZEN: &str = "0";

/// Stops all that is in a cgroup of version 1 and below it, so that nothing of it forks while it is
/// killed one by one.
pub(super) fn freeze(cgroup: &Path) {
    let file = cgroup.join(STATE);
    if file.exists()
        && let Err(error) = write(&file, FROZEN)
    {
        tracing::debug!(file = %file.display(), %error, "not frozen");
    }
}

/// Lets go on what is frozen in a cgroup and in those below it, whoever has frozen it.
pub(super) fn thaw(cgroup: &Path) {
    for directory in below(Some(cgroup.to_owned())) {
        for (file, thawed) in [(STATE, THAWED), (FREEZE, NOT_FROZEN)] {
            let file = directory.join(file);
            if text(&file).is_some_and(|state| state.trim() != thawed)
                && let Err(error) = write(&file, thawed)
            {
                tracing::warn!(file = %file.display(), %error, "not thawed");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_is_frozen_below_a_cgroup_is_thawed_in_either_versions_words() {
        let cgroup = tempfile::tempdir().unwrap();
        let child = cgroup.path().join("child");
        fs::create_dir(&child).unwrap();
        fs::write(cgroup.path().join(STATE), "FREEZING\n").unwrap();
        fs::write(child.join(STATE), "FROZEN\n").unwrap();
        fs::write(child.join(FREEZE), "1\n").unwrap();
        thaw(cgroup.path());
        let read = |file: &Path| fs::read_to_string(file).unwrap();
        // A kernel replaces what is there; of a file of ours the rest stays.
        assert!(read(&cgroup.path().join(STATE)).starts_with(THAWED));
        assert!(read(&child.join(STATE)).starts_with(THAWED));
        assert!(read(&child.join(FREEZE)).starts_with(NOT_FROZEN));
        assert!(!cgroup.path().join(FREEZE).exists());
    }
}
