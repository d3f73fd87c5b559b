//! systemd, as far as commands of usher ask it.

use std::process::{Command, Stdio};

use super::output::warn;

/// True if systemd runs on this machine.
pub(super) fn has_systemd() -> bool {
    let mut systemctl = Command::new("systemctl");
    systemctl.arg("is-system-running").stdin(Stdio::null());
    // It fails where systemd runs and has something to complain of, too.
    systemctl
        .output()
        .is_ok_and(|output| output.stdout.trim_ascii() != b"offline")
}

/// True if systemctl succeeds with these words. Its errors go to standard error, and nothing to standard output.
pub(super) fn systemctl(words: &[&str]) -> bool {
    let mut command = Command::new("systemctl");
    command
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    match command.status() {
        Ok(status) => status.success(),
        Err(error) => {
            warn(&format!("systemctl cannot be run: {error}"));
            false
        }
    }
}
