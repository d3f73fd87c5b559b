//! The pod or pod template in an object.

use std::collections::BTreeSet;

use serde_json::value::RawValue;
use usher_core::manifest::{Owner, Pod, TooLarge, Unreadable, pod_path};

/// A pod or pod template.
#[derive(Debug, PartialEq)]
pub(super) struct Subject {
    pub(super) pod: Box<Pod>,
}

impl Subject {
    /// Reads the pod of an object. `None` if objects of this kind have no pods, or if the pod is
    /// malformed, because the API server then refuses it, with a better message.
    ///
    /// # Errors
    ///
    /// If the pod is larger than any that Kubernetes can run.
    pub(super) fn of(
        kind: &str,
        namespace: Option<&str>,
        object: &RawValue,
    ) -> Result<Option<Subject>, TooLarge> {
        let Some(path) = pod_path(kind) else {
            return Ok(None);
        };
        let owner = Owner {
            kind: kind.to_owned(),
            name: String::new(),
            namespace: namespace.map(str::to_owned),
        };
        match Pod::parse(&owner, path, object.get()) {
            Ok(pod) => Ok(pod.map(|pod| Subject { pod: Box::new(pod) })),
            Err(Unreadable::Malformed(_)) => Ok(None),
            Err(Unreadable::TooLarge(error)) => Err(error),
        }
    }

    pub(super) fn is_pod(&self) -> bool {
        self.pod.owner.kind == "Pod"
    }

    /// Finds the containers with these names that have a liveness probe. Returns their positions: a
    /// field of the spec, and the index in its list.
    pub(super) fn liveness_probes_of(
        &self,
        names: &BTreeSet<&str>,
    ) -> impl Iterator<Item = (&'static str, usize)> {
        let spec = &self.pod.spec;
        let lists = [
            ("initContainers", &spec.init_containers),
            ("containers", &spec.containers),
        ];
        lists.into_iter().flat_map(move |(field, containers)| {
            let containers = containers.iter().enumerate();
            containers
                .filter(|(_, it)| it.liveness_probe.is_some() && names.contains(it.name.as_str()))
                .map(move |(index, _)| (field, index))
        })
    }
}
