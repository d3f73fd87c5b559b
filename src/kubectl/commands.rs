//! From what nodes say to what is shown, which is all [`usher::cli`]'s.

use std::process::ExitCode;

use serde_json::Value;
use usher::api;
use usher::cli::choice::{choose, namespace};
use usher::cli::explain::How;
use usher::cli::json::message;
use usher::cli::output::{Failure, Stdout, warn};
use usher::cli::ps::List;

use crate::arguments::{Arguments, Command, Whereabouts};
use crate::cluster::{Cluster, No};
use crate::view::{Node, Parse, Silence, View};

/// A pod, and the node that it is on.
type Placed = (api::Pod, String);

/// What nodes have told.
struct Told {
    pods: Vec<Placed>,
    /// How many have not answered.
    silent: usize,
}

/// Does what is asked for.
///
/// # Errors
///
/// In a sentence.
pub fn run(arguments: Arguments, stdout: &mut Stdout) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::because(format!("this process cannot wait: {error}")))?;
    let whereabouts = arguments.whereabouts;
    runtime.block_on(async {
        match arguments.command {
            Command::Ps {
                all_namespaces,
                list,
            } => ps(&whereabouts, all_namespaces, &list, stdout).await,
            Command::Inspect(inspect) => {
                let (pod, node) = find(&whereabouts, inspect.pod()).await?;
                inspect.show(&pod, Some(&node), stdout)?;
                Ok(ExitCode::SUCCESS)
            }
            Command::Timeline(timeline) => {
                let (pod, node) = find(&whereabouts, timeline.pod()).await?;
                timeline.show(&pod, Some(&node), stdout)?;
                Ok(ExitCode::SUCCESS)
            }
            Command::Explain { pod, files, how } => match pod {
                Some(pod) => explain(&whereabouts, &pod, &how, stdout).await,
                None => how.files(&files, stdout),
            },
        }
    })
}

async fn connect(whereabouts: &Whereabouts) -> Result<Cluster, Failure> {
    Cluster::of(whereabouts).await.map_err(Failure::because)
}

async fn view(cluster: &Cluster, whereabouts: &Whereabouts) -> Result<View, Failure> {
    let view = View::find(cluster, &whereabouts.view_namespace).await;
    let view = view.map_err(Failure::because)?;
    if view.is_cut {
        warn(&format!(
            "there are more than {} nodes, which are all that are asked",
            view.nodes.len()
        ));
    }
    Ok(view)
}

// === ps ===

async fn ps(
    whereabouts: &Whereabouts,
    all_namespaces: bool,
    list: &List,
    stdout: &mut Stdout,
) -> Result<ExitCode, Failure> {
    let cluster = connect(whereabouts).await?;
    let view = view(&cluster, whereabouts).await?;
    let mut told = listed(&view, view.nodes.clone(), list.all()).await?;
    if !all_namespaces {
        told.pods
            .retain(|(pod, _)| namespace(pod) == cluster.namespace);
    }
    let pods = told.pods.iter().map(|(pod, node)| (pod, Some(&**node)));
    let pods: Vec<_> = pods.collect();
    let nobody = match all_namespaces {
        true => "no pods of usher in the cluster".to_owned(),
        false => format!("no pods of usher in namespace {}", cluster.namespace),
    };
    list.show(&pods, told.silent, &nobody, stdout)
}

/// The pods of nodes, in the order of their names; also those that have ended, if `all`.
async fn listed(view: &View, nodes: Vec<Node>, all: bool) -> Result<Told, Failure> {
    let words: &[&str] = match all {
        true => &["ps", "-o", "json", "--all"],
        false => &["ps", "-o", "json"],
    };
    let mut told = told(view, nodes, words, pods_of).await?;
    let key = |pod: &api::Pod| (namespace(pod).to_owned(), pod.name.clone());
    told.pods.sort_by_cached_key(|(pod, _)| key(pod));
    Ok(told)
}

/// What `usher ps -o json` has printed, without what has happened to pods that have ended.
fn pods_of(answer: &str) -> Result<Vec<api::Pod>, String> {
    let mut answer = value(answer)?;
    let Some(Value::Array(pods)) = answer.get_mut("pods").map(Value::take) else {
        return Err("expected pods".to_owned());
    };
    let pods = pods.into_iter().map(|pod| {
        let mut pod: api::Pod = message(pod)?;
        pod.events = Vec::new();
        Ok(pod)
    });
    pods.collect()
}

/// What `usher inspect -o json` has printed.
fn pod_of(answer: &str) -> Result<Vec<api::Pod>, String> {
    Ok(vec![message(value(answer)?)?])
}

fn value(answer: &str) -> Result<Value, String> {
    serde_json::from_str(answer).map_err(|error| error.to_string())
}

