//! Separates what a pod's author has written from what we have written.
//!
//! The API server calls us again after another webhook has changed the pod, for example after an
//! injector has added the container that `usher/sidecars: proxy?` refers to. Then everything has to
//! be decided anew, from the author's annotations. So an annotation records what we have changed,
//! and we undo that first. containerd does not pass this annotation on.

use std::collections::{BTreeMap, BTreeSet};

use usher_core::judgement::Completion;
use usher_core::plan::is_usher_key;

const WRITTEN: &str = "usher-webhook/written";

type Annotations = BTreeMap<String, String>;

/// Changes that the webhook has made, by annotation key. Null stands for an annotation that the
/// author did not have. Otherwise the value has two parts: the author's value, and the webhook's,
/// which is null if the webhook has removed the annotation.
type Written = BTreeMap<String, Option<(String, Option<String>)>>;

/// Returns the author's annotations: undoes the changes that were recorded.
pub(super) fn restore(annotations: &Annotations) -> Annotations {
    let mut restored = annotations.clone();
    let Some(written) = restored.remove(WRITTEN) else {
        return restored;
    };
    // A record that cannot be read is not ours.
    let written: Written = serde_json::from_str(&written).unwrap_or_default();
    // A forged record may name any key; we only ever change usher's.
    let of_usher = written.into_iter().filter(|(key, _)| is_usher_key(key));
    for (key, entry) in of_usher {
        match entry {
            None => {
                restored.remove(&key);
            }
            Some((was, is)) if restored.get(&key) == is.as_ref() => {
                restored.insert(key, was);
            }
            // Another webhook or a person has changed the annotation since.
            Some(_) => {}
        }
    }
    restored
}

/// Records, in the annotations that the webhook has completed, how they differ from those that the
/// pod's author wrote.
pub(super) fn record(of_author: &Annotations, completed: &mut Annotations, by: &Completion) {
    let moved = by.moved_probes();
    let kept = by.annotations.iter();
    let kept = kept.filter(|(key, _)| !is_moved(key, &moved));
    let written: Written = kept
        .map(|(key, value)| {
            let was = of_author.get(key).cloned();
            (key.clone(), was.map(|was| (was, value.clone())))
        })
        .collect();
    if !written.is_empty()
        && let Ok(written) = serde_json::to_string(&written)
    {
        completed.insert(WRITTEN.to_owned(), written);
    }
}

/// True for the annotation of a liveness probe that the webhook moves out of the spec. At the next
/// call the probe is only in this annotation, so the change must not be undone.
fn is_moved(key: &str, moved: &BTreeSet<&str>) -> bool {
    let container = key.strip_prefix("liveness-probe.usher/");
    container.is_some_and(|container| moved.contains(container))
}
