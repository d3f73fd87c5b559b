//! Calls of systemctl.

use std::process::{Command, Stdio};

use super::output::warn;

/// True if systemd runs on this machine.
pub(super) fn has_systemd() -> bool {
    let mut systemctl = Command::new("systemctl");
    systemctl.arg("is-system-running").stdin(Stdio::null());
    // The exit status of systemctl does not tell if systemd runs: it is also nonzero if a running
    // systemd has failed units.
    systemctl
        .output()
        .is_ok_and(|output| output.stdout.trim_ascii() != b"offline")
}

/// Runs systemctl and returns true if it succeeds. Its errors go to standard error.
pub(super) fn systemctl(words: &[&str]) -> bool {
    let mut command = Command::new("systemctl");
    command
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    match command.status() {
        Ok(status) => status.success(),
        Err(error) => {
            warn(&format!("cannot run systemctl: {error}"));
            false
        }
    }
}
