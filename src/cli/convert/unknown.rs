//! Forms in which order has been asked for elsewhere, and which usher does not convert. To pass them on
//! would look as if they meant something.

use super::super::manifest::Node;
use super::cast::items;

const SIDECAR: &str = "lifecycle.type: Sidecar of what starts first and stops last";
const OTHERS: &str = "lifecycle.type: Sidecar of all others";
const ORDER: &str = "the annotation usher/startup-order, or containers in the order of their start";

/// Fields of containers, and what is to be written instead.
const OF_CONTAINERS: [(&str, &str); 6] = [
    ("sidecar", SIDECAR),
    ("dependsOn", SIDECAR),
    ("startupOrder", ORDER),
    ("shutdownOrder", ORDER),
    ("startupPhase", ORDER),
    ("StartupPhase", ORDER),
];

/// Fields of pods, and of what makes pods.
const OF_PODS: [(&str, &str); 2] = [("sidecarContainers", SIDECAR), ("primaryContainer", OTHERS)];

/// Where pods and what makes them have their fields.
const SPECS: [&[&str]; 2] = [&["spec"], &["spec", "jobTemplate", "spec"]];

/// The lists of containers that a pod may have.
const LISTS: [&str; 3] = ["initContainers", "containers", "deferContainers"];

/// What is said of a document that is no object of Kubernetes but looks like a pod, or whose fields
/// beside its template nobody knows.
pub(super) fn in_document(document: &Node) -> Option<String> {
    if document.get("kind").is_none() {
        let found = ["pod", "spec"]
            .into_iter()
            .find(|key| document.get(key).is_some())?;
        return Some(format!(
            "it has {found} and no kind, so that it is no pod to any cluster; expected kind: Pod, \
             with metadata and spec"
        ));
    }
    let items = document.get("items").map_or(&[][..], Node::items);
    SPECS
        .into_iter()
        .filter_map(|path| document.at(path))
        .find_map(in_fields)
        .or_else(|| items.iter().find_map(in_document))
}

/// What is said of the first such field of a pod's spec.
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
            "lifecycle.type is neither Sidecar nor Standard; expected one of them".to_owned()
        }
        _ => return None,
    };
    Some(format!("{name}: {sentence}"))
}

fn unknown(field: &str, instead: &str) -> String {
    format!("{field} is no field that usher knows, nor Kubernetes; expected {instead}")
}
