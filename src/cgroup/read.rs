//! Files of a cgroup: text that the kernel makes when it is read, and heeds when it is written.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;

/// No file is read beyond this many bytes. The longest, with a line for each device and CPU of a
/// very large machine, are well below.
const AT_MOST: u64 = 1 << 20;

/// Enough for most files, so that the kernel need not make one of them twice.
const USUALLY: usize = 4096;

/// The text of a file; none if there is no such file, or the kernel refuses to read it.
pub(super) fn text(file: &Path) -> Option<String> {
    text_of(&mut File::open(file).ok()?)
}

/// The rest of an open file.
pub(super) fn text_of(file: &mut File) -> Option<String> {
    let mut text = String::with_capacity(USUALLY);
    file.take(AT_MOST).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Writes to a file that the kernel has made: where there is none, none is made.
///
/// # Errors
///
/// If there is no such file, or the kernel's refusal.
pub(super) fn write(file: &Path, words: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(file)?;
    file.write_all(words.as_bytes())
}

/// The number in a file, [`u64::MAX`] for `max`; none if there is no such file.
pub(super) fn number(file: &Path) -> Option<u64> {
    match text(file)?.trim() {
        "max" => Some(u64::MAX),
        digits => digits.parse().ok(),
    }
}

/// The lines that are a key and a number.
pub(super) fn keyed(text: &str) -> impl Iterator<Item = (&str, u64)> {
    text.lines().filter_map(|line| {
        let (key, value) = line.split_once(' ')?;
        Some((key, value.trim().parse().ok()?))
    })
}

/// The number of one key.
pub(super) fn value(text: &str, wanted: &str) -> Option<u64> {
    keyed(text)
        .find(|(key, _)| *key == wanted)
        .map(|(_, value)| value)
}

/// A setter of a message for a key of a file.
pub(super) type Setter<M> = (&'static str, fn(&mut M, u64));

/// Puts every number of a text into the field that its key belongs to.
pub(super) fn set<M>(message: &mut M, text: &str, setters: &[Setter<M>]) {
    for (key, value) in keyed(text) {
        if let Some((_, set)) = setters.iter().find(|(name, _)| *name == key) {
            set(message, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_limit_is_the_largest_number() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("memory.max");
        assert_eq!(number(&file), None);
        for (text, expected) in [("max\n", u64::MAX), ("4096\n", 4096)] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(number(&file), Some(expected));
        }
    }

    #[test]
    fn nothing_is_read_without_end() {
        assert_eq!(text(Path::new("/dev/zero")).unwrap().len(), 1 << 20);
    }

    #[test]
    fn lines_of_another_form_are_passed_over() {
        let text = "low 0\nnonsense\noom_kill 2\noom x\n";
        let all: Vec<_> = keyed(text).collect();
        assert_eq!(all, [("low", 0), ("oom_kill", 2)]);
        assert_eq!(value(text, "oom_kill"), Some(2));
    }
}
