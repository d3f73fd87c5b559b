//! Runs `usher` on nodes: in each node's pod of the DaemonSet usher-view. A node that does not
//! answer does not delay the others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{anyhow, bail};
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::Api;
use kube::api::{AttachParams, ListParams};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use usher_core::text::causes;

use crate::cluster::{ApiError, Cluster};

/// The namespace of the DaemonSet in `scripts/kubernetes/kubectl.yaml`.
pub const NAMESPACE: &str = "usher";

/// Label of the DaemonSet's pods.
const LABEL: &str = "app=usher-view";

/// Container of the DaemonSet's pods.
const CONTAINER: &str = "view";
/// Path of `usher` in the container `view`.
const USHER: &str = "/usher/usher";

/// Maximum number of nodes on which `usher` runs at the same time.
const CONCURRENT: usize = 16;

/// Time limit for listing the DaemonSet's pods.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for the answer of a node.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Number of pods in one page of the list.
const PAGE: u32 = 500;
/// Maximum number of pages read. Together they hold more nodes than Kubernetes supports.
const MAX_PAGES: usize = 20;

/// Maximum size of a node's answer, in bytes. The answer of a full node has some megabytes.
const MAX_ANSWER_BYTES: u64 = 16 << 20;

/// Maximum number of bytes read from a node's standard error.
const MAX_WARNINGS_BYTES: u64 = 64 << 10;

/// Size of the buffer of each stream.
const BUFFER_BYTES: usize = 64 << 10;

/// The nodes on which `usher` can be run.
pub struct View {
    pods: Api<Pod>,
    namespace: String,
    /// The nodes, sorted by name.
    pub nodes: Vec<Node>,
    /// True if the cluster has more nodes than `nodes` contains.
    pub is_truncated: bool,
}

/// A node, and its pod of the DaemonSet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    pod: String,
    /// The reason why the pod cannot be used; `None` if it can be used.
    trouble: Option<String>,
}

/// The output of a node's `usher`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Answer<T> {
    pub value: T,
    /// Lines that `usher` wrote to standard error.
    pub warnings: Vec<String>,
}

/// Parser of a node's standard output.
pub type Parse<T> = fn(&str) -> anyhow::Result<T>;

/// The reason why a node did not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// The user may not execute commands in the node's pod. Holds the API server's message.
    Forbidden(String),
    /// Any other reason, worded to follow "node … does not answer:".
    Other(String),
}

impl View {
    /// Finds the nodes on which `usher` can be run.
    ///
    /// # Errors
    ///
    /// If the user may not list the pods of the DaemonSet, or there are none.
    pub async fn find(cluster: &Cluster, namespace: &str) -> anyhow::Result<View> {
        let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), namespace);
        let listed = timeout(LIST_TIMEOUT, list(&pods)).await;
        let listed = listed.unwrap_or_else(|_late| {
            Err(ApiError::Other(format!(
                "the API server does not answer within {LIST_TIMEOUT:?}"
            )))
        });
        let (listed, is_truncated) = listed.map_err(|error| match error {
            ApiError::Forbidden(message) => anyhow!(
                "the right to list the pods of namespace {namespace} is missing; the Role usher-view \
                 of scripts/kubernetes/kubectl.yaml grants it: {message}"
            ),
            error => anyhow!(
                "cannot list the pods of namespace {namespace}: {}",
                error.message()
            ),
        })?;
        let nodes = nodes(&listed);
        if nodes.is_empty() {
            bail!(
                "namespace {namespace} has no pod of the DaemonSet usher-view, through which nodes \
                 are asked; install scripts/kubernetes/kubectl.yaml"
            );
        }
        Ok(View {
            pods,
            namespace: namespace.to_owned(),
            nodes,
            is_truncated,
        })
    }

    /// Runs a command of `usher` on nodes, `CONCURRENT` at a time, each within
    /// `ANSWER_TIMEOUT`.
    pub async fn ask<T: Send + 'static>(
        &self,
        nodes: Vec<Node>,
        words: &[&str],
        parse: Parse<T>,
    ) -> Vec<(Node, Result<Answer<T>, NoAnswer>)> {
        let mut requests = JoinSet::new();
        let permits = Arc::new(Semaphore::new(CONCURRENT));
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        for node in nodes {
            let (pods, permits, words) = (self.pods.clone(), permits.clone(), words.clone());
            requests.spawn(async move {
                // Cannot fail: the semaphore is never closed.
                let _permit = permits.acquire().await;
                let answer = timeout(ANSWER_TIMEOUT, execute(&pods, &node, words)).await;
                let answer = answer.unwrap_or_else(|_late| {
                    let why = format!("no answer within {ANSWER_TIMEOUT:?}");
                    Err(NoAnswer::Other(why))
                });
                // Each answer is parsed as soon as it arrives, so that the texts of all answers are
                // never in memory together. A text is much larger than the parsed result.
                (node, answer.and_then(|answer| answer.parse(parse)))
            });
        }
        let mut answers = requests.join_all().await;
        answers.sort_by(|(one, _), (other, _)| one.name.cmp(&other.name));
        answers
    }

    /// Error message for a user who may not execute commands in the DaemonSet's pods.
    pub fn forbidden(&self, message: &str) -> String {
        format!(
            "the right to execute commands in the pods of namespace {} is missing (get and create \
             of pods/exec); the Role usher-view of scripts/kubernetes/kubectl.yaml grants it: \
             {message}",
            self.namespace
        )
    }
}

