//! Names in lists that only those can read who know all containers of a pod: patterns, and names of
//! containers that need not be there.

use std::collections::{BTreeMap, BTreeSet};

use crate::manifest::Pod;
use crate::plan::{self, Pattern, PodSetting, gives_a_role, list_words, without_mark};

/// A pod's annotations by their keys.
pub(super) type Annotations = BTreeMap<String, String>;

/// The lists of a pod that can be read, as their words.
fn lists(annotations: &Annotations) -> impl Iterator<Item = (PodSetting, Vec<&str>)> {
    plan::lists().filter_map(|setting| {
        let value = annotations.get(&setting.key())?;
        Some((setting, list_words(value).ok()?))
    })
}

/// The lists in which patterns stand.
pub(super) fn with_patterns(
    annotations: &Annotations,
) -> impl Iterator<Item = (PodSetting, Vec<&str>)> {
    lists(annotations).filter(|(_, words)| words.iter().any(|word| Pattern::is_one(word)))
}

/// Puts names in the place of patterns: those of the containers that are there, in their order, and in no
/// list by their own names. A list that comes to nothing is not there.
pub(super) fn without_patterns(annotations: &Annotations, pod: &Pod) -> Annotations {
    let has_role = lists(annotations).filter(|(setting, _)| gives_a_role(*setting));
    let named: BTreeSet<&str> = has_role
        .flat_map(|(_, words)| words)
        .map(|word| without_mark(word).0)
        .collect();
    let mut resolved = annotations.clone();
    for (setting, words) in with_patterns(annotations) {
        let own: BTreeSet<&str> = words.iter().map(|word| without_mark(word).0).collect();
        let mut names: Vec<&str> = Vec::new();
        for word in &words {
            let Some(pattern) = pattern(word) else {
                names.push(word);
                continue;
            };
            for name in candidates(setting, pod).filter(|name| pattern.matches(name)) {
                let is_said = match gives_a_role(setting) {
                    true => named.contains(name),
                    false => own.contains(name),
                };
                if !is_said && !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        put(&mut resolved, setting, &names);
    }
    resolved
}

/// Puts plain names in the place of optional ones: those of containers that are there stay, and nothing is
/// said of the others any more. What kubelet looks after by itself is not there in this sense: an injector
/// brings the same proxy as an ordinary container or as a native sidecar.
pub(super) fn without_absent(annotations: &Annotations, pod: &Pod) -> Annotations {
    let is_there = |name: &str| pod.spec.containers.iter().any(|it| it.name == name);
    let mut absent: BTreeSet<&str> = BTreeSet::new();
    for (_, words) in lists(annotations) {
        let optional = words.into_iter().map(without_mark);
        let optional = optional.filter(|(_, is_optional)| *is_optional);
        absent.extend(
            optional
                .map(|(name, _)| name)
                .filter(|name| !is_there(name)),
        );
    }
    let mut resolved = annotations.clone();
    for (setting, words) in lists(annotations) {
        let left = words
            .iter()
            .filter(|word| !absent.contains(without_mark(word).0));
        let names = left.map(|word| match without_mark(word) {
            (name, true) if is_there(name) => name,
            _ => *word,
        });
        let names: Vec<&str> = names.collect();
        if names != words {
            put(&mut resolved, setting, &names);
        }
    }
    resolved.retain(|key, _| {
        let of_container = key.split_once(".usher/");
        of_container.is_none_or(|(_, name)| !absent.contains(name))
    });
    resolved
}

/// Sets a list; one without names is not there.
pub(super) fn put(annotations: &mut Annotations, setting: PodSetting, names: &[&str]) {
    match names {
        [] => annotations.remove(&setting.key()),
        names => annotations.insert(setting.key(), names.join(",")),
    };
}

/// A word as a pattern, if it is one.
fn pattern(word: &str) -> Option<Pattern> {
    let (word, _) = without_mark(word);
    Pattern::new(word).ok().filter(|_| Pattern::is_one(word))
}

/// The names that a pattern may stand for: kubelet looks after its own init containers.
fn candidates(setting: PodSetting, pod: &Pod) -> impl Iterator<Item = &str> {
    let containers = match setting {
        PodSetting::NativeInit => &pod.spec.init_containers,
        _ => &pod.spec.containers,
    };
    containers.iter().map(|it| it.name.as_str())
}
