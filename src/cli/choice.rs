//! Finds the pod that a name or an id on the command line means.

use usher_api as api;

use super::output::Failure;

/// Minimum number of characters of an id's prefix. A shorter text is probably a misspelled name.
pub(super) const LEAST_ID_PREFIX: usize = 4;

/// Finds a pod by its name, its namespace and name, its id, or a prefix of its id.
///
/// The pod with the closest match is found. If several pods match equally well, a running pod takes
/// precedence over ended pods. If all of them have ended, the pod that ended last is found.
///
/// # Errors
///
/// If several running pods match equally well.
pub fn choose<T>(
    which: &str,
    pods: Vec<T>,
    pod: impl Fn(&T) -> &api::Pod,
) -> Result<Option<T>, Failure> {
    let best = pods.iter().map(|one| match_of(which, pod(one))).max();
    let Some(best) = best.filter(|best| *best > Match::None) else {
        return Ok(None);
    };
    let matching = pods
        .into_iter()
        .filter(|one| match_of(which, pod(one)) == best);
    let (living, ended): (Vec<T>, Vec<T>) = matching.partition(|one| pod(one).ended.is_none());
    let at = |one: &T| pod(one).ended.as_ref().map(|at| (at.seconds, at.nanos));
    match living.is_empty() {
        true => Ok(ended.into_iter().max_by_key(at)),
        false => only(which, living, &pod),
    }
}

/// Returns the only candidate. Fails if there are several.
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
                "{which:?} matches several pods; expected one of {}",
                names.join(", ")
            )))
        }
    }
}

/// Degrees to which a text matches a pod, from the worst to the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Match {
    None,
    IdPrefix,
    Name,
    /// The text is the pod's whole id, or its namespace and name.
    Full,
}

fn match_of(which: &str, pod: &api::Pod) -> Match {
    let full = format!("{}/{}", namespace(pod), pod.name);
    match which {
        _ if which == pod.id || which == full || which == full_name(pod) => Match::Full,
        _ if which == pod.name => Match::Name,
        _ if which.len() >= LEAST_ID_PREFIX && pod.id.starts_with(which) => Match::IdPrefix,
        _ => Match::None,
    }
}

/// The pod's namespace and name, with the first characters of its id. No two pods of a node share
/// this text.
pub(super) fn full_name(pod: &api::Pod) -> String {
    let id: String = pod.id.chars().take(12).collect();
    match pod.name == pod.id {
        true => format!("{}/{}", namespace(pod), pod.name),
        false => format!("{}/{} ({id})", namespace(pod), pod.name),
    }
}

/// The pod's Kubernetes namespace. For a pod without one, containerd's namespace.
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
    fn a_pod_is_found_by_any_name_that_is_unique() {
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
    fn a_running_pod_is_preferred_and_then_the_one_that_ended_last() {
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
    fn a_name_is_preferred_to_an_id_prefix() {
        let pods = [
            ended(5, pod("shop", "face", "aaaa1")),
            pod("shop", "web", "faceb2"),
        ];
        assert_eq!(named("face", &pods).unwrap().as_deref(), Some("aaaa1"));
        assert_eq!(named("faceb", &pods).unwrap().as_deref(), Some("faceb2"));
    }
}