/// Asks nodes. Says which have not answered and why; what the user may not do only once.
async fn told(
    view: &View,
    nodes: Vec<Node>,
    words: &[&str],
    parse: Parse<Vec<api::Pod>>,
) -> Result<Told, Failure> {
    let mut told = Told {
        pods: Vec::new(),
        silent: 0,
    };
    let asked = nodes.len();
    let mut forbidden = None;
    for (node, answer) in view.ask(nodes, words, parse).await {
        let is_silent = match answer {
            Ok(said) => {
                for complaint in &said.complaints {
                    warn(&format!("node {}: {complaint}", node.name));
                }
                let pods = said.answer.into_iter();
                told.pods.extend(pods.map(|pod| (pod, node.name.clone())));
                !said.complaints.is_empty()
            }
            Err(Silence::Forbidden(said)) => {
                forbidden = Some(said);
                true
            }
            Err(Silence::Because(why)) => {
                warn(&format!("node {} does not answer: {why}", node.name));
                true
            }
        };
        told.silent = told.silent.saturating_add(usize::from(is_silent));
    }
    match forbidden.map(|said| view.forbidden(&said)) {
        Some(sentence) if told.silent == asked => Err(Failure::because(sentence)),
        Some(sentence) => {
            warn(&sentence);
            Ok(told)
        }
        None => Ok(told),
    }
}

// === one pod ===

/// The pod that is called so, with all that is known of it.
async fn find(whereabouts: &Whereabouts, which: &str) -> Result<Placed, Failure> {
    let cluster = connect(whereabouts).await?;
    let view = view(&cluster, whereabouts).await?;
    let full = full_name(&cluster, which);
    let nodes = nodes_of(&cluster, &view, &full).await;
    let Told { pods, silent } = listed(&view, nodes, true).await?;
    let found = match choose(&full, pods.clone(), |(pod, _)| pod)? {
        Some(found) => Some(found),
        // Not by its name alone, which is that of another namespace.
        None => {
            let by_id = |(pod, _): &Placed| pod.name != which;
            let pods = pods.into_iter().filter(by_id).collect();
            choose(which, pods, |(pod, _)| pod)?
        }
    };
    let Some((pod, name)) = found else {
        return Err(Failure::because(match silent {
            0 => format!(
                "there is no pod {full} under usher, nor was there in the last hour; see kubectl usher ps \
                 --all"
            ),
            1 => format!("no node that answers has a pod {full} under usher; one does not answer"),
            _ => {
                format!("no node that answers has a pod {full} under usher; {silent} do not answer")
            }
        }));
    };
    let nodes = view.nodes.iter().filter(|node| node.name == name).cloned();
    let words = ["inspect", "-o", "json", "--", &pod.id];
    let told = told(&view, nodes.collect(), &words, pod_of);
    let pod = told.await?.pods.pop();
    pod.ok_or_else(|| Failure::because(format!("nothing more can be said about {full}")))
}

/// With its namespace.
fn full_name(cluster: &Cluster, which: &str) -> String {
    match which.contains('/') {
        true => which.to_owned(),
        false => format!("{}/{which}", cluster.namespace),
    }
}

/// Where a pod may be: where the API server says so, if it says anything; else anywhere.
async fn nodes_of(cluster: &Cluster, view: &View, full: &str) -> Vec<Node> {
    let all = || view.nodes.clone();
    let Some((namespace, name)) = full.split_once('/') else {
        return all();
    };
    // Whoever may not ask that need not.
    let Ok(text) = cluster.pod(namespace, name).await else {
        return all();
    };
    let object: Value = serde_json::from_str(&text).unwrap_or_default();
    let Some(node) = object.pointer("/spec/nodeName").and_then(Value::as_str) else {
        return all();
    };
    let mut nodes = all();
    nodes.retain(|one| one.name == node);
    if nodes.is_empty() {
        warn(&format!(
            "node {node}, which pod {full} is on, has no pod of usher-view, by which it could be asked"
        ));
        return all();
    }
    nodes
}

// === explain ===

async fn explain(
    whereabouts: &Whereabouts,
    which: &str,
    how: &How,
    stdout: &mut Stdout,
) -> Result<ExitCode, Failure> {
    let cluster = connect(whereabouts).await?;
    let full = full_name(&cluster, which);
    let (namespace, name) = full.split_once('/').unwrap_or(("", &full));
    let text = cluster.pod(namespace, name).await.map_err(|no| {
        Failure::because(match &no {
            No::Forbidden(said) => {
                format!("the right to get pods of namespace {namespace} is missing: {said}")
            }
            No::Missing(_) => format!("there is no pod {full} in the cluster"),
            No::Because(said) => format!("pod {full} cannot be had: {said}"),
        })
    })?;
    how.object("in the cluster", &text, stdout)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_node_lists_is_taken_as_a_whole_or_not_at_all() {
        let names = |answer: Value| {
            let pods = pods_of(&answer.to_string())?;
            Ok(pods.into_iter().map(|pod| pod.name).collect::<Vec<_>>())
        };
        let listed = json!({ "pods": [{ "name": "a" }, { "name": "b", "status": "Init:1/2" }] });
        assert_eq!(names(listed), Ok(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(names(json!({ "pods": [] })), Ok(Vec::new()));
        for other in [
            json!({}),
            json!([]),
            json!({ "pods": 1 }),
            json!({ "pods": [{ "name": "a" }, 1] }),
        ] {
            let refused: Result<_, String> = names(other.clone());
            assert!(refused.is_err(), "{other}");
        }
    }
}
