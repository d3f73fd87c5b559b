//! `usher check`: tells whether a node is ready for pods that use usher.
//!
//! Each check is a function that reads the [`Node`] and returns findings, each with its cure. No
//! check changes the node.

mod annotations;
mod cures;
mod daemon;
mod finding;
mod kernel;
mod runtime;
mod shim;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::containerd::{self, Node};
use super::output::{self, Failure, Output, Stdout, styled};
use cures::Cures;
use finding::{Code, Finding, Group, Subject};

const OWN_CONFIG: Subject = Subject::new(Group::Configuration, "usher's configuration");

/// Checks whether this node is ready for usher
///
/// Looks for the shim where containerd looks for it, asks containerd for its effective
/// configuration, and checks the kernel and usher's own configuration file. Asks a running
/// containerd which configuration it has loaded, and which features of the runtime it reports to
/// kubelet. The report begins with the command to run first. Each finding has a code, its cure, and
/// its place in the manual. Changes nothing, and containerd need not run.
///
/// Fields with `-o json`: `containerd` (`program`, `version`, `config`, `pid`, null where unknown),
/// `ok`, `first` (the command to run first, or null), and `findings`, each with `group`
/// (`containerd`, `runtime`, `node`, `configuration`), `about`, `level` (`ok`, `warning`,
/// `problem`), `code` (null if ok), `says`, `run` (the command that cures it, or null), `add`
/// (lines that cure it, or null) with the `file` and the `table` to add them to (null if `add` has
/// its own table), and `see`.
#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0 if nothing is wrong (there may be warnings), 1 otherwise.")]
pub(super) struct Check {
    /// containerd's configuration file [default: that of the running containerd, else
    /// /etc/containerd/config.toml]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The containerd program [default: the running one, else the one on the PATH]
    #[arg(long, value_name = "PATH")]
    containerd: Option<PathBuf>,
    /// containerd's PATH [default: that of the running containerd, else this command's]
    #[arg(long, value_name = "DIR:DIR…")]
    path: Option<String>,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Serialize)]
pub(super) struct Report {
    containerd: containerd::Facts,
    pub(super) ok: bool,
    /// The command to run first.
    first: Option<String>,
    pub(super) findings: Vec<Finding>,
}

impl Check {
    pub(super) fn run(self, stdout: &mut Stdout) -> Result<ExitCode, Failure> {
        let text = |path: &Option<PathBuf>| Some(path.as_ref()?.to_string_lossy().into_owned());
        let options = [
            ("--config", text(&self.config)),
            ("--containerd", text(&self.containerd)),
            ("--path", self.path.clone()),
        ];
        let node = Node::look(self.containerd, self.config, self.path, None);
        let report = Report::of(&node, &Cures::of(&node, &options));
        match self.output.is_json() {
            true => stdout.json(&report)?,
            false => stdout.text(report.text())?,
        }
        Ok(match report.ok {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }
}

impl Report {
    /// The report of the checks at the end of `usher install`. The commands that it proposes have
    /// no options such as `--config`.
    pub(super) fn of_installed(node: &Node) -> Report {
        Report::of(node, &Cures::of(node, &[]))
    }

    fn of(node: &Node, cures: &Cures) -> Report {
        let mut findings = daemon::findings(node, cures);
        findings.extend(runtime::findings(node, cures));
        findings.extend(annotations::findings(node, cures));
        findings.push(own_config());
        findings.extend(kernel::findings());
        Report {
            containerd: node.facts(),
            ok: !findings.iter().any(Finding::is_problem),
            first: first(&findings),
            findings,
        }
    }

    /// True if a restart of containerd would solve every problem of the report.
    pub(super) fn needs_only_a_restart(&self) -> bool {
        let mut problems = self.findings.iter().filter(|finding| finding.is_problem());
        problems
            .all(|finding| matches!(finding.code, Some(Code::ContainerdStale | Code::CriFailed)))
    }

    /// The headline of the report: the command to run first, or the first problem if there is no
    /// command. Empty if there is no problem.
    fn headline(&self) -> String {
        let mut problems = self.findings.iter().filter(|finding| finding.is_problem());
        let Some(problem) = problems.next() else {
            return String::new();
        };
        const NOT_READY: &str = "This node is not ready for usher.";
        if let Some(command) = &self.first {
            let command = styled(output::BOLD, command);
            return format!("{NOT_READY} First run\n\n    {command}\n\n");
        }
        let code = problem.code.map(Code::word).unwrap_or_default();
        let code = styled(output::BOLD, code);
        format!("{NOT_READY} First fix {code}:\n\n    {}\n\n", problem.says)
    }

    /// The text output: the headline, then the findings by group.
    fn text(&self) -> String {
        let mut text = self.headline();
        for group in Group::value_variants() {
            let findings = self.findings.iter().filter(|it| it.group == *group);
            let lines: String = findings.map(Finding::text).collect();
            if lines.is_empty() {
                continue;
            }
            let title = styled(output::BOLD, group.title());
            text.push_str(&format!("{title}\n{lines}"));
        }
        text
    }
}

/// The command to run first: the first command among the cures of the problems. A command with
/// `usher install` takes precedence, because the installer repairs all that it can.
fn first(findings: &[Finding]) -> Option<String> {
    let problems = || findings.iter().filter(|finding| finding.is_problem());
    // containerd's configuration file is missing. Most likely the user has given the wrong path, so
    // no command helps.
    if problems().any(|finding| finding.code == Some(Code::ConfigMissing)) {
        return None;
    }
    let is_installer = |command: &&String| command.contains("usher install");
    let commands = || problems().filter_map(|finding| finding.cure.run.as_ref());
    let command = commands().find(is_installer).or_else(|| commands().next());
    command.cloned()
}

fn own_config() -> Finding {
    let path = usher_api::config::path();
    match usher_api::config::read() {
        Err(error) => OWN_CONFIG.problem(Code::UsherConfig, format!("{error}: no pod can start")),
        Ok(rules) if !rules.enabled => OWN_CONFIG.warning(
            Code::UsherOff,
            format!(
                "{}: usher is off: it ignores the annotations of new pods",
                path.display()
            ),
        ),
        Ok(_) if !path.exists() => OWN_CONFIG.ok(format!(
            "{} does not exist: this node has no rules",
            path.display()
        )),
        Ok(rules) => {
            let roles = match rules.roles.to_string().as_str() {
                "" => String::new(),
                names => format!(": its rules make these sidecars: {names}"),
            };
            OWN_CONFIG.ok(format!("{} is valid{roles}", path.display()))
        }
    }
}

#[cfg(test)]
mod tests;
