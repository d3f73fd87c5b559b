//! Changes to a pod, as a JSON patch.

use std::collections::{BTreeMap, BTreeSet};

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, PatchOperation, RemoveOperation};
use serde_json::{Value, json};

use super::subject::Subject;

/// The operations of the patch, in order; empty if nothing changes.
#[derive(Debug, Default)]
pub(super) struct Patch(Vec<PatchOperation>);

impl Patch {
    pub(super) fn set_runtime_class(&mut self, name: &str) {
        self.add(&["spec", "runtimeClassName"], name.into());
    }

    /// Changes the annotations from `before` to `after`.
    pub(super) fn set_annotations(
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

    /// Removes the liveness probes of the containers with these names from the spec, because usher
    /// runs these probes.
    pub(super) fn remove_liveness_probes(&mut self, subject: &Subject, names: &BTreeSet<&str>) {
        for (field, index) in subject.liveness_probes_of(names) {
            self.remove(&["spec", field, &index.to_string(), "livenessProbe"]);
        }
    }

    /// Adds a field, or replaces its value.
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

    /// Returns the patch, or `None` if nothing changes.
    pub(super) fn finish(self) -> Option<json_patch::Patch> {
        (!self.0.is_empty()).then_some(json_patch::Patch(self.0))
    }
}
