//! The last sentence of `usher install`, and its exit status.

use std::process::ExitCode;

use super::super::check;
use super::super::containerd::{NAME, Node, Untold};
use super::super::output::note;
use super::super::systemd::has_systemd;
use super::Installer;

/// The exit status where a restart of containerd is left to the caller.
const RESTART_WANTED: u8 = 3;

impl Installer {
    /// The last sentence, and the exit status that agrees with it.
    pub(super) fn conclude(&self) -> ExitCode {
        let (done, meanwhile) = match self.wanted.remove {
            true => ("taken away", "still knows it"),
            false => ("in place", "does not know it yet, so its pods fail"),
        };
        if let Some(pid) = self.awaits_restart() {
            let how = match has_systemd() {
                true => format!(": systemctl restart {}", self.node.flavor.unit()),
                false => " the way you usually start it".to_owned(),
            };
            note(&format!(
                "{NAME} is {done}, and the containerd that runs (process {pid}) {meanwhile}; restart containerd{how}"
            ));
            return ExitCode::from(RESTART_WANTED);
        }
        note(&match self.wanted.remove {
            true => format!("{NAME} is taken away"),
            false => format!(
                "{NAME} is installed; in Kubernetes a RuntimeClass with the handler {NAME} selects it"
            ),
        });
        ExitCode::SUCCESS
    }

    /// The process of the running containerd, if it is left to the caller to restart it.
    fn awaits_restart(&self) -> Option<u32> {
        if self.wanted.restart {
            return None;
        }
        let node = self.look_again();
        // Its configuration is made of the source when it starts.
        let is_made_later = self.found.source.is_some()
            && (self.is_changed() || !self.wanted.remove && self.found.is_to_be_made_anew());
        let is_unloaded = match node.told.as_ref()? {
            Err(Untold::Because(_)) => self.is_changed(),
            _ => node.unloaded().is_some(),
        };
        node.pid.filter(|_| is_made_later || is_unloaded)
    }

    fn look_again(&self) -> Node {
        Node::look(
            Some(self.containerd.clone()),
            Some(self.node.config.clone()),
            self.wanted.path.clone(),
            self.wanted.flavor.0,
        )
    }

    /// Whether pods would run now, as `usher check` sees it.
    pub(super) fn check(&self) -> Result<(), String> {
        let report = check::Report::of_installed(&self.look_again());
        // Without --restart the administrator restarts containerd.
        if report.ok || !self.wanted.restart && report.wants_a_restart_alone() {
            return Ok(());
        }
        for finding in &report.findings {
            note(finding.text().trim_end());
        }
        Err(format!(
            "{NAME} is in place, but its pods would not run yet, see above"
        ))
    }
}
