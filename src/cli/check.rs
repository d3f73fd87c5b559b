//! `usher check`: whether a node is ready for pods that use usher.
//!
//! Each question is a function that looks at the [`Node`] and tells what it has found, with what to
//! do about it. Nothing is changed.

mod annotations;
mod daemon;
mod runtime;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::containerd::{self, Node};
use super::output::{self, Failure, Output, Stdout, styled};
use crate::reaper::LIST_OF_CHILDREN;

/// Checks whether this node is ready for usher
///
/// Looks for the shim where containerd looks for it, asks containerd for its effective
/// configuration, and looks at what the kernel and usher's own configuration file allow. Where
/// containerd runs it is asked what it tells kubelet of the runtime. Whatever is missing comes with
/// the lines to add. Nothing is changed, and containerd need not run.
///
/// Fields with `-o json`: `containerd` (`program`, `version`, `config`, `pid`, null where unknown),
/// `ok`, and `findings`, each with `about`, `level` (`ok`, `warning`, `problem`), `says`, and `add`
/// (the lines to add, or null).
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
    /// Where containerd looks for programs [default: the running one's PATH, else this command's]
    #[arg(long, value_name = "DIR:DIR…")]
    path: Option<String>,
    #[command(flatten)]
    output: Output,
}

/// Everything that was found.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    containerd: containerd::Facts,
    pub(super) ok: bool,
    pub(super) findings: Vec<Finding>,
}

/// One thing that is as it should be, or is not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    about: &'static str,
    level: Level,
    says: String,
    /// Lines for a configuration file that put it right.
    add: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Ok,
    /// Pods run, but not with everything.
    Warning,
    /// Pods do not run, or usher has no effect.
    Problem,
}

// === impl Check ===

impl Check {
    pub(super) fn run(self, stdout: &mut Stdout) -> Result<ExitCode, Failure> {
        let node = Node::look(self.containerd, self.config, self.path);
        let report = Report::of(&node);
        if self.output.is_json() {
            stdout.json(&report)?;
        } else {
            for finding in &report.findings {
                stdout.text(finding.text())?;
            }
        }
        Ok(match report.ok {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }
}

// === impl Report ===

impl Report {
    /// Asks all questions.
    pub(super) fn of(node: &Node) -> Report {
        let mut findings = daemon::findings(node);
        findings.extend(runtime::findings(node));
        findings.extend(annotations::findings(node));
        findings.push(own_config());
        findings.extend(kernel(Path::new(LIST_OF_CHILDREN)));
        Report {
            containerd: node.facts(),
            ok: findings.iter().all(|it| it.level < Level::Problem),
            findings,
        }
    }
}

/// usher's own configuration file.
fn own_config() -> Finding {
    const ABOUT: &str = "usher's configuration";
    let path = crate::config::path();
    match crate::config::read() {
        Err(error) => Finding::problem(ABOUT, format!("{error}: no pod would begin")),
        Ok(rules) if !rules.enabled => Finding::warning(
            ABOUT,
            format!(
                "{}: usher is off: annotations of new pods mean nothing",
                path.display()
            ),
        ),
        Ok(_) if !path.exists() => Finding::ok(
            ABOUT,
            format!("{} is not there: no rules of this node", path.display()),
        ),
        Ok(rules) => {
            let roles = match rules.roles.to_string().as_str() {
                "" => String::new(),
                names => format!(": it makes sidecars of {names}"),
            };
            Finding::ok(ABOUT, format!("{} is valid{roles}", path.display()))
        }
    }
}

/// Lists that the kernel does not have, of which one would be at this path.
fn kernel(list_of_children: &Path) -> Option<Finding> {
    (!list_of_children.exists()).then(|| {
        Finding::warning(
            "kernel",
            format!(
                "{} is missing: pods run, and after the end of a container's first process the pod's shim \
                 looks through all processes of the node, every 5 s at most; expected a kernel with \
                 CONFIG_PROC_CHILDREN",
                list_of_children.display()
            ),
        )
    })
}

// === impl Finding ===

impl Finding {
    fn new(about: &'static str, level: Level, says: impl Into<String>) -> Finding {
        Finding {
            about,
            level,
            says: says.into(),
            add: None,
        }
    }

    fn ok(about: &'static str, says: impl Into<String>) -> Finding {
        Finding::new(about, Level::Ok, says)
    }

    fn warning(about: &'static str, says: impl Into<String>) -> Finding {
        Finding::new(about, Level::Warning, says)
    }

    fn problem(about: &'static str, says: impl Into<String>) -> Finding {
        Finding::new(about, Level::Problem, says)
    }

    fn add(mut self, lines: impl Into<String>) -> Finding {
        self.add = Some(lines.into());
        self
    }

    /// For people: one line, and the lines to add below it.
    pub(super) fn text(&self) -> String {
        let (word, style) = match self.level {
            Level::Ok => ("ok     ", output::GOOD),
            Level::Warning => ("warning", output::WARNING),
            Level::Problem => ("PROBLEM", output::BAD),
        };
        let word = styled(style, word);
        let mut text = format!(
            "{word}  {}: {}\n",
            styled(output::BOLD, self.about),
            self.says
        );
        for line in self.add.iter().flat_map(|lines| lines.lines()) {
            text.push_str(format!("           {line}").trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests;
