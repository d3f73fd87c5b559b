//! Names and keys that are probably misspelled.

use std::collections::BTreeSet;

use crate::manifest::Pod;
use crate::plan::{
    ContainerSetting, Pattern, PodSetting, Role, Word, gives_a_role, is_near, is_usher_key,
    role_of_list, without_mark,
};

use super::super::names::lists;
use super::Warning;

/// Maximum number of unknown names or keys of a pod that are checked for a misspelling, and maximum
/// number of names that each is compared with. Both bound the cost.
const COMPARED_AT_MOST: usize = 16;
const CANDIDATES_AT_MOST: usize = 256;

/// Warnings about listed names that no container has, also if the shim would refuse the pod.
pub(in crate::judgement) fn of_names(pod: &Pod) -> Vec<Warning> {
    let listed = lists(&pod.annotations).filter(|(setting, _)| gives_a_role(*setting));
    let listed: Vec<_> = listed
        .flat_map(|(setting, words)| words.into_iter().map(move |word| (setting, word)))
        .filter(|(_, word)| !is_pattern(word))
        .map(|(setting, word)| (setting, without_mark(word)))
        .collect();
    let names: BTreeSet<&str> = listed.iter().map(|(_, (name, _))| *name).collect();
    let candidates = |setting| {
        let containers = match setting {
            PodSetting::NativeInit => &pod.spec.init_containers,
            _ => &pod.spec.containers,
        };
        let names = containers.iter().map(|it| it.name.as_str());
        names.take(CANDIDATES_AT_MOST)
    };
    let missing = listed
        .iter()
        .filter(|(setting, (name, is_optional))| !is_optional && is_missing(pod, *setting, name));
    let mut compared = 0..COMPARED_AT_MOST;
    missing
        .map(|(setting, (name, _))| {
            let near = compared.next().and_then(|_| {
                candidates(*setting).find(|other| is_near(name, other) && !names.contains(other))
            });
            let near = near.map_or(String::new(), |near| format!("; did you mean {near}?"));
            Warning {
                container: Some((*name).to_owned()),
                says: format!("{} lists it, but {}{near}", setting.key(), then(*setting)),
            }
        })
        .collect()
}

fn is_pattern(word: &str) -> bool {
    Pattern::is_one(without_mark(word).0)
}

fn is_missing(pod: &Pod, setting: PodSetting, name: &str) -> bool {
    match setting {
        PodSetting::NativeInit => !pod.has_init_container(name),
        _ => pod.container(name).is_none(),
    }
}

/// Describes what happens if `list` names a container that the pod does not have. An injector may
/// still add the container.
fn then(list: PodSetting) -> String {
    let then = match role_of_list(list) {
        Some(Role::Init | Role::Sidecar) => "containers that wait for it never run",
        Some(Role::App) => "the run is never complete",
        Some(Role::NativeInit) => return "the pod has no such init container".to_owned(),
        Some(Role::Defer(_) | Role::Guest) | None => "nothing runs in its turn",
    };
    format!("the pod has no such container: {then}, unless an injector adds it")
}

/// Warnings about annotations whose keys are nearly usher's keys. Neither the shim nor containerd
/// reads such annotations.
pub(in crate::judgement) fn of_keys(pod: &Pod) -> Vec<Warning> {
    let keys = pod.annotations.keys();
    let foreign = keys.filter(|key| !is_usher_key(key));
    let meant = foreign.filter_map(|key| Some((key, meant(key)?)));
    let says = meant.take(COMPARED_AT_MOST).map(|(key, meant)| {
        format!("{key} is not an annotation of usher and has no effect; did you mean {meant}?")
    });
    says.map(Warning::about_pod).collect()
}

/// The usher key that the author probably meant. `Some` if `key` is the key of a setting with a
/// misspelled `usher`.
fn meant(key: &str) -> Option<String> {
    let (prefix, name) = key.split_once('/')?;
    let (setting, prefix) = match prefix.split_once('.') {
        Some((setting, prefix)) => (Some(setting), prefix),
        None => (None, prefix),
    };
    if !is_near(prefix, "usher") {
        return None;
    }
    match setting {
        Some(setting) => Some(ContainerSetting::from_word(setting)?.key(name)),
        None => Some(PodSetting::from_word(name)?.key()),
    }
}
