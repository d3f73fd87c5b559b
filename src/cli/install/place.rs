//! Writes files atomically: a reader sees the old text or the new one, each whole.

use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use anyhow::Context;
use usher_linux::files::{self, Replacement};

use super::super::containerd::NAME;

const MODE: u32 = 0o644;

/// The path of one of usher's files beside another file, for example `config.toml.usher-restart`.
pub(super) fn beside(file: &Path, what: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(format!(".{NAME}-{what}"));
    PathBuf::from(name)
}

/// The file's text, or None if the file does not exist.
///
/// # Errors
///
/// If the file cannot be read or is not text.
pub(super) fn read(file: &Path) -> anyhow::Result<Option<String>> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", file.display())),
    }
}

/// Replaces a file's text and keeps the file's mode and owner. If `text` is None, removes the file.
///
/// # Errors
///
/// If the file cannot be changed. It then keeps its old text.
pub(super) fn put(file: &Path, text: Option<&str>) -> anyhow::Result<()> {
    let done = match text {
        None => remove(file),
        Some(text) => replace(file, text.as_bytes()),
    };
    done.with_context(|| format!("cannot change {}", file.display()))
}

/// Returns the missing directories among this directory and its parents. The outermost one comes
/// first.
pub(super) fn missing_directories(directory: &Path) -> Vec<PathBuf> {
    let missing = directory.ancestors().take_while(|it| !it.exists());
    let mut missing: Vec<_> = missing.map(Path::to_owned).collect();
    missing.reverse();
    missing
}

/// Removes those of the directories that are empty, the innermost first. Returns the removed
/// directories.
pub(super) fn remove_empty(mut directories: Vec<PathBuf>) -> Vec<PathBuf> {
    directories.sort();
    directories.dedup();
    directories.reverse();
    directories.retain(|directory| fs::remove_dir(directory).is_ok());
    directories
}

/// Removes a file; succeeds if it does not exist.
pub(super) fn remove(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn replace(file: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(directory) = file.parent() {
        fs::create_dir_all(directory)?;
    }
    let like = fs::metadata(file).ok();
    let by = Replacement {
        mode: like.as_ref().map_or(MODE, |like| like.mode()),
        owner: like.map(|like| (like.uid(), like.gid())),
        is_synced: true,
    };
    files::replace(file, bytes, by)
}

/// Copies a program under a temporary name into its destination's directory, where it can be tried.
pub(super) fn copy_program(from: &Path, to: &Path) -> io::Result<PathBuf> {
    if let Some(directory) = to.parent() {
        fs::create_dir_all(directory)?;
    }
    let new = beside(to, "new");
    fs::copy(from, &new)?;
    fs::set_permissions(&new, Permissions::from_mode(0o755))?;
    File::open(&new)?.sync_all()?;
    Ok(new)
}

/// The path with all symbolic links resolved. The file need not exist.
pub(super) fn resolve(file: &Path) -> PathBuf {
    const MOST_LINKS: usize = 40;
    let mut rest = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    for _ in 0..MOST_LINKS {
        match fs::read_link(&rest) {
            Ok(to) => rest = rest.parent().unwrap_or(Path::new("/")).join(to),
            Err(_) => break,
        }
    }
    if let Ok(file) = fs::canonicalize(&rest) {
        return file;
    }
    match (rest.parent(), rest.components().next_back()) {
        (Some(parent), Some(Component::Normal(name))) => resolve(parent).join(name),
        _ => rest,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_replaced_file_keeps_its_mode_and_leaves_no_other_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("etc/config.toml");
        put(&file, Some("a = 1\n")).unwrap();
        let mode = |file: &Path| fs::metadata(file).unwrap().mode() & 0o777;
        assert_eq!(mode(&file), MODE);
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        put(&file, Some("a = 2\n")).unwrap();
        assert_eq!(
            (mode(&file), read(&file).unwrap()),
            (0o600, Some("a = 2\n".to_owned()))
        );
        for _ in 0..2 {
            put(&file, None).unwrap();
            assert_eq!(read(&file).unwrap(), None);
        }
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 0);
    }

    #[test]
    fn made_directories_are_removed_once_they_are_empty() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path();
        let made = missing_directories(&top.join("a/b"));
        assert_eq!(made, [top.join("a"), top.join("a/b")]);
        assert_eq!(missing_directories(top), Vec::<PathBuf>::new());
        fs::create_dir_all(top.join("a/b")).unwrap();
        fs::write(top.join("a/mine"), "").unwrap();
        assert_eq!(remove_empty(made.clone()), [top.join("a/b")]);
        fs::remove_file(top.join("a/mine")).unwrap();
        assert_eq!(remove_empty(made), [top.join("a")]);
    }

    #[test]
    fn links_are_followed_to_files_that_do_not_exist_yet() {
        let directory = tempfile::tempdir().unwrap();
        let top = fs::canonicalize(directory.path()).unwrap();
        fs::create_dir(top.join("real")).unwrap();
        symlink("real", top.join("linked")).unwrap();
        symlink("../linked/new.toml", top.join("real/config.toml")).unwrap();
        for (file, expected) in [
            ("linked/a/b.toml", "real/a/b.toml"),
            ("real/config.toml", "real/new.toml"),
            ("real", "real"),
        ] {
            assert_eq!(resolve(&top.join(file)), top.join(expected), "{file}");
        }
    }
}
