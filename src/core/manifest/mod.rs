//! Objects of Kubernetes that have pods in them, as far as order and size matter.
//!
//! They come as the values that JSON has, from a manifest, or as its text, from the API server. Reading
//! costs memory in proportion to that text, whatever it says: unknown fields are skipped, and what is kept
//! is counted before it is kept.

mod json;
mod pod;
mod read;
#[cfg(test)]
mod tests;

pub use json::Json;
pub use pod::{Container, Handler, Lifecycle, Pod, Requirements, Spec};
pub use read::{MAX_CONTAINERS, Unreadable};

/// Where the pod is in each kind of object that has one.
const PODS: [(&str, &[&str]); 9] = [
    ("Pod", &[]),
    ("PodTemplate", &["template"]),
    ("ReplicationController", &["spec", "template"]),
    ("ReplicaSet", &["spec", "template"]),
    ("Deployment", &["spec", "template"]),
    ("StatefulSet", &["spec", "template"]),
    ("DaemonSet", &["spec", "template"]),
    ("Job", &["spec", "template"]),
    ("CronJob", &["spec", "jobTemplate", "spec", "template"]),
];

/// What a pod is a part of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    pub kind: String,
    /// Empty where the API server is to make one up.
    pub name: String,
    pub namespace: Option<String>,
}

/// The fields that lead to the pod of an object of this kind, or to its template of pods: to a map that
/// has `metadata` and `spec`. None of a kind that has none.
///
/// ```
/// use usher_core::manifest::pod_path;
///
/// assert_eq!(pod_path("Job"), Some(&["spec", "template"][..]));
/// assert_eq!(pod_path("Service"), None);
/// ```
pub fn pod_path(kind: &str) -> Option<&'static [&'static str]> {
    let found = PODS.iter().find(|(of, _)| *of == kind);
    found.map(|(_, path)| *path)
}

/// All kinds that have pods in them.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    PODS.iter().map(|(kind, _)| *kind)
}
