//! The pods by which nodes are asked: those of the DaemonSet usher-view, in each of which the node's own
//! `usher` is executed. One that says nothing does not keep the others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::Api;
use kube::api::{AttachParams, ListParams};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::cluster::{Cluster, No};

/// The namespace of the DaemonSet in `scripts/kubernetes/kubectl.yaml`.
pub const NAMESPACE: &str = "usher";

/// Its pods have this label.
const LABEL: &str = "app=usher-view";

/// The container of each, and `usher` in it.
const CONTAINER: &str = "view";
const USHER: &str = "/usher/usher";

/// How many nodes are asked at the same time.
const AT_ONCE: usize = 16;

/// How long the API server may take to list them, and a node to answer.
const LISTED_WITHIN: Duration = Duration::from_secs(30);
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// How many are listed in one answer, and how many answers are asked for: more nodes than Kubernetes
/// promises to work with.
const PAGE: u32 = 500;
const PAGES: usize = 20;

/// How large an answer may be, in bytes. Those of full nodes have some megabytes.
const ANSWER_AT_MOST: u64 = 16 << 20;

/// How much of what a node complains of is read, in bytes.
const COMPLAINTS_AT_MOST: u64 = 64 << 10;

/// How much may be under way.
const BUFFER: usize = 64 << 10;

/// The nodes that can be asked.
pub struct View {
    pods: Api<Pod>,
    namespace: String,
    /// In the order of their names.
    pub nodes: Vec<Node>,
    /// Whether there are more than are asked.
    pub is_cut: bool,
}

/// A node, and the pod by which it is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    pod: String,
    /// Why that pod cannot be asked, if it cannot.
    trouble: Option<String>,
}

/// What a node's `usher` has written.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Said<T> {
    pub answer: T,
    /// Line by line.
    pub complaints: Vec<String>,
}

/// What to make of an answer, or why it is none.
pub type Parse<T> = fn(&str) -> Result<T, String>;

/// Why a node said nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Silence {
    /// The user may not ask it.
    Forbidden(String),
    /// The end of a sentence.
    Because(String),
}

impl View {
    /// Finds the nodes that can be asked.
    ///
    /// # Errors
    ///
    /// In a sentence, if the user may not list them, or there is none.
    pub async fn find(cluster: &Cluster, namespace: &str) -> Result<View, String> {
        let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), namespace);
        let listed = timeout(LISTED_WITHIN, list(&pods)).await;
        let listed = listed.unwrap_or_else(|_late| {
            Err(No::Because(format!(
                "the API server does not answer within {LISTED_WITHIN:?}"
            )))
        });
        let (listed, is_cut) = listed.map_err(|no| match no {
            No::Forbidden(said) => format!(
                "the right to list the pods of namespace {namespace} is missing, which the Role \
                 usher-view of scripts/kubernetes/kubectl.yaml has: {said}"
            ),
            no => format!(
                "the pods of namespace {namespace} cannot be listed: {}",
                no.words()
            ),
        })?;
        let nodes = nodes(&listed);
        if nodes.is_empty() {
            return Err(format!(
                "namespace {namespace} has no pod of usher-view, by which nodes are asked; expected the \
                 DaemonSet of scripts/kubernetes/kubectl.yaml"
            ));
        }
        Ok(View {
            pods,
            namespace: namespace.to_owned(),
            nodes,
            is_cut,
        })
    }

    /// Asks nodes, some of them at the same time: none waits for one that says nothing.
    pub async fn ask<T: Send + 'static>(
        &self,
        nodes: Vec<Node>,
        words: &[&str],
        parse: Parse<T>,
    ) -> Vec<(Node, Result<Said<T>, Silence>)> {
        let mut asked = JoinSet::new();
        let turns = Arc::new(Semaphore::new(AT_ONCE));
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        for node in nodes {
            let (pods, turns, words) = (self.pods.clone(), turns.clone(), words.clone());
            asked.spawn(async move {
                // It is never closed.
                let _turn = turns.acquire().await;
                let answer = timeout(ANSWERS_WITHIN, execute(&pods, &node, words)).await;
                let answer = answer.unwrap_or_else(|_late| {
                    let why = format!("nothing came within {ANSWERS_WITHIN:?}");
                    Err(Silence::Because(why))
                });
                // At once: as text it is many times as large.
                (node, answer.and_then(|said| said.parse(parse)))
            });
        }
        let mut answers = asked.join_all().await;
        answers.sort_by(|(one, _), (other, _)| one.name.cmp(&other.name));
        answers
    }

    /// What is to be said to a user who may not ask.
    pub fn forbidden(&self, said: &str) -> String {
        format!(
            "the right to execute commands in the pods of namespace {} is missing (get and create of \
             pods/exec), which the Role usher-view of scripts/kubernetes/kubectl.yaml has: {said}",
            self.namespace
        )
    }
}

/// All pods of the DaemonSet, and whether there are more.
async fn list(pods: &Api<Pod>) -> Result<(Vec<Pod>, bool), No> {
    let mut listed = Vec::new();
    let mut parameters = ListParams::default().labels(LABEL).limit(PAGE);
    for _ in 0..PAGES {
        let page = pods.list(&parameters).await?;
        listed.extend(page.items);
        match page.metadata.continue_.filter(|more| !more.is_empty()) {
            Some(more) => parameters = parameters.continue_token(&more),
            None => return Ok((listed, false)),
        }
    }
    Ok((listed, true))
}

// === who can be asked ===

/// For each node the pod by which it is asked: of two, as there are while one takes the other's place,
/// the one that can be.
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

