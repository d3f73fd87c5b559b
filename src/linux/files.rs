//! Replaces a file in one step: readers see the whole old file or the whole new file.
//!
//! Until the new file is complete, it has a temporary name, which is always the same. If the
//! process dies before that, one file stays, and the next replacement overwrites it. The crates
//! `tempfile` and `atomicwrites` choose random names, so each such death would leave a further
//! file.

use std::ffi::OsString;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

/// Attributes of the new file.
#[derive(Clone, Copy, Debug)]
pub struct Replacement {
    /// Permission bits of the new file, whatever the umask is.
    pub mode: u32,
    /// User and group ids of the new file; `None` for the ids of this process.
    pub owner: Option<(u32, u32)>,
    /// True if the content is written to the disk before the file gets its name. Then even a power
    /// failure leaves no part of a file.
    pub is_synced: bool,
}

impl Replacement {
    /// Returns attributes with the permission bits `mode`, for a file of this process's user. The
    /// file need not survive a power failure, because it is in memory or is soon removed.
    pub fn with_mode(mode: u32) -> Replacement {
        Replacement {
            mode,
            owner: None,
            is_synced: false,
        }
    }
}

/// Replaces a file, or creates it. Leaves nothing behind if it fails.
///
/// # Errors
///
/// If the directory is missing or full, or the file cannot be given its mode or owner.
pub fn replace(path: &Path, content: &[u8], by: Replacement) -> io::Result<()> {
    let unfinished = unfinished(path);
    let replaced = write(&unfinished, content, by).and_then(|()| fs::rename(&unfinished, path));
    if replaced.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    replaced
}

/// The temporary name of the new file. The name is hidden, and no pattern such as `*.toml` matches
/// it.
fn unfinished(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".usher-new");
    path.with_file_name(name)
}

fn write(path: &Path, content: &[u8], by: Replacement) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(path)?;
    if let Some((user, group)) = by.owner {
        fchown(&file, Some(user), Some(group))?;
    }
    file.set_permissions(Permissions::from_mode(by.mode))?;
    file.write_all(content)?;
    if by.is_synced {
        file.sync_all()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn names(directory: &Path) -> Vec<OsString> {
        let entries = fs::read_dir(directory).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect()
    }

    #[test]
    fn a_file_is_replaced_with_its_mode_and_nothing_else_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a.toml");
        for (content, mode) in [(&b"long content"[..], 0o600), (b"short", 0o644)] {
            replace(&file, content, Replacement::with_mode(mode)).unwrap();
            assert_eq!(fs::read(&file).unwrap(), content);
            assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, mode);
        }
        assert_eq!(names(directory.path()), ["a.toml"]);
    }

    #[test]
    fn a_replacement_that_fails_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a");
        fs::create_dir(&file).unwrap();
        replace(&file, b"content", Replacement::with_mode(0o600)).unwrap_err();
        assert_eq!(names(directory.path()), ["a"]);
        assert!(file.is_dir());
    }

    #[test]
    fn what_an_earlier_death_left_is_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a");
        fs::write(unfinished(&file), "a longer part").unwrap();
        replace(&file, b"content", Replacement::with_mode(0o600)).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"content");
        assert_eq!(names(directory.path()), ["a"]);
    }
}
