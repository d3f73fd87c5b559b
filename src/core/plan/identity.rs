//! The identity of a container, and the pod it belongs to.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub(super) const CONTAINER_TYPE: &str = "io.kubernetes.cri.container-type";
const CONTAINER_NAME: &str = "io.kubernetes.cri.container-name";
pub(super) const SANDBOX_ID: &str = "io.kubernetes.cri.sandbox-id";
pub(super) const SANDBOX_NAME: &str = "io.kubernetes.cri.sandbox-name";
pub(super) const SANDBOX_NAMESPACE: &str = "io.kubernetes.cri.sandbox-namespace";
pub(super) const SANDBOX_UID: &str = "io.kubernetes.cri.sandbox-uid";
/// Value of [`CONTAINER_TYPE`] for a sandbox container.
pub(super) const SANDBOX: &str = "sandbox";
/// The annotation that groups containers into one pod without a sandbox.
pub const GROUP: &str = "io.containerd.runc.v2.group";

/// A container as containerd's CRI plugin identifies it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Identity {
    pub kind: ContainerKind,
    /// The name in the pod's spec, else the container's id.
    pub name: String,
    /// The id of the container's sandbox. A sandbox container made by CRI has its own id here.
    pub sandbox: Option<String>,
}

/// The kind of a container: the sandbox (pause) container, or one of the pod's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ContainerKind {
    /// The pause container or its equivalent: the first container of a pod to start, the last to
    /// stop.
    Sandbox,
    /// Any container that is no sandbox.
    Workload,
}

impl Identity {
    /// Reads the identity of the container `id`.
    pub fn read(id: &str, annotations: &BTreeMap<String, String>) -> Identity {
        let kind = match annotation(annotations, CONTAINER_TYPE) {
            Some(SANDBOX) => ContainerKind::Sandbox,
            _ => ContainerKind::Workload,
        };
        Identity {
            kind,
            name: annotation(annotations, CONTAINER_NAME)
                .unwrap_or(id)
                .to_owned(),
            sandbox: annotation(annotations, SANDBOX_ID).map(str::to_owned),
        }
    }
}

/// A pod, as Kubernetes identifies it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PodIdentity {
    /// The group that an annotation names, else the sandbox's id, else the id of the pod's only
    /// container.
    pub id: String,
    /// The pod's name; without Kubernetes, the same as `id`.
    pub name: String,
    /// The pod's namespace; empty without Kubernetes.
    pub namespace: String,
    /// The pod's uid; empty without Kubernetes.
    pub uid: String,
}

impl PodIdentity {
    /// Reads the identity of the pod that the container `id` belongs to.
    pub fn read(id: &str, annotations: &BTreeMap<String, String>) -> PodIdentity {
        let say = |key| annotation(annotations, key).unwrap_or_default().to_owned();
        let id = group(annotations).unwrap_or(id);
        PodIdentity {
            id: id.to_owned(),
            name: annotation(annotations, SANDBOX_NAME)
                .unwrap_or(id)
                .to_owned(),
            namespace: say(SANDBOX_NAMESPACE),
            uid: say(SANDBOX_UID),
        }
    }
}

/// The group of a container. All containers of a group share one shim, as in
/// `containerd-shim-runc-v2`.
pub fn group(annotations: &BTreeMap<String, String>) -> Option<&str> {
    annotation(annotations, GROUP).or_else(|| annotation(annotations, SANDBOX_ID))
}

/// The value of an annotation; `None` if it is missing or empty.
fn annotation<'a>(annotations: &'a BTreeMap<String, String>, key: &str) -> Option<&'a str> {
    annotations
        .get(key)
        .map(String::as_str)
        .filter(|value| !value.is_empty())
}
