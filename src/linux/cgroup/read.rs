//! Reads and writes files of cgroups.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;

/// Maximum number of bytes that are read of a file. The longest files have a line for each device
/// and CPU of a very large machine, and are far shorter.
const MAX_BYTES: u64 = 1 << 20;

/// Initial size of the buffer, in bytes. Most files fit into it and need only one read; for a
/// second read the kernel would generate the text again.
const USUALLY: usize = 4096;

/// Reads a file; `None` if it does not exist or cannot be read.
pub(super) fn text(file: &Path) -> Option<String> {
    text_of(&mut File::open(file).ok()?)
}

/// Reads the rest of an open file.
pub(super) fn text_of(file: &mut File) -> Option<String> {
    let mut text = String::with_capacity(USUALLY);
    file.take(MAX_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Writes to an existing file of the kernel. Does not create the file.
///
/// # Errors
///
/// If the file does not exist, or the kernel's error.
pub(super) fn write(file: &Path, words: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(file)?;
    file.write_all(words.as_bytes())
}

/// Reads the number in a file, [`u64::MAX`] for `max`; `None` if the file does not exist.
pub(super) fn number(file: &Path) -> Option<u64> {
    match text(file)?.trim() {
        "max" => Some(u64::MAX),
        digits => digits.parse().ok(),
    }
}

/// Iterates over the lines of `text` that consist of a key and a number.
pub(super) fn keyed(text: &str) -> impl Iterator<Item = (&str, u64)> {
    text.lines().filter_map(|line| {
        let (key, value) = line.split_once(' ')?;
        Some((key, value.trim().parse().ok()?))
    })
}

/// Returns the number that `text` has for the key `wanted`.
pub(super) fn value(text: &str, wanted: &str) -> Option<u64> {
    keyed(text)
        .find(|(key, _)| *key == wanted)
        .map(|(_, value)| value)
}

/// A key in a statistics file, and a function that stores its number in a message.
pub(super) type Setter<M> = (&'static str, fn(&mut M, u64));

/// Parses the numbers in `text`, and stores them in the fields of `message`. `setters` pairs
/// each key with the function that stores the key's number. Other keys are ignored.
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
    fn max_is_read_as_the_largest_number() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("memory.max");
        assert_eq!(number(&file), None);
        for (text, expected) in [("max\n", u64::MAX), ("4096\n", 4096)] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(number(&file), Some(expected));
        }
    }

    #[test]
    fn an_endless_file_is_read_up_to_the_limit() {
        assert_eq!(text(Path::new("/dev/zero")).unwrap().len(), 1 << 20);
    }

    #[test]
    fn lines_of_another_form_are_skipped() {
        let text = "low 0\nnonsense\noom_kill 2\noom x\n";
        let all: Vec<_> = keyed(text).collect();
        assert_eq!(all, [("low", 0), ("oom_kill", 2)]);
        assert_eq!(value(text, "oom_kill"), Some(2));
    }
}
