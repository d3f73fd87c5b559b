//! `usher convert`: a manifest that any cluster takes, from one in an API that it may not have.

mod cast;
mod containers;
mod pod;
#[cfg(test)]
mod tests;
mod unknown;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::config;
use crate::judgement::{Judgement, Warning};
use crate::manifest::{Owner, Pod};
use crate::plan::Rules;

use super::manifest::{self, Node};
use super::output::{self, Failure, Stdout};

/// Makes a manifest for usher out of one in another API
///
/// From the API that was proposed for Kubernetes: `lifecycle.type: Sidecar`, `deferContainers`,
/// `terminationHook`, `fatalToPod`; with `--legacy` also from native sidecars (init containers with
/// `restartPolicy: Always`), for clusters that do not have them.
///
/// What comes out is for any cluster: containers in the order of their start, with those last that
/// run at the end; annotations with all lists; the pod's restart policy; startup probes and hooks
/// as annotations; and a runtimeClassName. Everything else stays as it is and where it is, but
/// comments are lost. What cannot be expressed is said on standard error, and so is what `usher
/// explain` warns of. Nothing is printed if the shim would refuse a pod of it, if Kubernetes would
/// refuse a quantity in it, or if it is in a form that nobody knows: a bare `pod:`, `sidecar: true`,
/// `dependsOn`, `startupOrder`, `primaryContainer` and their like.
#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0, or 1 if nothing was printed.")]
pub(super) struct Convert {
    /// Manifests in YAML or JSON, each with any number of documents; - is standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Convert native sidecars too, and the init containers behind them
    #[arg(long)]
    legacy: bool,
    /// The RuntimeClass of converted pods
    #[arg(long, value_name = "NAME", default_value = "usher")]
    runtime_class: String,
    /// A node's /etc/usher/config.toml: what its roles name are sidecars, and pods are judged by it
    /// [default: no rules of a node]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// What is to be done.
#[derive(Debug, Clone)]
pub(super) struct Wish {
    pub(super) legacy: bool,
    pub(super) runtime_class: String,
    /// Those of the node.
    pub(super) rules: Rules,
}

// === impl Convert ===

impl Convert {
    pub(super) fn run(self, stdout: &mut Stdout) -> Result<ExitCode, Failure> {
        let wish = Wish {
            legacy: self.legacy,
            runtime_class: self.runtime_class,
            rules: match &self.config {
                Some(path) => config::read_file(path).map_err(Failure::because)?,
                None => Rules::default(),
            },
        };
        let mut documents = Vec::new();
        for file in &self.files {
            let mut converted = manifest::read(file)?;
            let said = convert(&mut converted, &wish)
                .map_err(|error| Failure::because(format!("{}: {error}", file.display())))?;
            for sentence in said {
                output::warn(&format!("{}: {sentence}", file.display()));
            }
            documents.append(&mut converted);
        }
        let text = manifest::print(&documents).map_err(Failure::because)?;
        stdout.bytes(text.as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Converts every pod of the documents; tells what should be known about it, in sentences.
///
/// # Errors
///
/// Why one of them cannot be converted, or the shim would refuse it.
pub(super) fn convert(documents: &mut [Node], wish: &Wish) -> Result<Vec<String>, String> {
    let mut said = Vec::new();
    let mut refused = None;
    for document in documents {
        if let Some(sentence) = unknown::in_document(document) {
            refused.get_or_insert(sentence);
        }
        manifest::for_each_pod(document, &mut |owner, pod| {
            let name = format!("{} {}", owner.kind, owner.name);
            match pod::convert(pod, wish).and_then(|notes| {
                let warnings = judged(owner, pod, &wish.rules)?;
                Ok(notes.into_iter().chain(warnings).collect::<Vec<_>>())
            }) {
                Ok(notes) => said.extend(notes.into_iter().map(|it| format!("{name}: {it}"))),
                Err(error) => {
                    refused.get_or_insert(format!("{name}: {error}"));
                }
            }
        });
    }
    match refused {
        None => Ok(said),
        Some(error) => Err(error),
    }
}

/// What is said of a pod with a field that was discussed for Kubernetes and that nobody has.
pub(super) fn unknown_form(pod: &Node) -> Option<String> {
    unknown::in_spec(pod.get("spec")?)
}

/// Whether a pod has fields of the API that was proposed for Kubernetes.
pub(super) fn is_of_proposals(pod: &Node) -> bool {
    let wish = Wish {
        legacy: false,
        runtime_class: String::new(),
        rules: Rules::default(),
    };
    pod.get("spec")
        .is_some_and(|spec| cast::is_for_us(spec, &wish))
}

/// What the shim says to the result, and what should be known about it.
fn judged(owner: &Owner, pod: &Node, rules: &Rules) -> Result<Vec<String>, String> {
    let pod = Pod::read(owner, &pod.json())?;
    let judgement = Judgement::of(&pod, rules);
    if let Some(error) = judgement.refused {
        return Err(format!("the shim would refuse what came of it: {error}"));
    }
    Ok(judgement.warnings.iter().map(Warning::to_string).collect())
}
