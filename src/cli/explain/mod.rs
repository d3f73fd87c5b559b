//! `usher explain`: shows from a pod's manifest how the shim would run it.
//!
//! Only formats the results of [`usher_core::judgement`].

mod text;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use usher_api::config;
use usher_core::judgement::{
    self, Entry, Judgement, Resources, Termination, Warning, added_later, entries, termination,
};
use usher_core::manifest::{Owner, Pod};
use usher_core::plan::Rules;

use super::convert;
use super::manifest::{self, Node};
use super::output::{self, Failure, Output, Stdout};

/// Shows how the shim would run the pods of a manifest
///
/// For each pod, also in Deployments, StatefulSets, DaemonSets, ReplicaSets, Jobs, CronJobs and
/// lists, shows the order in which its containers start, and what each waits for; the order in
/// which they stop, and the longest time that takes; the size of the pod in each phase, and its QoS
/// class; and warnings about settings that do not do what they seem to do. Annotations that the
/// shim would refuse are all shown, in the shim's words. A quantity (`1GiB`) that Kubernetes would
/// refuse is an error.
///
/// Fields with `-o json`: `pods`, each with `file`, `kind`, `name`, `namespace`, `refused` (a
/// sentence, or null), `alsoRefused` (further ones), `start` (`container`, `role`, `origin` of the
/// role (`list`, `node` or `default`), `optional`, `missing` (true if the manifest has no such
/// container), `step`, `waitsFor`, `held`, `remedy` (the missing annotation without which it is
/// held), `done`, and `liveness` (the effect of its liveness probe by usher)), `addedLater` (the
/// same fields for a container that `kubectl debug` adds, or null if it would not wait), `stop`
/// (`policy`, `gracePeriodSeconds`, `worstCaseSeconds`, `steps` with `step`, `containers`,
/// `inTurn`, `overAfterSeconds`, and `runAgain`, the defer containers that are run again while they
/// fail, with `container`, `untilSeconds`, `capSeconds`, `behind`), `resources` (`qosClass`, and
/// `phases` with `phase`, `requests` and `limits`, both with `cpuMillis` and `memoryBytes`, null if
/// unlimited), and `warnings` (`container`, which may be null, and `says`). Without usher
/// annotations `start` and `stop` are null: kubelet's order applies.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0, or 1 if the shim would refuse one of the pods, or with --strict if there is \
                  a warning."
)]
pub(super) struct Explain {
    /// Manifests in YAML or JSON, each with any number of documents; - is standard input
    #[arg(required_unless_present = "filenames", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// A file, or a directory of .yaml, .yml and .json files, as with kubectl
    #[arg(short = 'f', long = "filename", value_name = "FILE|DIR|-")]
    filenames: Vec<PathBuf>,
    #[command(flatten)]
    how: How,
}

/// Options other than the files: the rules of a node, `--strict`, and the output format.
#[derive(Debug, Args)]
pub struct How {
    /// A node's /etc/usher/config.toml, whose rules apply [default: no rules of a node]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Fails on warnings: the exit status is 1
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    output: Output,
}

/// Maximum number of pods that the note of `--strict` names.
const SHOWN_PODS: usize = 4;

#[derive(Debug, Serialize)]
struct Report {
    pods: Vec<Explanation>,
}

/// The explanation of one pod.
#[derive(Debug, Serialize)]
pub(super) struct Explanation {
    file: String,
    kind: String,
    name: String,
    namespace: Option<String>,
    /// The reason why the shim would refuse the pod.
    refused: Option<String>,
    /// Further reasons, which the shim would give once the first one is corrected.
    #[serde(rename = "alsoRefused")]
    also_refused: Vec<String>,
    start: Option<Vec<Entry>>,
    /// The row for a container that is added to the running pod later, for example by `kubectl
    /// debug`. None if such a container would start at once.
    #[serde(rename = "addedLater")]
    added_later: Option<Entry>,
    stop: Option<Termination>,
    resources: Resources,
    warnings: Vec<Warning>,
}

impl Explain {
    pub(super) fn run(self, stdout: &mut Stdout) -> Result<ExitCode, Failure> {
        let files: Vec<_> = self.files.into_iter().chain(self.filenames).collect();
        self.how.files(&files, stdout)
    }
}

impl How {
    /// Explains the pods in these files. A directory stands for the manifests in it, and `-` for
    /// standard input.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, or the files have no pod.
    pub fn files(&self, files: &[PathBuf], stdout: &mut Stdout) -> Result<ExitCode, Failure> {
        let mut documents = Vec::new();
        for file in manifest::files(files)? {
            documents.push((file.display().to_string(), manifest::read(&file)?));
        }
        self.tell(&documents, stdout)
    }

