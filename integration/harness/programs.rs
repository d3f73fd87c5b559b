//! Installs programs that tests execute.
//!
//! A file that is open for writing cannot be executed (`ETXTBSY`, `execve(2)`), and a file opened
//! by one thread is briefly open in every process that another thread starts. So processes of their
//! own write these files, and exit before a program is executed.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Background, PATIENCE};

/// Writes a script.
#[track_caller]
pub fn write_program(path: &Path, text: &str) {
    let shell = ["sh", "-c", r#"cat > "$0" && chmod 755 "$0""#];
    run_busybox(&shell, &[path], text);
}

#[track_caller]
pub fn copy_program(from: &Path, to: &Path) {
    run_busybox(&["cp"], &[from, to], "");
}

#[track_caller]
fn run_busybox(words: &[&str], paths: &[&Path], input: &str) {
    let mut command = Command::new(busybox());
    command.args(words).args(paths);
    let mut writing = Background::spawn(command);
    writing.try_write(input.as_bytes());
    let finished = writing.finish(PATIENCE);
    assert!(finished.ok(), "{words:?} {paths:?}: {}", finished.err());
}

/// The static busybox.
pub(super) fn busybox() -> PathBuf {
    let candidates = ["/bin/busybox", "/usr/bin/busybox"];
    let found = candidates
        .iter()
        .map(PathBuf::from)
        .find(|path| path.exists());
    found.expect("busybox is missing: apt-get install busybox-static")
}
