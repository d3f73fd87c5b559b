//! Which pod is meant: what pods are called, and how exactly.

use crate::api;

use super::output::Failure;

/// The pod that is called so: by its name, its namespace and name, its id, or how that begins. One that
/// lives counts more than one that has ended, and of those the one that ended last.
///
/// # Errors
///
/// If more than one that lives is called so.
pub fn choose<T>(
    which: &str,
    pods: Vec<T>,
    pod: impl Fn(&T) -> &api::Pod,
) -> Result<Option<T>, Failure> {
    let (living, ended): (Vec<T>, Vec<T>) =
        pods.into_iter().partition(|one| pod(one).ended.is_none());
    if let Some(found) = only(which, living, &pod)? {
        return Ok(Some(found));
    }
    let at = |one: &T| pod(one).ended.as_ref().map(|at| (at.seconds, at.nanos));
    let ended = ended
        .into_iter()
        .filter(|one| is_called(which, pod(one)) > 0);
    Ok(ended.max_by_key(at))
}

/// Of those that are called so the one that is called so most exactly.
fn only<T>(
    which: &str,
    living: Vec<T>,
    pod: &impl Fn(&T) -> &api::Pod,
) -> Result<Option<T>, Failure> {
    let best = living.iter().map(|one| is_called(which, pod(one))).max();
    let Some(best) = best.filter(|best| *best > 0) else {
        return Ok(None);
    };
    let mut candidates: Vec<_> = living
        .into_iter()
        .filter(|one| is_called(which, pod(one)) == best)
        .collect();
    match (candidates.pop(), candidates.is_empty()) {
        (found, true) => Ok(found),
        (last, false) => {
            let all = candidates.iter().chain(&last);
            let names: Vec<_> = all.map(|one| full_name(pod(one))).collect();
            Err(Failure::because(format!(
                "{which:?} is the name of more than one pod, expected one of {}",
                names.join(", ")
            )))
        }
    }
}

/// How exactly a pod is called so; 0 if it is not.
fn is_called(which: &str, pod: &api::Pod) -> u8 {
    let full = format!("{}/{}", namespace(pod), pod.name);
    match which {
        _ if which == pod.id || which == full || which == full_name(pod) => 3,
        _ if which == pod.name => 2,
        _ if which.len() >= 4 && pod.id.starts_with(which) => 1,
        _ => 0,
    }
}

/// As none other on its node.
pub(super) fn full_name(pod: &api::Pod) -> String {
    let id: String = pod.id.chars().take(12).collect();
    match pod.name == pod.id {
        true => format!("{}/{}", namespace(pod), pod.name),
        false => format!("{}/{} ({id})", namespace(pod), pod.name),
    }
}

/// Kubernetes' namespace of a pod; without Kubernetes containerd's.
pub fn namespace(pod: &api::Pod) -> &str {
    match pod.namespace.as_str() {
        "" => &pod.containerd_namespace,
        namespace => namespace,
    }
}

#[cfg(test)]
mod tests {
    use protobuf::MessageField;
    use protobuf::well_known_types::timestamp::Timestamp;

    use super::*;

    fn pod(namespace: &str, name: &str, id: &str) -> api::Pod {
        api::Pod {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            id: id.to_owned(),
            ..api::Pod::new()
        }
    }

    fn ended(seconds: i64, pod: api::Pod) -> api::Pod {
        let at = Timestamp {
            seconds,
            ..Timestamp::new()
        };
        api::Pod {
            ended: MessageField::some(at),
            ..pod
        }
    }

    fn named(which: &str, pods: &[api::Pod]) -> Result<Option<String>, Failure> {
        let found = choose(which, pods.to_vec(), |pod| pod)?;
        Ok(found.map(|pod| pod.id))
    }

    #[test]
    fn a_pod_is_called_by_what_is_unique_about_it() {
        let pods = [
            pod("shop", "web", "aaaa1"),
            pod("test", "web", "aaaa2"),
            pod("test", "db", "bbbb3"),
        ];
        let id = |which| named(which, &pods).unwrap();
        assert_eq!(id("db").as_deref(), Some("bbbb3"));
        assert_eq!(id("shop/web").as_deref(), Some("aaaa1"));
        assert_eq!(id("bbbb").as_deref(), Some("bbbb3"));
        assert_eq!(id("aaaa2").as_deref(), Some("aaaa2"));
        for ambiguous in ["web", "aaaa"] {
            let Err(Failure::Because(why)) = named(ambiguous, &pods) else {
                panic!("{ambiguous} is one of two")
            };
            assert!(why.contains("shop/web (aaaa1)"), "{why}");
        }
        assert_eq!(id("api"), None);
        assert_eq!(id("b"), None);
    }

    #[test]
    fn one_that_lives_comes_first_and_then_the_one_that_ended_last() {
        let mut pods = vec![
            ended(5, pod("shop", "web", "aaaa1")),
            ended(9, pod("shop", "web", "aaaa2")),
            ended(7, pod("shop", "web", "aaaa3")),
        ];
        assert_eq!(named("web", &pods).unwrap().as_deref(), Some("aaaa2"));
        pods.push(pod("shop", "web", "bbbb4"));
        assert_eq!(named("web", &pods).unwrap().as_deref(), Some("bbbb4"));
    }
}
