//! `usher ps`: lists the pods of this node.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anstyle::Style;
use clap::{Args, ValueEnum};

use super::choice::namespace;
use super::json::{json, json_on};
use super::node::{Node, status_of};
use super::output::{BAD, FAINT, Failure, GOOD, Output, Stdout, Table, WARNING, styled};
use super::{time, words};
use usher_api as api;

/// Lists the pods of this node that run under usher, with or without annotations
///
/// READY is the number of ready sidecars and apps, and the number of all. An ended container is not
/// ready, so a pod that has done its work is 0/1 and Completed, as with kubectl. STATUS is Init:1/2
/// while init containers run, Init:Error if one failed, Sidecar:0/1 while sidecars start, Running,
/// Defer:1/4 or Terminating while the pod terminates, and then Completed, Stopped, Terminated,
/// Failed or Error.
///
/// If a shim does not answer, its pod is missing from the list, a warning names the shim, and the
/// exit status is 1.
#[derive(Debug, Args)]
pub(super) struct Ps {
    #[command(flatten)]
    list: List,
    /// Keeps running, and prints a line for every change
    #[arg(short, long, conflicts_with = "all")]
    watch: bool,
}

/// Options of a list of pods.
#[derive(Debug, Args)]
pub struct List {
    /// Includes pods that ended within the last hour
    #[arg(short, long)]
    all: bool,
    #[command(flatten)]
    output: Output<Format>,
}

/// The formats of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum Format {
    /// For people
    #[default]
    Text,
    /// For people, with the version of each pod's shim (running shims are not upgraded)
    Wide,
    /// For programs: one JSON document
    Json,
}

/// A pod, and the name of its node. The name is None if only pods of one node can be shown.
pub type Placed<'a> = (&'a api::Pod, Option<&'a str>);

const HEADING: [&str; 6] = ["NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE"];

/// The heading of the additional column in a wide list.
const SHIM: &str = "SHIM";

impl List {
    /// True if the list includes pods that ended within the last hour.
    pub fn all(&self) -> bool {
        self.all
    }

    fn is_json(&self) -> bool {
        self.output.format == Format::Json
    }

    fn heading(&self) -> impl Iterator<Item = &'static str> + use<> {
        let shim = (self.output.format == Format::Wide).then_some(SHIM);
        HEADING.into_iter().chain(shim)
    }

    fn cells(&self, pod: &api::Pod) -> impl Iterator<Item = String> + use<> {
        let shim = (self.output.format == Format::Wide).then(|| shim(pod));
        row(pod).into_iter().chain(shim)
    }

    /// Shows pods. Either every pod comes with the name of its node, or none does. If there are no
    /// pods, prints the note `empty`, unless some shims were `silent`.
    ///
    /// # Errors
    ///
    /// If the output cannot be written.
    pub fn show(
        &self,
        pods: &[Placed<'_>],
        silent: usize,
        empty: &str,
        stdout: &mut Stdout,
    ) -> Result<ExitCode, Failure> {
        if self.is_json() {
            let pods: Result<Vec<_>, _> =
                pods.iter().map(|(pod, node)| json_on(pod, *node)).collect();
            stdout.json(&serde_json::json!({ "pods": pods? }))?;
            return Ok(status_of(silent));
        }
        let has_nodes = pods.iter().any(|(_, node)| node.is_some());
        let mut table = Table::new(self.heading().chain(has_nodes.then_some("NODE")));
        for (pod, node) in pods {
            table.row(self.cells(pod).chain(node.map(str::to_owned)));
        }
        match (pods.is_empty(), silent) {
            (true, 0) => super::output::note(empty),
            (true, _) => {}
            (false, _) => stdout.text(table)?,
        }
        Ok(status_of(silent))
    }
}

impl Ps {
    pub(super) fn run(self, stdout: &mut Stdout) -> Result<ExitCode, Failure> {
        let node = Node::new()?;
        if self.watch {
            return self.follow(&node, stdout);
        }
        let seen = node.living(false);
        let living = seen.pods.into_iter().map(|found| found.pod);
        let mut pods: Vec<_> = living.collect();
        if self.list.all {
            pods.extend(node.ended());
        }
        let pods: Vec<_> = pods.iter().map(|pod| (pod, None)).collect();
        let empty = "no pods run under usher on this node";
        self.list.show(&pods, seen.silent, empty, stdout)
    }

