//! The last note of `usher install`, and its exit status.

use std::process::ExitCode;

use super::super::check;
use super::super::containerd::{NAME, Node, StatusError};
use super::super::output::note;
use super::super::systemd::has_systemd;
use super::Installer;
use anyhow::bail;

/// The exit status if the user has to restart containerd.
const RESTART_WANTED: u8 = 3;

impl Installer {
    /// Prints the last note, which says whether the user still has to restart containerd. Returns
    /// the exit status.
    pub(super) fn conclude(&self) -> ExitCode {
        let (done, meanwhile) = match self.wanted.remove {
            true => ("removed", "still has it loaded"),
            false => ("installed", "has not loaded it yet, so its pods fail"),
        };
        if let Some(pid) = self.awaits_restart() {
            let how = match has_systemd() {
                true => format!(": systemctl restart {}", self.node.flavor.unit()),
                false => " the way you usually start it".to_owned(),
            };
            note(&format!(
                "{NAME} is {done}, but the running containerd (process {pid}) {meanwhile}; restart containerd{how}"
            ));
            return ExitCode::from(RESTART_WANTED);
        }
        note(&match self.wanted.remove {
            true => format!("{NAME} is removed"),
            false => format!(
                "{NAME} is installed; in Kubernetes select it with a RuntimeClass whose handler is {NAME}"
            ),
        });
        ExitCode::SUCCESS
    }

    /// The process id of the running containerd, if the user still has to restart containerd.
    fn awaits_restart(&self) -> Option<u32> {
        if self.wanted.restart {
            return None;
        }
        let node = self.look_again();
        // When containerd starts, the distribution generates the configuration from the source
        // file.
        let is_generated_later = self.found.source.is_some()
            && (self.is_changed() || !self.wanted.remove && self.found.awaits_generation());
        let is_unloaded = match node.cri_status.as_ref()? {
            Err(StatusError::Failed(_)) => self.is_changed(),
            _ => node.unloaded().is_some(),
        };
        node.pid.filter(|_| is_generated_later || is_unloaded)
    }

    fn look_again(&self) -> Node {
        Node::look(
            Some(self.containerd.clone()),
            Some(self.node.config.clone()),
            self.wanted.path.clone(),
            self.wanted.flavor.0,
        )
    }

    /// Runs the checks of `usher check`, and fails if pods would not run.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let report = check::Report::of_installed(&self.look_again());
        // Without --restart the administrator restarts containerd later, so a problem that the
        // restart solves is no error.
        if report.ok || !self.wanted.restart && report.needs_only_a_restart() {
            return Ok(());
        }
        for finding in &report.findings {
            note(finding.text().trim_end());
        }
        bail!("{NAME} is installed, but its pods would not run yet; see above")
    }
}
