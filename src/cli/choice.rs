//! Which pod is meant: what pods are called, and how exactly.

use crate::api;

use super::output::Failure;

/// The beginning of an id has so many characters: what is shorter may be a name that is gone, or misspelt.
pub(super) const BEGINNING: usize = 4;

/// The pod that is called so: by its name, its namespace and name, its id, or how that begins. The one that
/// is called so most exactly counts; then one that lives more than one that has ended, and of those the one
/// that ended last.
///
/// # Errors
///
/// If more than one that lives is called so.
pub fn choose<T>(
    which: &str,
    pods: Vec<T>,
    pod: impl Fn(&T) -> &api::Pod,
) -> Result<Option<T>, Failure> {
    let best = pods.iter().map(|one| how_exactly(which, pod(one))).max();
    let Some(best) = best.filter(|best| *best > Exactly::Not) else {
        return Ok(None);
    };
    let called = pods
        .into_iter()
        .filter(|one| how_exactly(which, pod(one)) == best);
    let (living, ended): (Vec<T>, Vec<T>) = called.partition(|one| pod(one).ended.is_none());
    let at = |one: &T| pod(one).ended.as_ref().map(|at| (at.seconds, at.nanos));
    match living.is_empty() {
        true => Ok(ended.into_iter().max_by_key(at)),
        false => only(which, living, &pod),
    }
}

/// The one that there is.
fn only<T>(
    which: &str,
    mut candidates: Vec<T>,
    pod: &impl Fn(&T) -> &api::Pod,
) -> Result<Option<T>, Failure> {
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

/// How exactly a pod is called by some words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Exactly {
    Not,
    /// Its id begins so.
    Beginning,
    Name,
    /// As no other is.
    Full,
}

fn how_exactly(which: &str, pod: &api::Pod) -> Exactly {
    let full = format!("{}/{}", namespace(pod), pod.name);
    match which {
        _ if which == pod.id || which == full || which == full_name(pod) => Exactly::Full,
        _ if which == pod.name => Exactly::Name,
        _ if which.len() >= BEGINNING && pod.id.starts_with(which) => Exactly::Beginning,
        _ => Exactly::Not,
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

    #[test]
    fn who_has_a_name_counts_more_than_whose_id_begins_so() {
        let pods = [
            ended(5, pod("shop", "face", "aaaa1")),
            pod("shop", "web", "faceb2"),
        ];
        assert_eq!(named("face", &pods).unwrap().as_deref(), Some("aaaa1"));
        assert_eq!(named("faceb", &pods).unwrap().as_deref(), Some("faceb2"));
    }
}