/// The node that a pod is on, or waits for: those of a DaemonSet are each for one.
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
    (!ready).then(|| format!("has no container {CONTAINER} that runs"))
}

// === asking ===

impl Said<String> {
    fn parse<T>(self, parse: Parse<T>) -> Result<Said<T>, Silence> {
        let answer = parse(&self.answer).map_err(|error| {
            Silence::Because(format!("what its usher says is not understood: {error}"))
        })?;
        Ok(Said {
            answer,
            complaints: self.complaints,
        })
    }
}

async fn execute(
    pods: &Api<Pod>,
    node: &Node,
    words: Vec<String>,
) -> Result<Said<String>, Silence> {
    if let Some(trouble) = &node.trouble {
        return Err(Silence::Because(trouble.clone()));
    }
    let parameters = AttachParams::default()
        .container(CONTAINER)
        .max_stdout_buf_size(BUFFER)
        .max_stderr_buf_size(BUFFER);
    let command = std::iter::once(USHER.to_owned()).chain(words);
    let command: Vec<String> = command.collect();
    let process = pods.exec(&node.pod, command, &parameters).await;
    let mut process = process.map_err(|error| match No::from(error) {
        No::Forbidden(said) => Silence::Forbidden(said),
        no => Silence::Because(no.words().to_owned()),
    })?;
    let (stdout, stderr) = (process.stdout(), process.stderr());
    let status = process.take_status();
    let (answer, complaints) = tokio::try_join!(
        read(stdout, ANSWER_AT_MOST),
        read(stderr, COMPLAINTS_AT_MOST)
    )?;
    let status = match status {
        Some(status) => status.await,
        None => None,
    };
    judge(status, answer, &complaints)
}

async fn read(stream: Option<impl AsyncRead + Unpin>, at_most: u64) -> Result<String, Silence> {
    let Some(stream) = stream else {
        return Ok(String::new());
    };
    let mut bytes = Vec::new();
    // One more tells that there is more.
    let mut stream = stream.take(at_most.saturating_add(1));
    let read = stream.read_to_end(&mut bytes).await;
    read.map_err(|error| Silence::Because(format!("its answer cannot be read: {error}")))?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > at_most {
        let why = format!("it says more than {at_most} bytes");
        return Err(Silence::Because(why));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// What to make of how the command ended, and of what it wrote. `usher` fails if a shim does not answer,
/// and tells of the others all the same.
fn judge(
    status: Option<Status>,
    answer: String,
    complaints: &str,
) -> Result<Said<String>, Silence> {
    let mut complaints: Vec<String> = complaints.lines().map(plain).collect();
    complaints.retain(|line| !line.is_empty());
    let Some(status) = status else {
        let why = "the connection was cut before all was said";
        return Err(Silence::Because(why.to_owned()));
    };
    let has_exited = status.reason.as_deref() == Some("NonZeroExitCode");
    let is_over = status.status.as_deref() == Some("Success") || has_exited;
    match complaints.pop() {
        _ if !is_over => {
            let message = status.message.unwrap_or_default();
            Err(Silence::Because(message.replace('\n', " ")))
        }
        Some(last) if answer.is_empty() => Err(Silence::Because(last)),
        last => {
            complaints.extend(last);
            Ok(Said { answer, complaints })
        }
    }
}

/// A line without what `usher` puts before it.
fn plain(line: &str) -> String {
    let line = line.trim();
    let said = ["usher: ", "warning: "].into_iter();
    let mut said = said.filter_map(|word| line.strip_prefix(word));
    said.next().unwrap_or(line).to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// As the API server has one of the DaemonSet's.
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

    fn silence(why: &str) -> Result<Said<String>, Silence> {
        Err(Silence::Because(why.to_owned()))
    }

    #[test]
    fn a_node_is_asked_by_the_pod_that_can_be_asked() {
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
            "its pod c-1 has no container view that runs",
        ];
        assert_eq!(sentences, expected);
    }

    #[test]
    fn a_pod_that_no_node_has_taken_is_that_of_the_node_it_waits_for() {
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
    fn what_usher_says_is_an_answer_though_a_shim_did_not_give_one() {
        let said = |answer: &str, complaints: &[&str]| {
            let complaints = complaints.iter().map(|line| (*line).to_owned());
            Ok(Said {
                answer: answer.to_owned(),
                complaints: complaints.collect(),
            })
        };
        let success = || status("Success", "", "");
        let failed = || status("Failure", "NonZeroExitCode", "exit code 1");
        assert_eq!(judge(success(), "{}".to_owned(), ""), said("{}", &[]));
        assert_eq!(
            judge(
                failed(),
                "{}".to_owned(),
                "warning: the shim at x hangs up\n"
            ),
            said("{}", &["the shim at x hangs up"])
        );
        assert_eq!(
            judge(
                failed(),
                String::new(),
                "warning: one\nusher: there is no pod\n"
            ),
            silence("there is no pod")
        );
        let broken = status("Failure", "InternalError", "no such\nfile");
        assert_eq!(judge(broken, "{}".to_owned(), ""), silence("no such file"));
        let cut = "the connection was cut before all was said";
        assert_eq!(judge(None, "{".to_owned(), ""), silence(cut));
    }

    #[test]
    fn an_answer_may_be_as_large_as_it_may_be_and_no_larger() {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let read = |bytes: &'static [u8]| runtime.as_ref().unwrap().block_on(read(Some(bytes), 4));
        assert_eq!(read(b"1234"), Ok("1234".to_owned()));
        let why = "it says more than 4 bytes".to_owned();
        assert_eq!(read(b"12345"), Err(Silence::Because(why)));
    }
}