/// Lists the pods of the DaemonSet. Also returns true if there are more pods.
async fn list(pods: &Api<Pod>) -> Result<(Vec<Pod>, bool), ApiError> {
    let mut listed = Vec::new();
    let mut parameters = ListParams::default().labels(LABEL).limit(PAGE);
    for _ in 0..MAX_PAGES {
        let page = pods.list(&parameters).await?;
        listed.extend(page.items);
        match page.metadata.continue_.filter(|more| !more.is_empty()) {
            Some(more) => parameters = parameters.continue_token(&more),
            None => return Ok((listed, false)),
        }
    }
    Ok((listed, true))
}

/// The nodes, each with its pod of the DaemonSet. During a rollout a node may have two such pods; a
/// usable pod is preferred.
fn nodes(pods: &[Pod]) -> Vec<Node> {
    let mut nodes: BTreeMap<String, Node> = BTreeMap::new();
    for pod in pods {
        let node = Node::of(pod);
        match nodes.get(&node.name) {
            Some(other) if other.trouble.is_none() || node.trouble.is_some() => {}
            _ => drop(nodes.insert(node.name.clone(), node)),
        }
    }
    nodes.into_values().collect()
}

impl Node {
    fn of(pod: &Pod) -> Node {
        let name = pod.metadata.name.clone().unwrap_or_default();
        let node = pod.spec.as_ref().and_then(node_of);
        Node {
            name: node.unwrap_or_else(|| format!("of pod {name}")),
            trouble: trouble(pod).map(|trouble| format!("its pod {name} {trouble}")),
            pod: name,
        }
    }
}

/// Node that a pod runs on, or is meant for: each pod of a DaemonSet has an affinity to one node.
fn node_of(spec: &PodSpec) -> Option<String> {
    let wanted = || {
        let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
        let terms = affinity
            .required_during_scheduling_ignored_during_execution
            .as_ref()?;
        let fields = terms.node_selector_terms.iter();
        let mut fields = fields
            .filter_map(|term| term.match_fields.as_ref())
            .flatten();
        let name = fields.find(|field| field.key == "metadata.name")?;
        name.values.as_ref()?.first().cloned()
    };
    spec.node_name.clone().or_else(wanted)
}

fn trouble(pod: &Pod) -> Option<String> {
    if pod.metadata.deletion_timestamp.is_some() {
        return Some("is being deleted".to_owned());
    }
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    match phase {
        Some("Running") => {}
        phase => return Some(format!("is {}", phase.unwrap_or("Pending"))),
    }
    let containers = status.and_then(|status| status.container_statuses.as_ref());
    let ready = containers.into_iter().flatten().any(|container| {
        let state = container.state.as_ref();
        container.name == CONTAINER && state.is_some_and(|state| state.running.is_some())
    });
    (!ready).then(|| format!("has no running container {CONTAINER}"))
}

