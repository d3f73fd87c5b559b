//! `usher explain`: what the shim would do with a pod, from its manifest.
//!
//! Nothing is decided here: the plan is the shim's own ([`crate::plan`]), the times are those of
//! its termination ([`crate::lifecycle::Budget`]), the sizes those by which it sizes a pod
//! ([`crate::sizing`]).

mod sizes;
mod start;
mod stop;
mod text;
mod warnings;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use crate::config;
use crate::plan::{Plan, Role, Rules};

use super::manifest::{self, Container, Node, Owner, Pod};
use super::output::{Failure, Output, Stdout};

pub(super) use warnings::{Warning, of as warnings};

/// Tells what the shim would do with the pods of a manifest
///
/// For each pod, also of Deployments, StatefulSets, DaemonSets, ReplicaSets, Jobs, CronJobs and
/// lists: in which order its containers start, and what each waits for; in which order they stop,
/// and how long that takes at worst; how large the pod is in each phase, and its QoS class; and
/// whatever in it does not do what it looks like. An annotation that the shim would refuse is
/// refused here in the same words, and a quantity (`1GiB`) that Kubernetes would refuse is an error.
///
/// Fields with `-o json`: `pods`, each with `file`, `kind`, `name`, `namespace`, `refused` (a
/// sentence, or null), `start` (`container`, `role`, `step`, `waitsFor`, `held`, `remedy`, the annotation
/// for want of which it is held, `done`, and `liveness`, what a liveness probe of usher's does),
/// `addedLater` (the same of what `kubectl debug` adds, where it would wait, or null), `stop`
/// (`policy`, `gracePeriodSeconds`, `worstCaseSeconds`, and `steps` with `step`, `containers`,
/// `inTurn`, `overAfterSeconds`), `resources` (`qosClass`, and `phases` with `phase`,
/// `requests` and `limits`, both with `cpuMillis` and `memoryBytes`; a limit that is null is
/// none), and `warnings` (`container`, which may be null, and `says`). Without usher annotations
/// `start` and `stop` are null: kubelet's order counts.
#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0, or 1 if the shim would refuse one of the pods.")]
pub(super) struct Explain {
    /// Manifests in YAML or JSON, each with any number of documents; - is standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// A node's /etc/usher/config.toml, by which pods are judged [default: no rules of a node]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Serialize)]
struct Report {
    pods: Vec<Explanation>,
}

/// What is to be said about one pod.
#[derive(Debug, Serialize)]
pub(super) struct Explanation {
    file: String,
    kind: String,
    name: String,
    namespace: Option<String>,
    /// Why the shim would refuse it.
    refused: Option<String>,
    start: Option<Vec<start::Entry>>,
    /// What is added to the pod when it is there, where it would wait for its turn.
    #[serde(rename = "addedLater")]
    added_later: Option<start::Entry>,
    stop: Option<stop::Termination>,
    resources: sizes::Resources,
    warnings: Vec<Warning>,
}

// === impl Explain ===

impl Explain {
    pub(super) fn run(self, stdout: &mut Stdout) -> Result<ExitCode, Failure> {
        let rules = match &self.config {
            Some(path) => config::read_file(path).map_err(Failure::because)?,
            None => Rules::default(),
        };
        let mut pods = Vec::new();
        for file in &self.files {
            for document in manifest::read(file)? {
                for (owner, pod) in manifest::pods(&document) {
                    pods.push(explain(&file.display().to_string(), &owner, &pod, &rules)?);
                }
            }
        }
        if pods.is_empty() {
            return Err(Failure::because(
                "there is no pod in it; expected a Pod, a Deployment, a Job or the like",
            ));
        }
        let report = Report { pods };
        if self.output.is_json() {
            stdout.json(&report)?;
        } else {
            for (index, pod) in report.pods.iter().enumerate() {
                if index > 0 {
                    stdout.text("\n")?;
                }
                stdout.text(pod.text())?;
            }
        }
        Ok(match report.pods.iter().any(|pod| pod.refused.is_some()) {
            true => ExitCode::FAILURE,
            false => ExitCode::SUCCESS,
        })
    }
}

pub(super) fn explain(
    file: &str,
    owner: &Owner,
    node: &Node,
    rules: &Rules,
) -> Result<Explanation, Failure> {
    let pod = Pod::read(owner, node).map_err(|error| {
        Failure::because(format!("{file}: {} {}: {error}", owner.kind, owner.name))
    })?;
    let (plan, refused) = match Plan::parse_under(&pod.annotations, rules) {
        Ok(reading) => (Some(reading.plan), None),
        // What is only too much for this node has a meaning all the same.
        Err(error) => (Plan::parse(&pod.annotations).ok(), Some(error.to_string())),
    };
    let ordered = plan.as_ref().filter(|plan| !plan.is_empty());
    Ok(Explanation {
        file: file.to_owned(),
        kind: owner.kind.clone(),
        name: owner.name.clone(),
        namespace: owner.namespace.clone(),
        refused,
        start: ordered.map(|plan| start::entries(plan, &pod)),
        added_later: ordered.and_then(|plan| start::added_later(plan, &pod)),
        stop: ordered.map(|plan| stop::termination(plan, &pod)),
        resources: sizes::resources(ordered, &pod),
        warnings: warnings(ordered, &pod)
            .into_iter()
            .chain(warnings::of_other_apis(node))
            .collect(),
    })
}

/// The role of a container: kubelet's own init containers are native ones, whatever is said.
fn role(plan: &Plan, pod: &Pod, name: &str) -> Role {
    let is_native = |it: &Container| it.name == name;
    match plan.role(name) {
        Role::App | Role::Guest if pod.spec.init_containers.iter().any(is_native) => {
            Role::NativeInit
        }
        role => role,
    }
}

#[cfg(test)]
mod tests;
