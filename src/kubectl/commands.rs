//! The commands: they collect the nodes' answers, and show them with [`usher_cli`].

use std::process::ExitCode;

use anyhow::{Context, bail};
use serde_json::Value;
use usher_api as api;
use usher_cli::choice::{choose, namespace};
use usher_cli::explain::How;
use usher_cli::json::message;
use usher_cli::output::{Failure, Stdout, warn};
use usher_cli::ps::List;

use crate::arguments::{Arguments, ClusterOptions, Command};
use crate::cluster::{ApiError, Cluster};
use crate::view::{NoAnswer, Node, Parse, View};

/// A pod and its node.
type Placed = (api::Pod, String);

/// The answers of nodes.
struct Listing {
    pods: Vec<Placed>,
    /// Nodes without an answer, or with an incomplete one.
    unanswered: usize,
}

/// Runs the command.
///
/// # Errors
///
/// If the API server or all nodes fail, or no pod has the name that was given.
pub fn run(arguments: Arguments, stdout: &mut Stdout) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the async runtime")?;
    let options = arguments.options;
    runtime.block_on(async {
        match arguments.command {
            Command::Ps {
                all_namespaces,
                list,
            } => ps(&options, all_namespaces, &list, stdout).await,
            Command::Inspect(inspect) => {
                let (pod, node) = find(&options, inspect.pod()).await?;
                inspect.show(&pod, Some(&node), stdout)?;
                Ok(ExitCode::SUCCESS)
            }
            Command::Timeline(timeline) => {
                let (pod, node) = find(&options, timeline.pod()).await?;
                timeline.show(&pod, Some(&node), stdout)?;
                Ok(ExitCode::SUCCESS)
            }
            Command::Explain { pod, files, how } => match pod {
                Some(pod) => explain(&options, &pod, &how, stdout).await,
                None => how.files(&files, stdout),
            },
        }
    })
}

async fn connect(options: &ClusterOptions) -> Result<Cluster, Failure> {
    Ok(Cluster::connect(options).await?)
}

async fn view(cluster: &Cluster, options: &ClusterOptions) -> Result<View, Failure> {
    let view = View::find(cluster, &options.view_namespace).await?;
    if view.is_truncated {
        warn(&format!(
            "the cluster has more nodes; only {} of them are asked",
            view.nodes.len()
        ));
    }
    Ok(view)
}

async fn ps(
    options: &ClusterOptions,
    all_namespaces: bool,
    list: &List,
    stdout: &mut Stdout,
) -> Result<ExitCode, Failure> {
    let cluster = connect(options).await?;
    let view = view(&cluster, options).await?;
    let mut listing = list_pods(&view, view.nodes.clone(), list.all()).await?;
    if !all_namespaces {
        listing
            .pods
            .retain(|(pod, _)| namespace(pod) == cluster.namespace);
    }
    let pods = listing.pods.iter();
    let pods: Vec<_> = pods.map(|(pod, node)| (pod, Some(&**node))).collect();
    let if_none = match all_namespaces {
        true => "no pods run under usher in the cluster".to_owned(),
        false => format!("no pods run under usher in namespace {}", cluster.namespace),
    };
    list.show(&pods, listing.unanswered, &if_none, stdout)
}

/// Lists the pods of nodes, sorted by name; with `all`, also the pods that have ended.
async fn list_pods(view: &View, nodes: Vec<Node>, all: bool) -> Result<Listing, Failure> {
    let words: &[&str] = match all {
        true => &["ps", "-o", "json", "--all"],
        false => &["ps", "-o", "json"],
    };
    let mut listing = query(view, nodes, words, parse_pods).await?;
    let key = |pod: &api::Pod| (namespace(pod).to_owned(), pod.name.clone());
    listing.pods.sort_by_cached_key(|(pod, _)| key(pod));
    Ok(listing)
}

/// Parses the output of `usher ps -o json`, and drops the events.
fn parse_pods(answer: &str) -> anyhow::Result<Vec<api::Pod>> {
    let mut answer: Value = serde_json::from_str(answer)?;
    let Some(Value::Array(pods)) = answer.get_mut("pods").map(Value::take) else {
        bail!("expected a field pods with a list");
    };
    let pods = pods.into_iter().map(|pod| {
        let mut pod: api::Pod = message(pod)?;
        pod.events = Vec::new();
        Ok(pod)
    });
    pods.collect()
}

/// Parses the output of `usher inspect -o json`.
fn parse_pod(answer: &str) -> anyhow::Result<Vec<api::Pod>> {
    Ok(vec![message(serde_json::from_str(answer)?)?])
}

