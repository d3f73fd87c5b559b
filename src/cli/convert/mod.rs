//! `usher convert`: converts manifests in proposed or unsupported APIs to manifests with usher's
//! annotations.

mod cast;
mod containers;
mod pod;
#[cfg(test)]
mod tests;
mod unknown;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use clap::Args;

use usher_api::config;
use usher_core::judgement::{Judgement, Warning};
use usher_core::manifest::{Owner, Pod};
use usher_core::plan::Rules;

use super::manifest::{self, Node};
use super::output::{self, Failure, Stdout};

/// Converts a manifest in another API to one for usher
///
/// Converts the API that was proposed for Kubernetes: `lifecycle.type: Sidecar`, `deferContainers`,
/// `terminationHook`, `fatalToPod`; with `--legacy` also native sidecars (init containers with
/// `restartPolicy: Always`), for clusters that do not support them.
///
/// The result works on any cluster. It has the containers in the order of their start, with cleanup
/// containers last; annotations with all lists, the pod's restart policy, startup probes and hooks;
/// and a runtimeClassName. Everything else stays in its place, except comments, which are lost.
/// Warnings name what could not be converted, and include those of `usher explain`. Prints nothing
/// if the shim would refuse a pod, if Kubernetes would refuse a quantity, or if the manifest has an
/// unknown form: a bare `pod:`, `sidecar: true`, `dependsOn`, `startupOrder`, `primaryContainer`
/// and similar.
#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0, or 1 if nothing was printed.")]
pub(super) struct Convert {
    /// Manifests in YAML or JSON, each with any number of documents; - is standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Also converts native sidecars, and the init containers after them
    #[arg(long)]
    legacy: bool,
    /// The RuntimeClass of converted pods
    #[arg(long, value_name = "NAME", default_value = "usher")]
    runtime_class: String,
    /// A node's /etc/usher/config.toml, whose rules apply, including its sidecars [default: no
    /// rules of a node]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Debug, Clone)]
pub(super) struct Options {
    pub(super) legacy: bool,
    pub(super) runtime_class: String,
    pub(super) rules: Rules,
}

impl Convert {
    pub(super) fn run(self, stdout: &mut Stdout) -> Result<ExitCode, Failure> {
        let options = Options {
            legacy: self.legacy,
            runtime_class: self.runtime_class,
            rules: match &self.config {
                Some(path) => config::read_file(path).map_err(anyhow::Error::from)?,
                None => Rules::default(),
            },
        };
        let mut documents = Vec::new();
        for file in &self.files {
            let mut converted = manifest::read(file)?;
            let said =
                convert(&mut converted, &options).with_context(|| file.display().to_string())?;
            for sentence in said {
                output::warn(&format!("{}: {sentence}", file.display()));
            }
            documents.append(&mut converted);
        }
        let text = manifest::print(&documents)?;
        stdout.bytes(text.as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Converts all pods of the documents and returns notes and warnings about the pods.
///
/// # Errors
///
/// The first reason why a pod cannot be converted, or why the shim would refuse it.
pub(super) fn convert(documents: &mut [Node], options: &Options) -> anyhow::Result<Vec<String>> {
    let mut said = Vec::new();
    let mut refused = None;
    for document in documents {
        if let Some(sentence) = unknown::in_document(document) {
            refused.get_or_insert(anyhow!(sentence));
        }
        said.extend(unknown::in_other_kind(document, options));
        manifest::for_each_pod(document, &mut |owner, pod| {
            let name = format!("{} {}", owner.kind, owner.name);
            match pod::convert(pod, options).and_then(|notes| {
                let warnings = judged(owner, pod, &options.rules)?;
                Ok(notes.into_iter().chain(warnings).collect::<Vec<_>>())
            }) {
                Ok(notes) => said.extend(notes.into_iter().map(|it| format!("{name}: {it}"))),
                Err(error) => {
                    refused.get_or_insert(error.context(name));
                }
            }
        });
    }
    match refused {
        None => Ok(said),
        Some(error) => Err(error),
    }
}

/// If a pod has a field for an order of containers that neither Kubernetes nor usher supports,
/// returns a sentence about the field.
pub(super) fn unknown_form(pod: &Node) -> Option<String> {
    unknown::in_spec(pod.get("spec")?)
}

/// True if a pod has fields of the API that was proposed for Kubernetes.
pub(super) fn is_of_proposals(pod: &Node) -> bool {
    let options = Options {
        legacy: false,
        runtime_class: String::new(),
        rules: Rules::default(),
    };
    pod.get("spec")
        .is_some_and(|spec| cast::has_foreign_fields(spec, &options))
}

/// Judges the converted pod: fails if the shim would refuse it, and returns warnings.
fn judged(owner: &Owner, pod: &Node, rules: &Rules) -> anyhow::Result<Vec<String>> {
    let pod = Pod::read(owner, &pod.json())?;
    let judgement = Judgement::of(&pod, rules);
    if let Some(error) = judgement.refused {
        bail!("the shim would refuse the converted pod: {error}");
    }
    Ok(judgement.warnings.iter().map(Warning::to_string).collect())
}
