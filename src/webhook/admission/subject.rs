//! The pod, or the template of pods, in an object.

use kube::core::DynamicObject;
use serde_json::{Value, json};
use usher_core::manifest::{Owner, Pod, pod_path};

/// A pod, or a template of pods.
#[derive(Debug)]
pub(super) struct Subject {
    owner: Owner,
    /// Its `metadata`, as far as we look at it, and its `spec`.
    pod: Value,
}

// === impl Subject ===

impl Subject {
    /// None in a kind of objects that has no pods.
    pub(super) fn of(
        kind: &str,
        namespace: Option<String>,
        object: DynamicObject,
    ) -> Option<Subject> {
        let path = pod_path(kind)?;
        let DynamicObject {
            metadata, mut data, ..
        } = object;
        let pod = match path {
            [] => json!({
                "metadata": { "annotations": metadata.annotations.unwrap_or_default() },
                "spec": data.get_mut("spec")?.take(),
            }),
            path => {
                let at = path
                    .iter()
                    .try_fold(&mut data, |value, key| value.get_mut(*key));
                at?.take()
            }
        };
        let name = metadata.name.or(metadata.generate_name);
        let owner = Owner {
            kind: kind.to_owned(),
            name: name.unwrap_or_default(),
            namespace,
        };
        Some(Subject { owner, pod })
    }

    pub(super) fn is_pod(&self) -> bool {
        self.owner.kind == "Pod"
    }

    pub(super) fn read(&self) -> Result<Pod, String> {
        Pod::read(&self.owner, &self.pod)
    }

    pub(super) fn says_the_same(&self, other: &Subject) -> bool {
        self.pod == other.pod
    }

    /// Whether there are annotations, to which others can be added.
    pub(super) fn has_annotations(&self) -> bool {
        let annotations = self
            .pod
            .get("metadata")
            .and_then(|it| it.get("annotations"));
        let annotations = annotations.and_then(Value::as_object);
        annotations.is_some_and(|annotations| !annotations.is_empty())
    }

    /// Where containers with this name have a liveness probe: the field of the spec, and the place in it.
    pub(super) fn liveness_probes_of(&self, name: &str) -> Vec<(&'static str, usize)> {
        let mut places = Vec::new();
        for field in ["initContainers", "containers"] {
            let containers = self.pod.get("spec").and_then(|spec| spec.get(field));
            let containers = containers.and_then(Value::as_array).into_iter().flatten();
            for (index, container) in containers.enumerate() {
                if container.get("name").and_then(Value::as_str) == Some(name)
                    && container.get("livenessProbe").is_some()
                {
                    places.push((field, index));
                }
            }
        }
        places
    }
}
