//! A pod's manifest, as far as it matters to order and size. What is not named here is not looked
//! at: the API server is the one to refuse it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, Error};
use serde_json::Value;

use crate::plan::{self, Amounts, Resources, RestartPolicy};

use super::{Node, Owner};

/// A pod, or a template of pods.
#[derive(Debug, Clone)]
pub(crate) struct Pod {
    pub(crate) owner: Owner,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) spec: Spec,
}

/// Kubernetes' `PodSpec`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Spec {
    pub(crate) runtime_class_name: Option<String>,
    restart_policy: Option<String>,
    termination_grace_period_seconds: Option<u64>,
    pub(crate) init_containers: Vec<Container>,
    pub(crate) containers: Vec<Container>,
    /// Of all containers together, as it was written.
    #[serde(deserialize_with = "requirements")]
    pub(crate) resources: Option<Requirements>,
    #[serde(deserialize_with = "overhead")]
    pub(crate) overhead: Option<Amounts>,
}

/// Kubernetes' `ResourceRequirements`, as far as a pod is sized by them.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Requirements {
    pub(crate) requests: Amounts,
    pub(crate) limits: Amounts,
}

/// Kubernetes' `Container`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Container {
    pub(crate) name: String,
    /// Of its own, which the pod's is not.
    pub(crate) restart_policy: Option<String>,
    restart_policy_rules: Vec<Value>,
    #[serde(deserialize_with = "resources")]
    pub(crate) resources: Option<Resources>,
    pub(crate) startup_probe: Option<Value>,
    pub(crate) liveness_probe: Option<Value>,
    pub(crate) readiness_probe: Option<Value>,
    pub(crate) lifecycle: Lifecycle,
}

/// Kubernetes' `Lifecycle`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Lifecycle {
    pub(crate) post_start: Option<Value>,
}

// === impl Pod ===

impl Pod {
    /// Reads a pod of a document.
    ///
    /// # Errors
    ///
    /// One sentence if something is not of the type that Kubernetes has it in.
    pub(crate) fn read(owner: &Owner, pod: &Node) -> Result<Pod, String> {
        let wrong = |what: &str, error: String| format!("{what}: {error}");
        let annotations = match pod.at(&["metadata", "annotations"]) {
            None => BTreeMap::new(),
            Some(annotations) => annotations
                .read()
                .map_err(|error| wrong("metadata.annotations", error))?,
        };
        let spec = pod.get("spec").unwrap_or(&Node::Null);
        // One by one: the sentence says which container it is.
        for list in ["initContainers", "containers"] {
            for (index, container) in spec
                .get(list)
                .map_or(&[][..], Node::items)
                .iter()
                .enumerate()
            {
                let _: Container = container.read().map_err(|error| {
                    let name = container.text_of("name").unwrap_or("without a name");
                    wrong(&format!("spec.{list}[{index}] ({name})"), error)
                })?;
            }
        }
        Ok(Pod {
            owner: owner.clone(),
            annotations,
            spec: spec.read().map_err(|error| wrong("spec", error))?,
        })
    }

    /// The pod's restart policy; none where it is no such word.
    pub(crate) fn restart_policy(&self) -> Option<RestartPolicy> {
        match self.spec.restart_policy.as_deref() {
            // As the API server fills it in.
            None | Some("Always") => Some(RestartPolicy::Always),
            Some("OnFailure") => Some(RestartPolicy::OnFailure),
            Some("Never") => Some(RestartPolicy::Never),
            Some(_) => None,
        }
    }

    /// Kubelet's grace period.
    pub(crate) fn grace_period(&self) -> Duration {
        let given = self.spec.termination_grace_period_seconds;
        given.map_or(plan::USUAL_GRACE_PERIOD, |seconds| {
            Duration::from_secs(seconds.min(plan::MAX_SECONDS))
        })
    }

    /// Whether it runs to completion.
    pub(crate) fn is_job(&self) -> bool {
        matches!(self.owner.kind.as_str(), "Job" | "CronJob")
    }

    /// All containers, kubelet's own init containers first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Container> {
        self.spec
            .init_containers
            .iter()
            .chain(&self.spec.containers)
    }

    pub(crate) fn container(&self, name: &str) -> Option<&Container> {
        self.all().find(|container| container.name == name)
    }
}

// === impl Container ===

impl Container {
    /// Whether it is a native sidecar, if it is among the init containers (KEP-753).
    pub(crate) fn is_native_sidecar(&self) -> bool {
        self.restart_policy.as_deref() == Some("Always")
    }

    /// Whether kubelet goes by its exit codes.
    pub(crate) fn has_restart_rules(&self) -> bool {
        !self.restart_policy_rules.is_empty()
    }
}

// === fields ===

/// A field whose own errors do not tell which one it is.
fn field<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    name: &str,
    deserializer: D,
) -> Result<T, D::Error> {
    T::deserialize(deserializer).map_err(|error| D::Error::custom(format_args!("{name}: {error}")))
}

fn overhead<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Amounts>, D::Error> {
    field("overhead", deserializer)
}

fn requirements<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Requirements>, D::Error> {
    field("resources", deserializer)
}

fn resources<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Resources>, D::Error> {
    let Some(given) = requirements(deserializer)? else {
        return Ok(None);
    };
    Resources::new(given.requests, given.limits)
        .map(Some)
        .map_err(|problem| D::Error::custom(format_args!("resources: {problem}")))
}
