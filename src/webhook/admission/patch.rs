//! What is changed in a pod, as a JSON patch.

use std::collections::{BTreeMap, BTreeSet};

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, PatchOperation, RemoveOperation};
use serde_json::{Value, json};

use super::subject::Subject;

/// Operations, in their order; none: nothing is changed.
#[derive(Debug, Default)]
pub(super) struct Patch(Vec<PatchOperation>);

// === impl Patch ===

impl Patch {
    pub(super) fn set_runtime_class(&mut self, name: &str) {
        self.add(&["spec", "runtimeClassName"], name.into());
    }

    /// Makes the annotations those that they are to be.
    pub(super) fn annotate(
        &mut self,
        before: &BTreeMap<String, String>,
        after: &BTreeMap<String, String>,
    ) {
        let path = ["metadata", "annotations"];
        if before.is_empty() && !after.is_empty() {
            self.add(&path, json!({}));
        }
        let [metadata, annotations] = path;
        for (key, value) in after {
            if before.get(key) != Some(value) {
                self.add(&[metadata, annotations, key], value.as_str().into());
            }
        }
        for key in before.keys().filter(|key| !after.contains_key(*key)) {
            self.remove(&[metadata, annotations, key]);
        }
    }

    /// Leaves the liveness probes of the containers with these names to usher.
    pub(super) fn take_probes_out(&mut self, subject: &Subject, names: &BTreeSet<&str>) {
        for (field, index) in subject.liveness_probes_of(names) {
            self.remove(&["spec", field, &index.to_string(), "livenessProbe"]);
        }
    }

    /// Sets a field, whether it is there or not.
    fn add(&mut self, path: &[&str], value: Value) {
        let path = PointerBuf::from_tokens(path.iter().copied());
        self.0
            .push(PatchOperation::Add(AddOperation { path, value }));
    }

    fn remove(&mut self, path: &[&str]) {
        let path = PointerBuf::from_tokens(path.iter().copied());
        self.0
            .push(PatchOperation::Remove(RemoveOperation { path }));
    }

    /// None where nothing is changed.
    pub(super) fn finish(self) -> Option<json_patch::Patch> {
        (!self.0.is_empty()).then_some(json_patch::Patch(self.0))
    }
}
