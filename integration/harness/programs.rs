//! Programs that tests put into place, to be executed.
//!
//! What somebody has open for writing cannot be executed (`ETXTBSY`, `execve(2)`), and what one thread
//! has open is open for a moment in all that another thread executes. So these are written by processes
//! of their own, which have ended before anybody executes what they wrote.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Background, PATIENCE};

/// Writes a script.
#[track_caller]
pub fn write_program(path: &Path, text: &str) {
    let shell = ["sh", "-c", r#"cat > "$0" && chmod 755 "$0""#];
    busybox_does(&shell, &[path], text);
}

/// Copies a program.
#[track_caller]
pub fn copy_program(from: &Path, to: &Path) {
    busybox_does(&["cp"], &[from, to], "");
}

#[track_caller]
fn busybox_does(words: &[&str], paths: &[&Path], input: &str) {
    let mut command = Command::new(busybox());
    command.args(words).args(paths);
    let mut writing = Background::spawn(command);
    writing.try_write(input.as_bytes());
    let finished = writing.finish(PATIENCE);
    assert!(finished.ok(), "{words:?} {paths:?}: {}", finished.err());
}

/// The static one.
pub(super) fn busybox() -> PathBuf {
    let candidates = ["/bin/busybox", "/usr/bin/busybox"];
    let found = candidates
        .iter()
        .map(PathBuf::from)
        .find(|path| path.exists());
    found.expect("busybox is missing: apt-get install busybox-static")
}