impl Answer<String> {
    fn parse<T>(self, parse: Parse<T>) -> Result<Answer<T>, NoAnswer> {
        let value = parse(&self.value).map_err(|error| {
            let error = causes(error.as_ref());
            NoAnswer::Other(format!("cannot parse the output of its usher: {error}"))
        })?;
        Ok(Answer {
            value,
            warnings: self.warnings,
        })
    }
}

async fn execute(
    pods: &Api<Pod>,
    node: &Node,
    words: Vec<String>,
) -> Result<Answer<String>, NoAnswer> {
    if let Some(trouble) = &node.trouble {
        return Err(NoAnswer::Other(trouble.clone()));
    }
    let parameters = AttachParams::default()
        .container(CONTAINER)
        .max_stdout_buf_size(BUFFER_BYTES)
        .max_stderr_buf_size(BUFFER_BYTES);
    let command = std::iter::once(USHER.to_owned()).chain(words);
    let command: Vec<String> = command.collect();
    let process = pods.exec(&node.pod, command, &parameters).await;
    let mut process = process.map_err(|error| match ApiError::from(error) {
        ApiError::Forbidden(message) => NoAnswer::Forbidden(message),
        error => NoAnswer::Other(error.message().to_owned()),
    })?;
    let (stdout, stderr) = (process.stdout(), process.stderr());
    let status = process.take_status();
    let (answer, warnings) = tokio::try_join!(
        read(stdout, MAX_ANSWER_BYTES),
        read(stderr, MAX_WARNINGS_BYTES)
    )?;
    let status = match status {
        Some(status) => status.await,
        None => None,
    };
    judge(status, answer, &warnings)
}

