//! Kubernetes manifests: reads YAML and JSON files, and finds the pods in them.

mod node;
#[cfg(test)]
mod tests;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

pub(super) use node::Node;

use usher_core::manifest::{Owner, pod_path};

use super::output::Failure;

/// The extensions of manifests in a directory, as with kubectl.
const ENDINGS: [&str; 3] = ["yaml", "yml", "json"];

/// Replaces directories by their manifests, sorted by name.
pub(super) fn files(places: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for place in places {
        match place.is_dir() {
            true => files.extend(in_directory(place)?),
            false => files.push(place.clone()),
        }
    }
    Ok(files)
}

fn in_directory(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let failed = |error| Failure::because(format!("cannot read {}: {error}", directory.display()));
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let ending = path.extension().and_then(|ending| ending.to_str());
        if ending.is_some_and(|ending| ENDINGS.contains(&ending)) && !path.is_dir() {
            files.push(path);
        }
    }
    files.sort();
    match files.is_empty() {
        true => Err(Failure::because(format!(
            "{} has no manifest; expected files that end in .yaml, .yml or .json",
            directory.display()
        ))),
        false => Ok(files),
    }
}

/// Reads all documents of a file; `-` is standard input.
pub(super) fn read(path: &Path) -> Result<Vec<Node>, Failure> {
    let shown = path.display();
    let text = match path.to_str() {
        Some("-") => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map(|_| text)
        }
        _ => fs::read_to_string(path),
    };
    let text = text.map_err(|error| Failure::because(format!("cannot read {shown}: {error}")))?;
    parse(&text).map_err(|error| Failure::because(format!("{shown}: {error}")))
}

/// The parser's message, in one line.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.to_string().replace('\n', " "))]
pub(super) struct ParseError(Box<serde_saphyr::Error>);

/// Maximum number of values that the aliases in a YAML manifest may repeat. A manifest with more
/// bytes than this may repeat as many values as it has bytes.
const REPEATED_VALUES: usize = 100_000;

/// Parses documents as kubectl does. Where YAML 1.1 and YAML 1.2 differ, YAML 1.1 applies.
pub(super) fn parse(text: &str) -> Result<Vec<Node>, ParseError> {
    let options = serde_saphyr::options! {
        legacy_octal_numbers: true,
        with_snippet: false,
        // Without aliases, parsing takes memory in proportion to the text, which is in memory
        // already. So only aliases have a limit.
        budget: serde_saphyr::budget! {
            max_documents: usize::MAX,
            max_events: usize::MAX,
            max_nodes: usize::MAX,
            max_aliases: usize::MAX,
            max_anchors: usize::MAX,
            max_total_scalar_bytes: usize::MAX,
            enforce_alias_anchor_ratio: false,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: text.len().max(REPEATED_VALUES),
        },
    };
    let documents: Vec<Node> = serde_saphyr::from_multiple_with_options(text, options)
        .map_err(|error| ParseError(Box::new(error)))?;
    // A comment between two separators is not a document.
    let documents = documents.into_iter().filter(|it| *it != Node::Null);
    Ok(documents.map(with_kinds).collect())
}

/// Adds the kind and the apiVersion to the items of a typed list, such as a PodList. The API server
/// leaves both out, and kubectl adds them as well.
fn with_kinds(mut document: Node) -> Node {
    let version = document.get("apiVersion").cloned();
    let kind = document.text_of("kind").unwrap_or_default();
    let kind = kind.strip_suffix("List").unwrap_or_default().to_owned();
    if let (false, Some(Node::List(items))) = (kind.is_empty(), document.get_mut("items")) {
        for item in items.iter_mut().filter(|item| item.get("kind").is_none()) {
            if let Some(version) = &version {
                item.set_before("metadata", "apiVersion", version.clone());
            }
            item.set_before("metadata", "kind", Node::text(&kind));
        }
    }
    document
}

/// Prints documents so that kubectl reads the same values.
pub(super) fn print(documents: &[Node]) -> anyhow::Result<String> {
    let options = serde_saphyr::ser_options! {
        // Long lines, such as JSON annotations, are not wrapped.
        folded_wrap_chars: usize::MAX,
    };
    let texts: Result<Vec<String>, _> = documents
        .iter()
        .map(|document| serde_saphyr::to_string_with_options(document, options.clone()))
        .collect();
    Ok(texts?.join("---\n"))
}

/// All pods and pod templates in a document, which can be a list of objects.
pub(super) fn pods(document: &Node) -> Vec<(Owner, Node)> {
    let mut found = Vec::new();
    for_each_pod(&mut document.clone(), &mut |owner, pod| {
        found.push((owner.clone(), pod.clone()));
    });
    found
}

/// Calls `change` with each pod and pod template in a document: a map with `metadata` and `spec`.
pub(super) fn for_each_pod(document: &mut Node, change: &mut impl FnMut(&Owner, &mut Node)) {
    let kind = document.text_of("kind").unwrap_or_default().to_owned();
    if kind == "List" || (kind.ends_with("List") && document.get("items").is_some()) {
        if let Some(Node::List(items)) = document.get_mut("items") {
            for item in items {
                for_each_pod(item, change);
            }
        }
        return;
    }
    let Some(path) = pod_path(&kind) else {
        return;
    };
    let metadata = |key| document.at(&["metadata", key]).and_then(Node::as_text);
    let owner = Owner {
        kind,
        name: metadata("name")
            .or_else(|| metadata("generateName"))
            .unwrap_or_default()
            .to_owned(),
        namespace: metadata("namespace").map(str::to_owned),
    };
    if let Some(pod) = document.at_mut(path)
        && pod.get("spec").is_some()
    {
        change(&owner, pod);
    }
}
