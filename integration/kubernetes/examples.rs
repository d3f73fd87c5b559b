//! The example manifests for users (`scripts/kubernetes/examples`), applied without changes.

use std::process::Command;

use serde_json::Value;

use crate::cluster::PATIENCE;
use crate::harness::{Background, eventually, run};
use crate::pod::{Case, exit_code, restarts, status_of};

fn apply(case: &Case, name: &str) {
    let top = env!("CARGO_MANIFEST_DIR");
    let file = format!("{top}/scripts/kubernetes/examples/{name}.yaml");
    case.kubectl(&["apply", "--filename", &file]);
}

/// Waits for a ready pod whose label `app` has this value. Returns the pod's name, and the pod.
fn await_pod_of(case: &Case, app: &str) -> (String, Value) {
    eventually("a pod was made", PATIENCE, || !case.pods_of(app).is_empty());
    let pod = &case.pods_of(app)[0];
    let name = pod["metadata"]["name"].as_str().expect("a name").to_owned();
    let pod = case.await_ready(&name);
    (name, pod)
}

/// Follows a container's log from its beginning.
fn follow(case: &Case, pod: &str, container: &str) -> Background {
    let namespace = &case.namespace;
    let words = [
        "kubectl",
        "--namespace",
        namespace,
        "logs",
        "--follow",
        pod,
        "--container",
        container,
    ];
    let command: Command = case.cluster.on_machine(&words);
    Background::spawn(command)
}

fn await_words(case: &Case, log: &Background, words: &str) {
    let found = crate::harness::poll(PATIENCE, || log.stdout().contains(words).then_some(()));
    assert!(
        found.is_some(),
        "{words:?} is not in the log: {:?}\n{}",
        log.stdout(),
        case.diagnosis()
    );
}

pub fn mesh(case: &Case) {
    apply(case, "mesh");
    let (name, pod) = await_pod_of(case, "shop");
    assert_eq!(restarts(&pod, "app"), 0, "{}", case.diagnosis());
    let log = follow(case, &name, "app");
    await_words(case, &log, "at the start: it went through the proxy");
    case.kubectl(&["scale", "deployment", "shop", "--replicas=0"]);
    await_words(case, &log, "at the end: it went through the proxy");
    case.await_gone(&name);
}

pub fn log_forwarder(case: &Case) {
    apply(case, "log-forwarder");
    case.await_ready("shop-logs");
    let log = follow(case, "shop-logs", "forwarder");
    await_words(case, &log, "forwarded: the app's first line");
    case.delete("shop-logs", &[]);
    await_words(case, &log, "forwarded: the last line of the app");
    case.await_gone("shop-logs");
}

pub fn job(case: &Case) {
    apply(case, "job");
    case.await_job("report", "complete");
    let text = case.kubectl(&["logs", "job/report", "--container=work"]);
    assert!(text.contains("the report is written"), "{text}");
    let pods = case.kubectl(&["get", "pods", "--output", "json"]);
    let pods: Value = serde_json::from_str(&pods).expect("a list");
    let pod = &pods["items"][0];
    assert_eq!(
        exit_code(pod, "proxy"),
        Some(0),
        "{}",
        status_of(pod, "proxy")
    );
}

/// KEP-5307: kubelet restarts the container `train` because of its exit code. The proxy is
/// available to the restarted container, too.
pub fn training(case: &Case) {
    apply(case, "training");
    case.await_job("training", "complete");
    let text = case.kubectl(&["logs", "job/training", "--container=train"]);
    assert!(text.contains("the model is trained"), "{text}");
    let pods = case.kubectl(&["get", "pods", "--output", "json"]);
    let pods: Value = serde_json::from_str(&pods).expect("a list");
    let pod = &pods["items"][0];
    assert_eq!(restarts(pod, "train"), 1, "{}", status_of(pod, "train"));
    assert_eq!(
        exit_code(pod, "proxy"),
        Some(0),
        "{}",
        status_of(pod, "proxy")
    );
}

pub fn database(case: &Case) {
    apply(case, "database");
    let (name, _) = await_pod_of(case, "database");
    let log = follow(case, &name, "deregister");
    case.kubectl(&["scale", "statefulset", "database", "--replicas=0"]);
    await_words(case, &log, "database database-0 is gone");
    case.await_gone(&name);
}

/// The directory on the node that all members of the group mount.
const GROUP: &str = "/var/lib/usher-example-group";

pub fn leader(case: &Case) {
    apply(case, "leader");
    case.await_ready("member-0");
    case.await_ready("member-1");
    let said_of = |words: &[&str]| run(case.cluster.on_node(words), PATIENCE).out();
    let leader = || {
        let link = said_of(&["readlink", &format!("{GROUP}/leader")]);
        assert!(!link.is_empty(), "a leader");
        link.trim().to_owned()
    };
    let first = leader();
    case.delete(&first, &[]);
    eventually("the lead is handed over", PATIENCE, || leader() != first);
    // The history is written a moment after the handover.
    let history = || said_of(&["cat", &format!("{GROUP}/history")]);
    eventually("the handover is recorded", PATIENCE, || {
        history().ends_with('\n')
    });
    assert_eq!(
        history(),
        format!("{first} has handed over to {}\n", leader())
    );
}
