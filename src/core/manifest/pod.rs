//! The manifest of a pod. Only the fields that matter for start order and size are read. The API
//! server checks all other fields, so mistakes in them are ignored here.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::plan::{self, Amounts, ExitCodes, Object, Resources, RestartPolicy, Word};

use super::read::{self, Containers, RestartRules, Unreadable};
use super::{Json, Owner};

/// A pod or a pod template. Equal pods get the same errors and warnings.
#[derive(Debug, Clone, PartialEq)]
pub struct Pod {
    pub owner: Owner,
    pub annotations: BTreeMap<String, String>,
    pub spec: Spec,
    /// Index of each name in `spec.initContainers`. Of containers with the same name, the first
    /// counts.
    init_places: BTreeMap<String, usize>,
    /// Index of each name in `spec.containers`. Of containers with the same name, the first counts.
    places: BTreeMap<String, usize>,
}

/// The fields of a pod's spec that usher needs.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    pub runtime_class_name: Option<String>,
    restart_policy: Option<String>,
    termination_grace_period_seconds: Option<u64>,
    /// The pod's own init containers, native sidecars included.
    pub init_containers: Containers,
    pub containers: Containers,
    /// Resources of the pod as a whole, as written.
    #[serde(deserialize_with = "read::requirements")]
    pub resources: Option<Requirements>,
    #[serde(deserialize_with = "read::overhead")]
    pub overhead: Option<Amounts>,
    #[serde(deserialize_with = "read::object")]
    os: Os,
}

/// Kubernetes' `PodOS`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Os {
    name: Option<String>,
}

/// The fields of Kubernetes' `ResourceRequirements` that the size of a pod depends on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Requirements {
    #[serde(deserialize_with = "read::amounts")]
    pub requests: Amounts,
    #[serde(deserialize_with = "read::amounts")]
    pub limits: Amounts,
}

/// Kubernetes' `Container`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    #[serde(deserialize_with = "read::or_default")]
    pub name: String,
    restart_policy: Option<String>,
    restart_policy_rules: RestartRules,
    #[serde(deserialize_with = "read::resources")]
    pub resources: Option<Resources>,
    pub startup_probe: Option<Json>,
    pub liveness_probe: Option<Json>,
    pub readiness_probe: Option<IgnoredAny>,
    #[serde(deserialize_with = "read::object")]
    pub lifecycle: Lifecycle,
    #[serde(deserialize_with = "read::object")]
    security_context: SecurityContext,
}

/// Kubernetes' `SecurityContext`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
struct SecurityContext {
    #[serde(deserialize_with = "read::object")]
    capabilities: Capabilities,
}

/// Kubernetes' `Capabilities`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Capabilities {
    /// True if an added capability lets the container change the network.
    #[serde(rename = "add", deserialize_with = "read::network_rights")]
    for_network: bool,
}

/// Kubernetes' `Lifecycle`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Lifecycle {
    pub post_start: Option<Object<Handler>>,
    pub pre_stop: Option<IgnoredAny>,
    pub stop_signal: Option<String>,
}

/// Kubernetes' `LifecycleHandler`: only its kind matters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Handler {
    pub exec: Option<IgnoredAny>,
    pub http_get: Option<IgnoredAny>,
    pub tcp_socket: Option<IgnoredAny>,
}

impl Pod {
    /// Reads a pod or pod template: a map with `metadata` and `spec`.
    ///
    /// # Errors
    ///
    /// If a field has another type than in Kubernetes, or if the pod is larger than any
    /// that Kubernetes can run.
    pub fn read(owner: &Owner, pod: &Value) -> Result<Pod, Unreadable> {
        read::pod(owner, pod)
    }

    /// Reads the pod or pod template at `path` in the text of an object. Returns `None` if the
    /// object has nothing there.
    ///
    /// # Errors
    ///
    /// As [`Pod::read`].
    pub fn parse(owner: &Owner, path: &[&str], object: &str) -> Result<Option<Pod>, Unreadable> {
        read::pod_within(owner, path, object)
    }

    /// True if the pod's author says that the pod runs on Windows.
    pub fn is_for_windows(&self) -> bool {
        self.spec.os.name.as_deref() == Some("windows")
    }