/// Runs a command of `usher` on nodes. Warns of each node that does not answer, and once if the
/// user lacks a right.
async fn query(
    view: &View,
    nodes: Vec<Node>,
    words: &[&str],
    parse: Parse<Vec<api::Pod>>,
) -> Result<Listing, Failure> {
    let mut listing = Listing {
        pods: Vec::new(),
        unanswered: 0,
    };
    let asked = nodes.len();
    let mut forbidden = None;
    for (node, answer) in view.ask(nodes, words, parse).await {
        let is_incomplete = match answer {
            Ok(answer) => {
                for warning in &answer.warnings {
                    warn(&format!("node {}: {warning}", node.name));
                }
                let pods = answer.value.into_iter();
                listing
                    .pods
                    .extend(pods.map(|pod| (pod, node.name.clone())));
                !answer.warnings.is_empty()
            }
            Err(NoAnswer::Forbidden(message)) => {
                forbidden = Some(message);
                true
            }
            Err(NoAnswer::Other(why)) => {
                warn(&format!("node {} does not answer: {why}", node.name));
                true
            }
        };
        let incomplete = usize::from(is_incomplete);
        listing.unanswered = listing.unanswered.saturating_add(incomplete);
    }
    match forbidden.map(|message| view.forbidden(&message)) {
        Some(sentence) if listing.unanswered == asked => Err(Failure::because(sentence)),
        Some(sentence) => {
            warn(&sentence);
            Ok(listing)
        }
        None => Ok(listing),
    }
}

/// Finds a pod by its name or id, and inspects it.
async fn find(options: &ClusterOptions, which: &str) -> Result<Placed, Failure> {
    let cluster = connect(options).await?;
    let view = view(&cluster, options).await?;
    let full = full_name(&cluster, which);
    let nodes = nodes_of(&cluster, &view, &full).await;
    let Listing { pods, unanswered } = list_pods(&view, nodes, true).await?;
    let found = match choose(&full, pods.clone(), |(pod, _)| pod)? {
        Some(found) => Some(found),
        // Take `which` as an id. A pod with the name `which` is in another namespace, so skip it.
        None => {
            let by_id = |(pod, _): &Placed| pod.name != which;
            let pods = pods.into_iter().filter(by_id).collect();
            choose(which, pods, |(pod, _)| pod)?
        }
    };
    let Some((pod, name)) = found else {
        return Err(Failure::because(match unanswered {
            0 => format!(
                "no pod {full} runs under usher, and none has run in the last hour; see kubectl \
                 usher ps --all"
            ),
            1 => format!("no node that answers has a pod {full} under usher; one does not answer"),
            _ => {
                format!(
                    "no node that answers has a pod {full} under usher; {unanswered} do not answer"
                )
            }
        }));
    };
    let nodes = view.nodes.iter().filter(|node| node.name == name).cloned();
    let words = ["inspect", "-o", "json", "--", &pod.id];
    let listing = query(&view, nodes.collect(), &words, parse_pod);
    let pod = listing.await?.pods.pop();
    pod.ok_or_else(|| {
        Failure::because(format!(
            "cannot inspect pod {full}: its node does not answer"
        ))
    })
}

/// Puts the user's namespace before a pod's name, unless the name contains a namespace.
fn full_name(cluster: &Cluster, which: &str) -> String {
    match which.contains('/') {
        true => which.to_owned(),
        false => format!("{}/{which}", cluster.namespace),
    }
}

/// Nodes on which a pod may be: the node that the API server names, or else all nodes.
async fn nodes_of(cluster: &Cluster, view: &View, full: &str) -> Vec<Node> {
    let all = || view.nodes.clone();
    let Some((namespace, name)) = full.split_once('/') else {
        return all();
    };
    // A user without the right to get pods can still ask all nodes.
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
            "node {node}, which pod {full} is on, cannot be asked: it has no pod of usher-view"
        ));
        return all();
    }
    nodes
}

async fn explain(
    options: &ClusterOptions,
    which: &str,
    how: &How,
    stdout: &mut Stdout,
) -> Result<ExitCode, Failure> {
    let cluster = connect(options).await?;
    let full = full_name(&cluster, which);
    let (namespace, name) = full.split_once('/').unwrap_or(("", &full));
    let text = cluster.pod(namespace, name).await.map_err(|error| {
        Failure::because(match &error {
            ApiError::Forbidden(message) => {
                format!("the right to get pods of namespace {namespace} is missing: {message}")
            }
            ApiError::Missing(_) => format!("there is no pod {full} in the cluster"),
            ApiError::Other(message) => format!("cannot get pod {full}: {message}"),
        })
    })?;
    how.object("in the cluster", &text, stdout)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_malformed_pod_invalidates_a_nodes_whole_list() {
        let names = |answer: Value| {
            let pods = parse_pods(&answer.to_string())?;
            anyhow::Ok(pods.into_iter().map(|pod| pod.name).collect::<Vec<_>>())
        };
        let listed = json!({ "pods": [{ "name": "a" }, { "name": "b", "status": "Init:1/2" }] });
        assert_eq!(names(listed).unwrap(), ["a", "b"]);
        assert!(names(json!({ "pods": [] })).unwrap().is_empty());
        for other in [
            json!({}),
            json!([]),
            json!({ "pods": 1 }),
            json!({ "pods": [{ "name": "a" }, 1] }),
        ] {
            assert!(names(other.clone()).is_err(), "{other}");
        }
    }
}