async fn read(stream: Option<impl AsyncRead + Unpin>, at_most: u64) -> Result<String, NoAnswer> {
    let Some(stream) = stream else {
        return Ok(String::new());
    };
    let mut bytes = Vec::new();
    // Reads one byte more than allowed, to notice that the limit is exceeded.
    let mut stream = stream.take(at_most.saturating_add(1));
    let read = stream.read_to_end(&mut bytes).await;
    read.map_err(|error| NoAnswer::Other(format!("cannot read its answer: {error}")))?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > at_most {
        let why = format!("its answer exceeds {at_most} bytes");
        return Err(NoAnswer::Other(why));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Judges the exit status and output of a command. If a shim does not answer, `usher` exits with 1
/// but prints the other pods. Such an output is accepted as an answer with warnings.
fn judge(
    status: Option<Status>,
    answer: String,
    warnings: &str,
) -> Result<Answer<String>, NoAnswer> {
    let mut warnings: Vec<String> = warnings.lines().map(plain).collect();
    warnings.retain(|line| !line.is_empty());
    let Some(status) = status else {
        let why = "the connection broke before the command ended";
        return Err(NoAnswer::Other(why.to_owned()));
    };
    let has_exited = status.reason.as_deref() == Some("NonZeroExitCode");
    let is_over = status.status.as_deref() == Some("Success") || has_exited;
    match warnings.pop() {
        _ if !is_over => {
            let message = status.message.unwrap_or_default();
            Err(NoAnswer::Other(message.replace('\n', " ")))
        }
        Some(last) if answer.is_empty() => Err(NoAnswer::Other(last)),
        last => {
            warnings.extend(last);
            Ok(Answer {
                value: answer,
                warnings,
            })
        }
    }
}

/// Strips the prefix that `usher` puts before a message.
fn plain(line: &str) -> String {
    let line = line.trim();
    let prefixes = ["usher: ", "warning: "].into_iter();
    let mut messages = prefixes.filter_map(|prefix| line.strip_prefix(prefix));
    messages.next().unwrap_or(line).to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, node: &str, phase: &str, state: &str) -> Pod {
        let container = json!({
            "name": CONTAINER, "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "state": { state: {} },
        });
        let pod = json!({
            "metadata": { "name": name },
            "spec": { "nodeName": node, "containers": [] },
            "status": { "phase": phase, "containerStatuses": [container] },
        });
        serde_json::from_value(pod).unwrap()
    }

    fn status(status: &str, reason: &str, message: &str) -> Option<Status> {
        let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        Some(Status {
            status: text(status),
            reason: text(reason),
            message: text(message),
            ..Status::default()
        })
    }

    fn no_answer(why: &str) -> Result<Answer<String>, NoAnswer> {
        Err(NoAnswer::Other(why.to_owned()))
    }

    #[test]
    fn of_a_nodes_two_pods_the_usable_one_is_chosen() {
        let mut leaves = pod("a-old", "a", "Running", "running");
        let now = "2026-01-01T00:00:00Z";
        leaves.metadata.deletion_timestamp = serde_json::from_value(json!(now)).unwrap();
        let ready = pod("a-new", "a", "Running", "running");
        let troubles = |pods: &[Pod]| {
            let nodes = nodes(pods).into_iter();
            let all = nodes.map(|node| (node.name, node.pod, node.trouble));
            all.collect::<Vec<_>>()
        };
        let found = ("a".to_owned(), "a-new".to_owned(), None);
        let found = [found];
        assert_eq!(troubles(&[leaves.clone(), ready.clone()]), found);
        assert_eq!(troubles(&[ready, leaves]), found);
        let waits = pod("b-1", "b", "Pending", "waiting");
        let restarts = pod("c-1", "c", "Running", "waiting");
        let found = troubles(&[restarts, waits]);
        let sentences: Vec<_> = found.iter().filter_map(|(_, _, why)| why.clone()).collect();
        let expected = [
            "its pod b-1 is Pending",
            "its pod c-1 has no running container view",
        ];
        assert_eq!(sentences, expected);
    }

    #[test]
    fn an_unscheduled_pod_belongs_to_the_node_of_its_affinity() {
        let mut waits = pod("b-1", "", "Pending", "waiting");
        let terms = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{ "matchFields": [
                { "key": "metadata.name", "operator": "In", "values": ["b"] },
            ] }],
        } } });
        let spec = waits.spec.as_mut().unwrap();
        spec.node_name = None;
        assert_eq!(nodes(&[waits.clone()])[0].name, "of pod b-1");
        let spec = waits.spec.as_mut().unwrap();
        spec.affinity = serde_json::from_value(terms).unwrap();
        assert_eq!(nodes(&[waits])[0].name, "b");
    }

    #[test]
    fn output_is_an_answer_even_if_a_shim_did_not_answer() {
        let answer = |value: &str, warnings: &[&str]| {
            let warnings = warnings.iter().map(|line| (*line).to_owned());
            Ok(Answer {
                value: value.to_owned(),
                warnings: warnings.collect(),
            })
        };
        let success = || status("Success", "", "");
        let failed = || status("Failure", "NonZeroExitCode", "exit code 1");
        assert_eq!(judge(success(), "{}".to_owned(), ""), answer("{}", &[]));
        assert_eq!(
            judge(
                failed(),
                "{}".to_owned(),
                "warning: the shim at x hangs up\n"
            ),
            answer("{}", &["the shim at x hangs up"])
        );
        assert_eq!(
            judge(
                failed(),
                String::new(),
                "warning: one\nusher: there is no pod\n"
            ),
            no_answer("there is no pod")
        );
        let broken = status("Failure", "InternalError", "no such\nfile");
        assert_eq!(
            judge(broken, "{}".to_owned(), ""),
            no_answer("no such file")
        );
        let cut = "the connection broke before the command ended";
        assert_eq!(judge(None, "{".to_owned(), ""), no_answer(cut));
    }

    #[test]
    fn an_answer_above_the_limit_is_an_error() {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let read = |bytes: &'static [u8]| runtime.as_ref().unwrap().block_on(read(Some(bytes), 4));
        assert_eq!(read(b"1234"), Ok("1234".to_owned()));
        let why = "its answer exceeds 4 bytes".to_owned();
        assert_eq!(read(b"12345"), Err(NoAnswer::Other(why)));
    }
}
