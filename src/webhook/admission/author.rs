//! Separates the annotations that the pod's author has written from those of the webhook.
//!
//! The API server calls the webhook again after another webhook has changed the pod. For example,
//! an injector has added the container that `usher/sidecars: proxy?` refers to. Then the webhook
//! has to decide everything anew, from the author's annotations. So the webhook records its changes
//! in an annotation, and first undoes them at the next call. containerd does not pass this
//! annotation on.

use std::collections::{BTreeMap, BTreeSet};

use usher_core::judgement::Completion;
use usher_core::plan::is_usher_key;

const WRITTEN: &str = "usher-webhook/written";

type Annotations = BTreeMap<String, String>;

/// Changes that the webhook has made: the annotation's key, the author's value, and the webhook's
/// value. `None` stands for a missing annotation.
type Written = BTreeMap<String, (Option<String>, Option<String>)>;

/// Returns the author's annotations: undoes the changes that the webhook has recorded.
pub(super) fn restore(annotations: &Annotations) -> Annotations {
    let mut restored = annotations.clone();
    let Some(written) = restored.remove(WRITTEN) else {
        return restored;
    };
    // A record that cannot be read was not written by the webhook.
    let written: Written = serde_json::from_str(&written).unwrap_or_default();
    // The pod's author may have forged the record, with any keys. Restore only usher's annotations,
    // because the webhook changes no others.
    let of_usher = written.into_iter().filter(|(key, _)| is_usher_key(key));
    for (key, (was, is)) in of_usher {
        // If the values differ, another webhook or a person has changed the annotation since.
        if restored.get(&key) == is.as_ref() {
            match was {
                Some(was) => restored.insert(key, was),
                None => restored.remove(&key),
            };
        }
    }
    restored
}

/// Adds to `completed` an annotation that records how the completed annotations differ from those
/// that the pod's author wrote.
pub(super) fn record(of_author: &Annotations, completed: &mut Annotations, by: &Completion) {
    let moved = by.moved_probes();
    let kept = by.annotations.iter();
    let kept = kept.filter(|(key, _)| !is_moved(key, &moved));
    let written: Written = kept
        .map(|(key, value)| {
            let was = of_author.get(key).cloned();
            (key.clone(), (was, value.clone()))
        })
        .collect();
    if !written.is_empty()
        && let Ok(written) = serde_json::to_string(&written)
    {
        completed.insert(WRITTEN.to_owned(), written);
    }
}

/// True for the annotation of a liveness probe that the webhook moves out of the spec. At the next
/// call, the spec has no such probe anymore. So the webhook must not remove the annotation when it
/// undoes its other changes.
fn is_moved(key: &str, moved: &BTreeSet<&str>) -> bool {
    let container = key.strip_prefix("liveness-probe.usher/");
    container.is_some_and(|container| moved.contains(container))
}
