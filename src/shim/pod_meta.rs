//! The pod's names, as read from the annotations of its containers, and its sandbox.

use std::collections::BTreeMap;

use usher_core::plan::PodIdentity;
use usher_engine::{Init, Sandbox};

/// A pod's namespace, name and uid, and its sandbox.
#[derive(Debug)]
pub(crate) struct PodMeta {
    /// containerd's namespace.
    namespace: String,
    /// Kubernetes' names of the pod, read from the first container.
    identity: PodIdentity,
    sandbox: Option<Sandbox>,
}

impl PodMeta {
    /// Creates the metadata of a pod whose names are not known yet. `namespace` is containerd's
    /// namespace.
    pub fn new(namespace: &str) -> PodMeta {
        PodMeta {
            namespace: namespace.to_owned(),
            identity: PodIdentity::default(),
            sandbox: None,
        }
    }

    /// Reads the pod's names from the annotations of container `id`, which is being created. The
    /// names come from the first container: `is_first` is true if the pod has no other. The uid
    /// comes from a later container if the first has none.
    pub fn learn(&mut self, id: &str, annotations: &BTreeMap<String, String>, is_first: bool) {
        let read = || PodIdentity::read(id, annotations);
        if is_first {
            self.identity = read();
        } else if self.identity.uid.is_empty() {
            // Some versions of containerd do not pass the uid to the sandbox.
            self.identity.uid = read().uid;
        }
    }

    /// Stores the sandbox with its process `init`. Called for each new process of the sandbox.
    pub fn set_sandbox(&mut self, init: &dyn Init) {
        self.sandbox = Some(init.shared());
    }

    /// containerd's namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    pub fn identity(&self) -> &PodIdentity {
        &self.identity
    }

    pub fn sandbox(&self) -> Option<&Sandbox> {
        self.sandbox.as_ref()
    }

    /// True if the shim made the sandbox itself, without an OCI runtime. False also while there is
    /// no sandbox.
    pub fn has_own_sandbox(&self) -> bool {
        let sandbox = self.sandbox();
        sandbox.is_some_and(|sandbox| sandbox.own.is_some())
    }
}
