//! The webhook, installed in the cluster by its manifest.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::{Cluster, PATIENCE};
use crate::harness::{Finished, eventually, poll, run};
use crate::own_images;

pub const NAME: &str = "usher-webhook";
pub const MANIFEST: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/scripts/kubernetes/webhook.yaml"
);
/// The kinds of the webhook's two configurations.
pub const CONFIGURATIONS: [&str; 2] = [
    "mutatingwebhookconfiguration",
    "validatingwebhookconfiguration",
];
/// The repository in the name of the webhook's image. The image is imported, and not pulled from
/// there.
const REPOSITORY: &str = "registry.example.com/usher-webhook";

/// The installed webhook. Removed with all its objects on drop.
pub struct Webhook<'a> {
    pub cluster: &'a Cluster,
}

impl<'a> Webhook<'a> {
    /// Installs the webhook by the commands at the head of the manifest.
    pub fn install(cluster: &'a Cluster) -> Self {
        let webhook = Self::prepare(cluster);
        let file = cluster.path("tmp/webhook.yaml").display().to_string();
        cluster.must(&["apply", "--filename", &file]);
        webhook.await_rollout();
        webhook.await_answers();
        webhook
    }

    /// Imports the image, and writes the manifest with the image's name to `tmp/webhook.yaml`.
    pub fn prepare(cluster: &'a Cluster) -> Self {
        let image = own_images::import(cluster, "usher-webhook", REPOSITORY, |_| ());
        let text = fs::read_to_string(MANIFEST).expect("the manifest");
        let lines = text.lines().map(|line| match line.split_once("image: ") {
            Some((space, _)) if space.trim().is_empty() => format!("{space}image: {image}\n"),
            _ => format!("{line}\n"),
        });
        let file = cluster.path("tmp/webhook.yaml");
        fs::write(file, lines.collect::<String>()).expect("the manifest");
        Self { cluster }
    }

    /// Runs `kubectl` in the webhook's namespace.
    #[track_caller]
    pub fn kubectl(&self, words: &[&str]) -> String {
        self.cluster.must(&[&["--namespace", NAME], words].concat())
    }

    pub fn await_rollout(&self) {
        let words = ["--namespace", NAME, "rollout", "status", "deployment", NAME];
        let finished = self.cluster.kubectl_waits(&words);
        assert!(finished.ok(), "{}\n{}", finished.err(), self.diagnosis());
    }

    /// Waits until the API server calls the webhook successfully, for which it has to trust the
    /// webhook's certificate.
    pub fn await_answers(&self) {
        let answers = || self.refuses(&wrong()).then_some(());
        let found = poll(PATIENCE, answers);
        assert!(found.is_some(), "it is not asked:\n{}", self.diagnosis());
    }

    /// True if the webhook refuses the object; false if the API server accepts it or refuses it for
    /// another reason. Creates nothing.
    pub fn refuses(&self, object: &Value) -> bool {
        let said = dry_run(self.cluster, object);
        !said.ok() && said.err().contains("denied the request")
    }

    pub fn scale(&self, replicas: usize) {
        let replicas = format!("--replicas={replicas}");
        self.kubectl(&["scale", "deployment", NAME, &replicas]);
    }

    pub fn pods(&self) -> Vec<Value> {
        let words = [
            "get",
            "pods",
            "--selector=app=usher-webhook",
            "--output=json",
        ];
        let list: Value = serde_json::from_str(&self.kubectl(&words)).expect("a list");
        list["items"].as_array().cloned().unwrap_or_default()
    }

    /// Removes all replicas.
    pub fn shut_down(&self) {
        self.scale(0);
        eventually("both are gone", PATIENCE, || self.pods().is_empty());
    }

    /// Sets `failurePolicy` in all configurations.
    pub fn set_failure_policy(&self, policy: &str) {
        for kind in CONFIGURATIONS {
            let change = json!([
                { "op": "replace", "path": "/webhooks/0/failurePolicy", "value": policy },
                { "op": "replace", "path": "/webhooks/1/failurePolicy", "value": policy },
            ]);
            let words = ["patch", kind, NAME, "--type=json", "--patch"];
            self.kubectl(&[&words[..], &[&change.to_string()]].concat());
        }
    }

    /// Kills the process of one of the webhook's pods, as the kernel's OOM killer does.
    pub fn kill(&self, pod: &Value) {
        let id = pod["status"]["containerStatuses"][0]["containerID"].as_str();
        let id = id.and_then(|id| id.strip_prefix("containerd://"));
        let words = [
            "tasks",
            "kill",
            "--signal",
            "KILL",
            id.expect("the webhook runs"),
        ];
        let finished = run(self.cluster.on_node(&self.cluster.ctr(&words)), PATIENCE);
        assert!(finished.ok(), "ctr tasks kill: {}", finished.err());
    }

    /// Logs of the webhook's pods since their processes started.
    pub fn log(&self) -> String {
        let words = [
            "logs",
            "--selector=app=usher-webhook",
            "--tail=-1",
            "--prefix",
        ];
        self.kubectl(&words)
    }

    pub fn diagnosis(&self) -> String {
        let say = |words: &[&str]| {
            let words = [&["--namespace", NAME], words].concat();
            let finished = self.cluster.kubectl(&words);
            finished.out() + &finished.err()
        };
        let log = [
            "logs",
            "--selector=app=usher-webhook",
            "--tail=30",
            "--prefix",
        ];
        format!("{}---\n{}", say(&["describe", "pods"]), say(&log))
    }
}

impl Drop for Webhook<'_> {
    fn drop(&mut self) {
        // Without `--force`, each replica would take ten seconds to exit.
        let pods = ["delete", "pods", "--all", "--force", "--grace-period=0"];
        let deployment = ["delete", "deployment", NAME, "--ignore-not-found"];
        for words in [&deployment[..], &pods] {
            self.cluster
                .kubectl(&[&["--namespace", NAME], words].concat());
        }
        let words = ["delete", "--ignore-not-found", "--filename", MANIFEST];
        self.cluster.kubectl(&words);
    }
}

pub fn dry_run(cluster: &Cluster, object: &Value) -> Finished {
    cluster.give(
        &["create", "--dry-run=server"],
        std::slice::from_ref(object),
    )
}

/// A pod of the default namespace with these annotations.
pub fn pod(annotations: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "generateName": "pod-", "namespace": "default", "annotations": annotations },
        "spec": { "containers": [{ "name": "proxy", "image": "x" }, { "name": "app", "image": "x" }] },
    })
}

/// A pod that the shim would refuse.
pub fn wrong() -> Value {
    pod(json!({ "usher/sidecars": "proxy, proxy" }))
}

/// Maximum time until the webhook has read a changed Secret. kubelet has to write the Secret into
/// the pod's files first.
pub const SEEN_WITHIN: Duration = Duration::from_secs(180);
