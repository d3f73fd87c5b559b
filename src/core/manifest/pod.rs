//! A pod's manifest, as far as it matters to order and size. What is not named here is not looked
//! at: the API server is the one to refuse it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, Error};
use serde_json::{Map, Value};

use crate::plan::{self, Amounts, ExitCodes, Resources, RestartPolicy, Word};

use super::Owner;

/// A pod, or a template of pods.
#[derive(Debug, Clone)]
pub struct Pod {
    pub owner: Owner,
    pub annotations: BTreeMap<String, String>,
    pub spec: Spec,
}

/// Kubernetes' `PodSpec`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    pub runtime_class_name: Option<String>,
    restart_policy: Option<String>,
    termination_grace_period_seconds: Option<u64>,
    /// Kubelet's own, native sidecars among them.
    pub init_containers: Vec<Container>,
    pub containers: Vec<Container>,
    /// Of all containers together, as it was written.
    #[serde(deserialize_with = "requirements")]
    pub resources: Option<Requirements>,
    #[serde(deserialize_with = "overhead")]
    pub overhead: Option<Amounts>,
}

/// Kubernetes' `ResourceRequirements`, as far as a pod is sized by them.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub struct Requirements {
    pub requests: Amounts,
    pub limits: Amounts,
}

/// Kubernetes' `Container`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    pub name: String,
    restart_policy: Option<String>,
    restart_policy_rules: Vec<RestartRule>,
    #[serde(deserialize_with = "resources")]
    pub resources: Option<Resources>,
    pub startup_probe: Option<Value>,
    pub liveness_probe: Option<Value>,
    pub readiness_probe: Option<Value>,
    pub lifecycle: Lifecycle,
    security_context: SecurityContext,
}

/// Kubernetes' `ContainerRestartRule` (KEP-5307).
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RestartRule {
    action: String,
    exit_codes: Option<RuleCodes>,
}

/// Kubernetes' `ContainerRestartRuleOnExitCodes`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct RuleCodes {
    operator: String,
    values: Vec<i64>,
}

/// Kubernetes' `SecurityContext`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct SecurityContext {
    capabilities: Capabilities,
}

/// Kubernetes' `Capabilities`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Capabilities {
    add: Vec<String>,
}

/// Kubernetes' `Lifecycle`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Lifecycle {
    pub post_start: Option<Value>,
    pub pre_stop: Option<Value>,
    pub stop_signal: Option<String>,
}

// === impl Pod ===

impl Pod {
    /// Reads a pod, or a template of pods: a map that has `metadata` and `spec`.
    ///
    /// # Errors
    ///
    /// One sentence if something is not of the type that Kubernetes has it in.
    pub fn read(owner: &Owner, pod: &Value) -> Result<Pod, String> {
        let field = |of: &Value, key: &str| present(of.get(key).unwrap_or(&Value::Null));
        let annotations = field(pod.get("metadata").unwrap_or(&Value::Null), "annotations");
        let annotations = match annotations {
            Value::Null => BTreeMap::new(),
            annotations => read(&annotations, || "metadata.annotations".to_owned())?,
        };
        let spec = match field(pod, "spec") {
            Value::Null => Value::Object(Map::new()),
            spec => spec,
        };
        // One by one: the sentence says which container it is.
        for list in ["initContainers", "containers"] {
            let items = spec.get(list).and_then(Value::as_array);
            for (index, container) in items.into_iter().flatten().enumerate() {
                let name = container.get("name").and_then(Value::as_str);
                let name = name.unwrap_or("without a name");
                let _: Container = read(container, || format!("spec.{list}[{index}] ({name})"))?;
            }
        }
        Ok(Pod {
            owner: owner.clone(),
            annotations,
            spec: read(&spec, || "spec".to_owned())?,
        })
    }

    /// Whether kubelet itself has an init container of this name, a native sidecar too.
    pub fn has_init_container(&self, name: &str) -> bool {
        self.spec.init_containers.iter().any(|it| it.name == name)
    }

    /// The pod's restart policy; none where it is no such word.
    pub fn restart_policy(&self) -> Option<RestartPolicy> {
        match self.spec.restart_policy.as_deref() {
            // As the API server fills it in.
            None | Some("Always") => Some(RestartPolicy::Always),
            Some("OnFailure") => Some(RestartPolicy::OnFailure),
            Some("Never") => Some(RestartPolicy::Never),
            Some(_) => None,
        }
    }

    /// Kubelet's grace period.
    pub fn grace_period(&self) -> Duration {
        let given = self.spec.termination_grace_period_seconds;
        given.map_or(plan::USUAL_GRACE_PERIOD, |seconds| {
            Duration::from_secs(seconds.min(plan::MAX_SECONDS))
        })
    }

    /// Whether it runs to completion.
    pub fn is_job(&self) -> bool {
        matches!(self.owner.kind.as_str(), "Job" | "CronJob")
    }

    /// All containers, kubelet's own init containers first.
    pub fn all(&self) -> impl Iterator<Item = &Container> {
        self.spec
            .init_containers
            .iter()
            .chain(&self.spec.containers)
    }

    pub fn container(&self, name: &str) -> Option<&Container> {
        self.all().find(|container| container.name == name)
    }
}

// === impl Container ===

impl Container {
    /// Whether it is a native sidecar, if it is among the init containers (KEP-753).
    pub fn is_native_sidecar(&self) -> bool {
        self.restart_policy.as_deref() == Some("Always")
    }

    /// Its own restart policy (KEP-5307); none where it is the pod's, or no such word.
    pub fn restart_policy(&self) -> Option<RestartPolicy> {
        RestartPolicy::from_word(self.restart_policy.as_deref()?)
    }

    pub fn has_restart_rules(&self) -> bool {
        !self.restart_policy_rules.is_empty()
    }

    /// The exit codes after which kubelet creates it again by its `restartPolicyRules`, alone or with all
    /// other containers (KEP-5532).
    pub fn restart_codes(&self) -> ExitCodes {
        let rules = self.restart_policy_rules.iter();
        rules
            .flat_map(|rule| Vec::from_iter(rule.codes().iter()))
            .collect()
    }

    /// It may change the pod's network, as those do that lead its traffic through a proxy.
    pub fn may_change_network(&self) -> bool {
        let added = &self.security_context.capabilities.add;
        let is_one = |it: &String| matches!(it.as_str(), "NET_ADMIN" | "CAP_NET_ADMIN" | "ALL");
        added.iter().any(is_one)
    }
}

// === impl RestartRule ===

impl RestartRule {
    fn codes(&self) -> ExitCodes {
        let Some(RuleCodes { operator, values }) = &self.exit_codes else {
            return ExitCodes::NONE;
        };
        // No process of Linux exits with any other.
        let values = values.iter().filter_map(|code| u8::try_from(*code).ok());
        let values: ExitCodes = values.collect();
        match (self.action.as_str(), operator.as_str()) {
            ("Restart" | "RestartAllContainers", "In") => values,
            ("Restart" | "RestartAllContainers", "NotIn") => values.complement(),
            _ => ExitCodes::NONE,
        }
    }
}

// === fields ===

fn read<'a, T: Deserialize<'a>>(value: &'a Value, what: impl Fn() -> String) -> Result<T, String> {
    T::deserialize(value).map_err(|error| format!("{}: {error}", what()))
}

/// The same without the fields that are null, which to Kubernetes are not there.
fn present(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(present).collect(),
        Value::Object(fields) => fields
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key.clone(), present(value)))
            .collect(),
        scalar => scalar.clone(),
    }
}

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
