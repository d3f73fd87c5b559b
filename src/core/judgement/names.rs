//! Resolves names in lists for which the whole pod has to be known: patterns, and names of optional
//! containers.

use std::collections::{BTreeMap, BTreeSet};

use crate::manifest::Pod;
use crate::plan::{
    self, MAX_NAMES, MAX_VALUE_BYTES, Pattern, PodSetting, gives_a_role, is_usher_key, list_words,
    without_mark,
};

pub(super) type Annotations = BTreeMap<String, String>;

/// Maximum number of comparisons of a name with a pattern, for one pod.
const MAX_COMPARISONS: usize = 1 << 16;

/// Error: the patterns in lists are not replaced by names, because that would cost too much.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternsError {
    #[error("{key} lists {count} names and patterns; expected at most {MAX_NAMES}")]
    TooLong { key: String, count: usize },
    #[error(
        "{key} has patterns that need {comparisons} comparisons with names of containers; expected \
         at most {MAX_COMPARISONS} for a pod"
    )]
    TooCostly { key: String, comparisons: usize },
}

/// The lists in a pod's annotations, split into words. A list that is too long is left out, because
/// the parser of the plan refuses it.
pub(super) fn lists(annotations: &Annotations) -> impl Iterator<Item = (PodSetting, Vec<&str>)> {
    plan::lists().filter_map(|setting| {
        let value = annotations.get(&setting.key())?;
        let is_short = value.len() <= MAX_VALUE_BYTES;
        Some((setting, list_words(value).ok().filter(|_| is_short)?))
    })
}

/// The lists that contain patterns.
pub(super) fn with_patterns(
    annotations: &Annotations,
) -> impl Iterator<Item = (PodSetting, Vec<&str>)> {
    lists(annotations).filter(|(_, words)| words.iter().any(|word| Pattern::is_one(word)))
}

/// Replaces patterns by the names of matching containers, in the order of the containers. A name
/// that is also listed without a pattern is not added. A list that becomes empty is removed.
///
/// # Errors
///
/// If a list has too many names and patterns, or if the pod has too many containers for
/// its patterns.
pub(super) fn without_patterns(
    annotations: &Annotations,
    pod: &Pod,
) -> Result<Annotations, PatternsError> {
    check_cost(annotations, pod)?;
    let has_role = lists(annotations).filter(|(setting, _)| gives_a_role(*setting));
    let named: BTreeSet<&str> = has_role
        .flat_map(|(_, words)| words)
        .map(|word| without_mark(word).0)
        .collect();
    let mut resolved = annotations.clone();
    for (setting, words) in with_patterns(annotations) {
        let own: BTreeSet<&str> = words.iter().map(|word| without_mark(word).0).collect();
        let mut names: Vec<&str> = Vec::new();
        let mut is_there = BTreeSet::new();
        for word in &words {
            let Some(pattern) = pattern(word) else {
                names.push(word);
                is_there.insert(*word);
                continue;
            };
            for name in candidates(setting, pod).filter(|name| pattern.matches(name)) {
                let is_said = match gives_a_role(setting) {
                    true => named.contains(name),
                    false => own.contains(name),
                };
                // Collects at most one name more than allowed. That is enough to cause the error
                // later.
                if !is_said && names.len() <= MAX_NAMES && is_there.insert(name) {
                    names.push(name);
                }
            }
        }
        put(&mut resolved, setting, &names);
    }
    Ok(resolved)
}

fn check_cost(annotations: &Annotations, pod: &Pod) -> Result<(), PatternsError> {
    let mut comparisons = 0_usize;
    for (setting, words) in with_patterns(annotations) {
        let count = words.len();
        if count > MAX_NAMES {
            let key = setting.key();
            return Err(PatternsError::TooLong { key, count });
        }
        let patterns = words.iter().filter(|word| Pattern::is_one(word)).count();
        let names = candidates(setting, pod).count();
        comparisons = comparisons.saturating_add(patterns.saturating_mul(names));
        if comparisons > MAX_COMPARISONS {
            let key = setting.key();
            return Err(PatternsError::TooCostly { key, comparisons });
        }
    }
    Ok(())
}

/// Removes the mark of an optional name (`NAME?`) if the container exists. Otherwise removes the
/// name and the container's settings. Containers in `initContainers` count as absent, because
/// kubelet handles them. For example, an injector may have added a proxy there, as a native
/// sidecar.
pub(super) fn without_absent(annotations: &Annotations, pod: &Pod) -> Annotations {
    let is_there = |name: &str| pod.place(name).is_some();
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
        let of_container = key.split_once(".usher/").filter(|_| is_usher_key(key));
        of_container.is_none_or(|(_, name)| !absent.contains(name))
    });
    resolved
}

/// Sets a list, or removes it if it has no names.
pub(super) fn put(annotations: &mut Annotations, setting: PodSetting, names: &[&str]) {
    match names {
        [] => annotations.remove(&setting.key()),
        names => annotations.insert(setting.key(), names.join(",")),
    };
}

fn pattern(word: &str) -> Option<Pattern> {
    let (word, _) = without_mark(word);
    Pattern::new(word).ok().filter(|_| Pattern::is_one(word))
}

/// The names that a pattern in the list `setting` may match. A pattern in `usher/native-init`
/// matches only names from `spec.initContainers`. A pattern in any other list matches only names
/// from `spec.containers`.
fn candidates(setting: PodSetting, pod: &Pod) -> impl Iterator<Item = &str> {
    let containers = match setting {
        PodSetting::NativeInit => &pod.spec.init_containers,
        _ => &pod.spec.containers,
    };
    containers.iter().map(|it| it.name.as_str())
}