    /// Prints a line for each pod, and then a line for each change of a pod.
    fn follow(self, node: &Node, stdout: &mut Stdout) -> Result<ExitCode, Failure> {
        let mut shown: BTreeMap<_, (String, api::Pod)> = BTreeMap::new();
        let mut widths = Widths::default();
        if !self.list.is_json() {
            let heading = self.list.heading();
            stdout.text(widths.line(heading.map(|word| styled(super::output::BOLD, word))))?;
        }
        node.watch(|update| {
            let before = shown.remove(&update.socket);
            let Some(pod) = update.pod else {
                // The pod's last state, from the file that its shim left.
                let last = before.and_then(|(_, pod)| {
                    let ended = node.ended().into_iter().rev();
                    ended.into_iter().find(|other| other.id == pod.id)
                });
                if let Some(pod) = last {
                    self.show(&pod, &mut widths, stdout)?;
                }
                return Ok(true);
            };
            let facts = format!(
                "{} {} {} {} {}",
                pod.id,
                pod.ready,
                pod.total,
                words::status(&pod.status),
                pod.restarts
            );
            if before.is_none_or(|(shown, _)| shown != facts) {
                self.show(&pod, &mut widths, stdout)?;
            }
            shown.insert(update.socket, (facts, pod));
            Ok(true)
        })?;
        Ok(ExitCode::SUCCESS)
    }

    fn show(
        &self,
        pod: &api::Pod,
        widths: &mut Widths,
        stdout: &mut Stdout,
    ) -> Result<(), Failure> {
        match self.list.is_json() {
            true => stdout.json(&json(pod)?),
            false => stdout.text(widths.line(self.list.cells(pod))),
        }
    }
}

/// Column widths for lines that are printed one by one. A column is as wide as the widest cell that
/// was printed in it so far.
struct Widths([usize; 7]);

impl Default for Widths {
    fn default() -> Widths {
        Widths([9, 24, 5, 11, 8, 3, 5])
    }
}

impl Widths {
    fn line(&mut self, cells: impl Iterator<Item = String>) -> String {
        let mut line = String::new();
        for (width, cell) in self.0.iter_mut().zip(cells) {
            let plain = anstream::adapter::strip_str(&cell).to_string();
            let length = plain.chars().count();
            *width = length.max(*width);
            line.push_str(&cell);
            line.extend(std::iter::repeat_n(
                ' ',
                width.saturating_sub(length).saturating_add(3),
            ));
        }
        format!("{}\n", line.trim_end())
    }
}

pub(super) fn row(pod: &api::Pod) -> [String; 6] {
    let until = time::seconds(&pod.ended).unwrap_or_else(|| time::observed(pod));
    let age = time::seconds(&pod.created).map_or(0.0, |created| until - created);
    [
        namespace(pod).to_owned(),
        pod.name.clone(),
        format!("{}/{}", pod.ready, pod.total),
        status(pod),
        pod.restarts.to_string(),
        time::age(age),
    ]
}

fn shim(pod: &api::Pod) -> String {
    styled(shim_style(pod), words::shim_version(pod))
}

/// The style of a shim's version. The style is a warning if that version differs from this
/// command's version, for example after an upgrade.
pub(super) fn shim_style(pod: &api::Pod) -> Style {
    match words::shim_version(pod) == usher_api::VERSION {
        true => Style::new(),
        false => WARNING,
    }
}

/// The status in a color for its severity.
pub(super) fn status(pod: &api::Pod) -> String {
    use api::Doing::*;
    let is_ready = pod.ready == pod.total;
    let style = match pod.status.doing.enum_value_or_default() {
        _ if words::is_bad(&pod.status) => BAD,
        DOING_COMPLETED | DOING_STOPPED | DOING_TERMINATED => FAINT,
        DOING_RUNNING if is_ready => GOOD,
        _ => WARNING,
    };
    styled(style, words::status(&pod.status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wide_list_has_the_version_of_each_shim() {
        let list = |format| List {
            all: false,
            output: Output { format },
        };
        let wide = list(Format::Wide);
        assert_eq!(wide.heading().last(), Some(SHIM));
        assert_eq!(list(Format::Text).heading().last(), Some("AGE"));
        let last = |version: &str| {
            let pod = api::Pod {
                shim_version: version.to_owned(),
                ..api::Pod::new()
            };
            wide.cells(&pod).last().unwrap()
        };
        assert_eq!(last(usher_api::VERSION), usher_api::VERSION);
        assert_eq!(last("0.0.9"), styled(WARNING, "0.0.9"));
        assert_eq!(last(""), styled(WARNING, "unknown"));
    }

    #[test]
    fn lines_that_are_printed_one_by_one_stay_in_columns() {
        let mut widths = Widths::default();
        let mut line = |status: &str| {
            let cells = ["shop", "web", "1/2", status, "0", "5s"].map(str::to_owned);
            widths.line(cells.into_iter())
        };
        let (short, long) = (line("Running"), line(&styled(GOOD, "Terminating")));
        let plain = anstream::adapter::strip_str(&long).to_string();
        assert_eq!(short.find("5s"), plain.find("5s"));
        assert!(short.ends_with("5s\n"));
    }
}
