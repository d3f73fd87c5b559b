//! Fields by which some manifests ask for an order of containers, and which usher does not convert.
//! Such a field is an error, since it would look effective in the converted manifest.

use usher_core::manifest::pod_path;

use super::super::manifest::Node;
use super::Options;
use super::cast::{has_foreign_fields, items};

const SIDECAR: &str = "lifecycle.type: Sidecar in the containers that start first and stop last";
const OTHERS: &str = "lifecycle.type: Sidecar in all other containers";
const ORDER: &str = "the annotation usher/startup-order, or containers in the order of their start";

/// Unknown fields of containers, each with its replacement.
const OF_CONTAINERS: [(&str, &str); 6] = [
    ("sidecar", SIDECAR),
    ("dependsOn", SIDECAR),
    ("startupOrder", ORDER),
    ("shutdownOrder", ORDER),
    ("startupPhase", ORDER),
    ("StartupPhase", ORDER),
];

/// Unknown fields of pods and of objects that make pods, each with its replacement.
const OF_PODS: [(&str, &str); 2] = [("sidecarContainers", SIDECAR), ("primaryContainer", OTHERS)];

/// The paths of the objects whose fields are checked: a pod's spec, and the specs of objects that
/// make pods.
const SPECS: [&[&str]; 2] = [&["spec"], &["spec", "jobTemplate", "spec"]];

/// The lists of containers that a pod's spec can have.
const LISTS: [&str; 3] = ["initContainers", "containers", "deferContainers"];

/// Returns a sentence about a document without `kind` that looks like a pod, or about an unknown
/// field in the spec of an object that contains a pod.
pub(super) fn in_document(document: &Node) -> Option<String> {
    if document.get("kind").is_none() {
        let found = ["pod", "spec"]
            .into_iter()
            .find(|key| document.get(key).is_some())?;
        return Some(format!(
            "it has {found} but no kind, so it is not a pod in any cluster; expected kind: Pod, \
             with metadata and spec"
        ));
    }
    // Only objects that contain a pod are checked. In other objects, fields with these names belong
    // to other APIs.
    let has_pods = document.text_of("kind").and_then(pod_path).is_some();
    let specs = SPECS.into_iter().filter(|_| has_pods);
    specs
        .filter_map(|path| document.at(path))
        .find_map(in_fields)
        .or_else(|| items(document, "items").iter().find_map(in_document))
}

/// If a document of another project's kind contains a pod with fields to convert, returns a
/// sentence about that.
pub(super) fn in_other_kind(document: &Node, options: &Options) -> Option<String> {
    let kind = document.text_of("kind")?;
    if kind.ends_with("List") {
        let items = items(document, "items").iter();
        return items
            .into_iter()
            .find_map(|item| in_other_kind(item, options));
    }
    let has_fields = pod_path(kind).is_none() && has_nested_fields(document, options);
    has_fields.then(|| {
        let name = document.at(&["metadata", "name"]).and_then(Node::as_text);
        format!(
            "{kind} {}: it is unchanged, although a pod in it has fields to convert; expected a \
             kind of Kubernetes itself",
            name.unwrap_or_default()
        )
    })
}

/// True if `node`, or a value in it, is a pod's spec with fields to convert.
fn has_nested_fields(node: &Node, options: &Options) -> bool {
    let mut fields = node.fields().iter().map(|(_, value)| value);
    let is_spec = !items(node, "containers").is_empty();
    is_spec && has_foreign_fields(node, options)
        || fields.any(|value| has_nested_fields(value, options))
        || node
            .items()
            .iter()
            .any(|item| has_nested_fields(item, options))
}

/// A sentence about the first unknown field of a pod's spec.
pub(super) fn in_spec(spec: &Node) -> Option<String> {
    let containers = LISTS.into_iter().flat_map(|list| items(spec, list));
    in_fields(spec).or_else(|| containers.into_iter().find_map(in_container))
}

fn in_fields(spec: &Node) -> Option<String> {
    let found = OF_PODS.iter().find(|(key, _)| spec.get(key).is_some());
    found.map(|(field, instead)| unknown(field, instead))
}

fn in_container(container: &Node) -> Option<String> {
    let name = container.text_of("name").unwrap_or("a container");
    let found = OF_CONTAINERS
        .iter()
        .find(|(key, _)| container.get(key).is_some());
    let kind = container.at(&["lifecycle", "type"]);
    let is_known = |kind: &Node| matches!(kind.as_text(), Some("Sidecar" | "Standard"));
    let sentence = match (found, kind) {
        (Some((field, instead)), _) => unknown(field, instead),
        (None, Some(kind)) if !is_known(kind) => {
            "unknown lifecycle.type; expected Sidecar or Standard".to_owned()
        }
        _ => return None,
    };
    Some(format!("{name}: {sentence}"))
}

fn unknown(field: &str, instead: &str) -> String {
    format!("{field} is a field of neither Kubernetes nor usher; expected {instead}")
}
