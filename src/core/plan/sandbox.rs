//! The annotations of a sandbox without a pause container. The shim makes them itself, with the
//! keys of containerd's annotations.

use std::collections::BTreeMap;

use super::identity::{
    CONTAINER_TYPE, SANDBOX, SANDBOX_ID, SANDBOX_NAME, SANDBOX_NAMESPACE, SANDBOX_UID,
};
use super::is_usher_key;
use super::kubelet::{ALLOTTED_MEMORY, ALLOTTED_PERIOD, ALLOTTED_QUOTA, ALLOTTED_SHARES};

/// The identity of a sandbox, and the resources of its containers together (see
/// [`Allotment`](super::Allotment)). A field is `None` if it is unknown.
#[derive(Debug, Clone, Copy, Default)]
pub struct SandboxFacts<'a> {
    pub id: &'a str,
    pub name: &'a str,
    pub namespace: &'a str,
    pub uid: &'a str,
    /// Memory limit in bytes.
    pub memory: Option<u64>,
    /// Microseconds of CPU time in each period.
    pub quota: Option<u64>,
    /// Length of the period in microseconds.
    pub period: Option<u64>,
    pub shares: Option<u64>,
}

/// Makes the annotations of a sandbox: usher's annotations of its pod, and those of containerd,
/// which the pod's author cannot change.
pub fn sandbox_annotations(
    facts: &SandboxFacts<'_>,
    pod: BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut annotations = pod;
    annotations.retain(|key, _| is_usher_key(key));
    let words = [
        (CONTAINER_TYPE, SANDBOX),
        (SANDBOX_ID, facts.id),
        (SANDBOX_NAME, facts.name),
        (SANDBOX_NAMESPACE, facts.namespace),
        (SANDBOX_UID, facts.uid),
    ];
    let amounts = [
        (ALLOTTED_MEMORY, facts.memory),
        (ALLOTTED_QUOTA, facts.quota),
        (ALLOTTED_PERIOD, facts.period),
        (ALLOTTED_SHARES, facts.shares),
    ];
    let words = words.map(|(key, word)| (key, Some(word.to_owned())));
    let amounts = amounts.map(|(key, amount)| (key, amount.map(|amount| amount.to_string())));
    for (key, value) in words.into_iter().chain(amounts) {
        if let Some(value) = value {
            annotations.insert(key.to_owned(), value);
        }
    }
    annotations
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{ContainerKind, Identity, KubeletFacts, PodIdentity};

    #[test]
    fn the_sandbox_facts_are_read_as_written() {
        let facts = SandboxFacts {
            id: "s1",
            name: "web-0",
            namespace: "shop",
            uid: "u-1",
            memory: Some(64),
            quota: Some(20),
            period: Some(100),
            shares: None,
        };
        let pod = [
            ("usher/sidecars", "proxy"),
            (SANDBOX_UID, "u-2"),
            ("other", "x"),
        ];
        let pod = pod.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let annotations = sandbox_annotations(&facts, BTreeMap::from(pod));
        assert_eq!(
            annotations.get("usher/sidecars").map(String::as_str),
            Some("proxy")
        );
        assert!(!annotations.contains_key("other"));
        assert_eq!(
            Identity::read("s1", &annotations).kind,
            ContainerKind::Sandbox
        );
        let pod = PodIdentity::read("s1", &annotations);
        let read = [pod.id, pod.name, pod.namespace, pod.uid];
        assert_eq!(read, ["s1", "web-0", "shop", "u-1"]);
        let allotment = KubeletFacts::read(&annotations).allotment;
        assert_eq!(
            (allotment.memory, allotment.quota, allotment.shares),
            (Some(64), Some((20, 100)), None)
        );
    }
}