    /// Explains the pods in the text of a Kubernetes object. `place` says where the text comes
    /// from.
    ///
    /// # Errors
    ///
    /// If the text is not an object, or has no pod.
    pub fn object(
        &self,
        place: &str,
        text: &str,
        stdout: &mut Stdout,
    ) -> Result<ExitCode, Failure> {
        let object =
            manifest::parse(text).map_err(|error| Failure::because(format!("{place}: {error}")))?;
        self.tell(&[(place.to_owned(), object)], stdout)
    }

    fn tell(
        &self,
        documents: &[(String, Vec<Node>)],
        stdout: &mut Stdout,
    ) -> Result<ExitCode, Failure> {
        let rules = match &self.config {
            Some(path) => config::read_file(path).map_err(anyhow::Error::from)?,
            None => Rules::default(),
        };
        let mut pods = Vec::new();
        for (place, documents) in documents {
            for (owner, pod) in documents.iter().flat_map(manifest::pods) {
                pods.push(explain(place, &owner, &pod, &rules)?);
            }
        }
        if pods.is_empty() {
            return Err(Failure::because(
                "found no pod; expected a Pod, a Deployment, a Job or the like",
            ));
        }
        let report = Report { pods };
        if self.output.is_json() {
            stdout.json(&report)?;
        } else {
            let width = output::terminal_width();
            for (index, pod) in report.pods.iter().enumerate() {
                if index > 0 {
                    stdout.text("\n")?;
                }
                stdout.text(pod.text(width))?;
            }
        }
        let too_strict = self.strict.then(|| warned(&report.pods)).flatten();
        if let Some(sentence) = &too_strict {
            output::note(sentence);
        }
        let is_refused = report.pods.iter().any(|pod| pod.refused.is_some());
        Ok(match is_refused || too_strict.is_some() {
            true => ExitCode::FAILURE,
            false => ExitCode::SUCCESS,
        })
    }
}

/// The note with which `--strict` fails. It names the pods that have warnings.
fn warned(pods: &[Explanation]) -> Option<String> {
    let warned: Vec<_> = pods.iter().filter(|pod| !pod.warnings.is_empty()).collect();
    let warnings: usize = warned.iter().map(|pod| pod.warnings.len()).sum();
    let names = warned.iter().take(SHOWN_PODS);
    let mut names: Vec<_> = names
        .map(|pod| format!("{} {}", pod.kind, pod.name))
        .collect();
    if let more @ 1.. = warned.len().saturating_sub(SHOWN_PODS) {
        names.push(format!("and {more} more"));
    }
    let plural = if warnings == 1 { "" } else { "s" };
    let names = names.join(", ");
    (warnings > 0)
        .then(|| format!("{warnings} warning{plural} ({names}); --strict fails on warnings"))
}

pub(super) fn explain(
    file: &str,
    owner: &Owner,
    node: &Node,
    rules: &Rules,
) -> Result<Explanation, Failure> {
    let pod = Pod::read(owner, &node.json()).map_err(|error| {
        Failure::because(format!("{file}: {} {}: {error}", owner.kind, owner.name))
    })?;
    let Judgement {
        plan,
        refused,
        also_refused,
        mut warnings,
    } = Judgement::of(&pod, rules);
    warnings.extend(of_other_apis(node));
    let plan = plan.as_ref();
    Ok(Explanation {
        file: file.to_owned(),
        kind: owner.kind.clone(),
        name: owner.name.clone(),
        namespace: owner.namespace.clone(),
        refused,
        also_refused,
        start: plan.map(|plan| entries(plan, &pod)),
        added_later: plan.and_then(|plan| added_later(plan, &pod)),
        stop: plan.map(|plan| termination(plan, &pod)),
        resources: judgement::resources(plan, &pod),
        warnings,
    })
}

/// A warning about fields that no cluster and no version of usher supports.
fn of_other_apis(pod: &Node) -> Option<Warning> {
    if let Some(sentence) = convert::unknown_form(pod) {
        return Some(Warning::about_pod(sentence));
    }
    convert::is_of_proposals(pod).then(|| {
        Warning::about_pod(
            "it has fields of an API that was proposed for Kubernetes and does not exist; convert it \
             with usher convert",
        )
    })
}

#[cfg(test)]
mod injected;
#[cfg(test)]
mod shown;
#[cfg(test)]
mod tests;
