//! What the author of a pod has said, as against what we have written.
//!
//! We are called again when another webhook has changed the pod, and have to do it all anew: an injector
//! may have brought the container for which `usher/sidecars: proxy?` is there. So what was written is in
//! an annotation of the pod, which containerd passes on to nobody, and is undone before the next time.

use std::collections::{BTreeMap, BTreeSet};

use usher_core::judgement::Completion;
use usher_core::plan::is_usher_key;

/// The annotation.
const WRITTEN: &str = "usher-webhook/written";

type Annotations = BTreeMap<String, String>;

/// By key: null where the author had said nothing; else what the author had said, and what stands there
/// now, if anything does.
type Written = BTreeMap<String, Option<(String, Option<String>)>>;

/// The annotations as their author has them.
pub(super) fn restore(annotations: &Annotations) -> Annotations {
    let mut restored = annotations.clone();
    let Some(written) = restored.remove(WRITTEN) else {
        return restored;
    };
    // One that cannot be read is not ours.
    let written: Written = serde_json::from_str(&written).unwrap_or_default();
    // A forged one may name any key; what is not usher's was never written here.
    let of_usher = written.into_iter().filter(|(key, _)| is_usher_key(key));
    for (key, entry) in of_usher {
        match entry {
            None => {
                restored.remove(&key);
            }
            Some((was, is)) if restored.get(&key) == is.as_ref() => {
                restored.insert(key, was);
            }
            // Somebody has said something else since.
            Some(_) => {}
        }
    }
    restored
}

/// Writes down in a completed pod's annotations what has to be known of those that its author has.
pub(super) fn remember(of_author: &Annotations, completed: &mut Annotations, by: &Completion) {
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

/// Whether it is a probe that is taken out of the spec: the next time it is only here.
fn is_moved(key: &str, moved: &BTreeSet<&str>) -> bool {
    let container = key.strip_prefix("liveness-probe.usher/");
    container.is_some_and(|container| moved.contains(container))
}
