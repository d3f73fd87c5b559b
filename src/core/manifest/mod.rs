//! Kubernetes objects that contain pods. Only the fields that matter for start order and size are
//! kept.
//!
//! Objects come as JSON values from a manifest, or as JSON text from the API server. Even a
//! malicious object takes only memory in proportion to the length of its text: unknown fields are
//! skipped, and values are counted before they are kept.

mod json;
mod pod;
mod read;
#[cfg(test)]
mod tests;

pub use json::Json;
pub use pod::{Container, Handler, Lifecycle, Pod, Requirements, Spec};
pub use read::{MAX_CONTAINERS, TooLarge, Unreadable};

/// The path to the pod in each kind of object that has one.
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

/// The object that a pod belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    pub kind: String,
    /// The object's name; empty if the API server has to generate a name.
    pub name: String,
    pub namespace: Option<String>,
}

/// The path of fields that leads to the pod or pod template in an object of this kind. The path
/// leads to a map with `metadata` and `spec`. `None` if objects of this kind contain no pods.
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

/// All kinds that contain pods.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    PODS.iter().map(|(kind, _)| *kind)
}
