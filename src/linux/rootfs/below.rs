//! Unmounts everything below a directory.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::unmount_at;

/// Unmounts everything at `target` and below it, even if `target` itself is no mount point.
pub(super) fn unmount(target: &Path) {
    unmount_at(target);
    // Detaching a mount also detaches the mounts on it.
    let is_empty = std::fs::read_dir(target).map_or(true, |mut entries| entries.next().is_none());
    if is_empty {
        return;
    }
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    for mounted in mounts(&table).filter(|at| at.starts_with(target)) {
        unmount_at(&mounted);
    }
}

/// Mount points in a table of mounts, `/proc/<pid>/mountinfo`.
pub(super) fn mounts(table: &[u8]) -> impl Iterator<Item = PathBuf> {
    let fields = table
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    fields.map(unescape)
}

/// Unescapes a path of `/proc/self/mountinfo`, in which spaces and some other characters are octal
/// (`proc(5)`).
fn unescape(field: &[u8]) -> PathBuf {
    let mut path = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((byte, tail)) = rest.split_first() {
        let digits = tail
            .get(..3)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match escaped.filter(|_| *byte == b'\\') {
            Some(escaped) => {
                path.push(escaped);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                path.push(*byte);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_mounts_are_unescaped() {
        for (field, path) in [
            ("/a/b", "/a/b"),
            ("/a\\040b\\134c", "/a b\\c"),
            ("/a\\04", "/a\\04"),
            ("\\", "\\"),
        ] {
            assert_eq!(unescape(field.as_bytes()), Path::new(path));
        }
    }
}