    pub(super) fn new(owner: &Owner, annotations: BTreeMap<String, String>, spec: Spec) -> Pod {
        let places = |containers: &[Container]| {
            let mut places = BTreeMap::new();
            for (index, container) in containers.iter().enumerate() {
                places.entry(container.name.clone()).or_insert(index);
            }
            places
        };
        Pod {
            owner: owner.clone(),
            annotations,
            init_places: places(&spec.init_containers),
            places: places(&spec.containers),
            spec,
        }
    }

    /// True if the pod has an init container of this name, native sidecars included.
    pub fn has_init_container(&self, name: &str) -> bool {
        self.init_places.contains_key(name)
    }

    /// The index of a container of this name in `spec.containers`.
    pub fn place(&self, name: &str) -> Option<usize> {
        self.places.get(name).copied()
    }

    /// The index of a container of this name in [`Pod::all`].
    pub fn place_among_all(&self, name: &str) -> Option<usize> {
        let init = self.init_places.get(name).copied();
        init.or_else(|| {
            Some(
                self.place(name)?
                    .saturating_add(self.spec.init_containers.len()),
            )
        })
    }

    /// The pod's restart policy, or `None` if the word is unknown.
    pub fn restart_policy(&self) -> Option<RestartPolicy> {
        match self.spec.restart_policy.as_deref() {
            // The API server's default for a missing `restartPolicy`.
            None | Some("Always") => Some(RestartPolicy::Always),
            Some("OnFailure") => Some(RestartPolicy::OnFailure),
            Some("Never") => Some(RestartPolicy::Never),
            Some(_) => None,
        }
    }

    /// `spec.terminationGracePeriodSeconds`, or Kubernetes' default of 30 seconds.
    pub fn grace_period(&self) -> Duration {
        let given = self.spec.termination_grace_period_seconds;
        given.map_or(plan::USUAL_GRACE_PERIOD, |seconds| {
            Duration::from_secs(seconds.min(plan::MAX_SECONDS))
        })
    }

    /// True if the pod runs to completion.
    pub fn is_job(&self) -> bool {
        matches!(self.owner.kind.as_str(), "Job" | "CronJob")
    }

    /// All containers of the pod, init containers first.
    pub fn all(&self) -> impl Iterator<Item = &Container> {
        self.spec
            .init_containers
            .iter()
            .chain(self.spec.containers.iter())
    }

    /// The container or init container of this name.
    pub fn container(&self, name: &str) -> Option<&Container> {
        let init = self.init_places.get(name).copied();
        init.and_then(|place| self.spec.init_containers.get(place))
            .or_else(|| self.spec.containers.get(self.place(name)?))
    }

    /// Removes the liveness probe of each container with one of these names.
    pub fn take_liveness_probes(&mut self, names: &BTreeSet<&str>) {
        let Spec {
            init_containers,
            containers,
            ..
        } = &mut self.spec;
        for container in init_containers.iter_mut().chain(containers.iter_mut()) {
            if names.contains(container.name.as_str()) {
                container.liveness_probe = None;
            }
        }
    }
}

impl Container {
    /// True if this container is a native sidecar (KEP-753). The container must be one of the pod's
    /// init containers.
    pub fn is_native_sidecar(&self) -> bool {
        self.restart_policy.as_deref() == Some("Always")
    }

    /// The container's own restart policy (KEP-5307), or `None` if it has none or the word is
    /// unknown.
    pub fn restart_policy(&self) -> Option<RestartPolicy> {
        RestartPolicy::from_word(self.restart_policy.as_deref()?)
    }

    /// True if a container has `restartPolicyRules`, whatever they say (KEP-5307).
    pub fn has_restart_rules(&self) -> bool {
        self.restart_policy_rules.are_there
    }

    /// The exit codes for which `restartPolicyRules` make kubelet create the container again,
    /// either alone or together with all other containers of the pod (KEP-5532).
    pub fn restart_codes(&self) -> ExitCodes {
        self.restart_policy_rules.codes.clone()
    }

    /// True if the container may change the pod's network, for example to redirect traffic to a
    /// proxy.
    pub fn may_change_network(&self) -> bool {
        self.security_context.capabilities.for_network
    }
}
