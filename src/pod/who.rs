//! Who the pod is, as far as its containers have told.

use std::collections::BTreeMap;

use crate::engine::{Init, Sandbox};
use crate::plan::PodIdentity;

/// A pod's name, and its sandbox.
#[derive(Debug)]
pub(super) struct Who {
    /// containerd's.
    namespace: String,
    /// Of the first container.
    identity: PodIdentity,
    sandbox: Option<Sandbox>,
}

impl Who {
    /// Nobody yet, in containerd's `namespace`.
    pub fn new(namespace: &str) -> Who {
        Who {
            namespace: namespace.to_owned(),
            identity: PodIdentity::default(),
            sandbox: None,
        }
    }

    /// What the annotations of a container say, the first of its pod or not.
    pub fn learn(&mut self, id: &str, annotations: &BTreeMap<String, String>, is_first: bool) {
        let read = || PodIdentity::read(id, annotations);
        if is_first {
            self.identity = read();
        } else if self.identity.uid.is_empty() {
            // Not every containerd tells it of the sandbox.
            self.identity.uid = read().uid;
        }
    }

    /// The sandbox has this process from now on.
    pub fn has_sandbox(&mut self, init: &dyn Init) {
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

    /// Whether the shim has made the sandbox, and no OCI runtime.
    pub fn has_own_sandbox(&self) -> bool {
        let sandbox = self.sandbox();
        sandbox.is_some_and(|sandbox| sandbox.own.is_some())
    }
}
