//! Installs programs that tests execute.
//!
//! The kernel refuses to execute a file that is open for writing (`ETXTBSY`, `execve(2)`). If a
//! thread has a file open, every process that another thread starts also has it open for a moment.
//! So separate processes write the programs, and exit before a test executes them.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Background, PATIENCE};

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

pub(super) fn busybox() -> PathBuf {
    let candidates = ["/bin/busybox", "/usr/bin/busybox"];
    let found = candidates
        .iter()
        .map(PathBuf::from)
        .find(|path| path.exists());
    found.expect("busybox is missing: apt-get install busybox-static")
}
