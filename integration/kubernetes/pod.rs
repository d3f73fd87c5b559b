//! A test case: a namespace, its pods, and the records of their containers.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::harness::{Finished, Record, poll, run};

use super::cluster::{Cluster, NODE, PATIENCE};
use super::images::WITNESS;
use super::settings;

/// A case of the tests. It has a separate Kubernetes namespace and a separate shared directory.
pub struct Case<'a> {
    pub cluster: &'a Cluster,
    pub namespace: String,
}

/// The manifest of a pod.
#[derive(Clone)]
pub struct Pod {
    name: String,
    annotations: Map<String, Value>,
    labels: Map<String, Value>,
    containers: Vec<Value>,
    init_containers: Vec<Value>,
    spec: Map<String, Value>,
}

/// A static pod. Dropping the value removes the pod's file, so that kubelet ends the pod.
pub struct StaticPod {
    pub name: String,
    file: PathBuf,
}

impl Drop for StaticPod {
    fn drop(&mut self) {
        fs::remove_file(&self.file).expect("its file");
    }
}

/// A container that runs a witness. The witness has the container's name.
pub fn witness(name: &str, options: &[&str]) -> Value {
    let mut command = vec!["/bin/witness", name];
    command.extend(options);
    json!({ "name": name, "image": WITNESS, "command": command, "volumeMounts": mounts() })
}

/// A container that runs a shell script.
pub fn script(name: &str, text: &str) -> Value {
    json!({
        "name": name, "image": WITNESS, "command": ["/bin/sh", "-c", text], "volumeMounts": mounts(),
    })
}

/// Adds fields to a container.
pub fn with(mut container: Value, fields: Value) -> Value {
    let fields = fields.as_object().expect("an object").clone();
    container
        .as_object_mut()
        .expect("a container")
        .extend(fields);
    container
}

fn mounts() -> Value {
    json!([{ "name": "shared", "mountPath": "/shared" }])
}

/// A startup probe that succeeds once the witness is ready.
pub fn ready_probe(name: &str) -> String {
    json!({
        "exec": { "command": ["test", "-e", format!("/shared/ready-{name}")] },
        "periodMilliseconds": 200, "failureThreshold": 600, "timeoutSeconds": 30,
    })
    .to_string()
}

impl Pod {
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            annotations: Map::new(),
            labels: Map::from_iter([("app".to_owned(), name.into())]),
            containers: Vec::new(),
            init_containers: Vec::new(),
            spec: Map::new(),
        }
    }

    pub fn annotation(mut self, key: &str, value: impl Into<String>) -> Self {
        self.annotations.insert(key.to_owned(), value.into().into());
        self
    }

    /// Adds a label. Each pod also has the label `app`, with the pod's name.
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.into());
        self
    }

    /// Adds a startup probe for a sidecar. The probe succeeds once the sidecar's program, the
    /// witness, has created its file `/shared/ready-…`.
    pub fn probed(self, name: &str) -> Self {
        self.annotation(&format!("startup-probe.usher/{name}"), ready_probe(name))
    }

    pub fn container(mut self, container: Value) -> Self {
        self.containers.push(container);
        self
    }

    /// Adds a container to the spec's `initContainers`.
    pub fn init_container(mut self, container: Value) -> Self {
        self.init_containers.push(container);
        self
    }

    pub fn spec(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.spec.insert(key.to_owned(), value.into());
        self
    }

    fn template(&self, case: &Case) -> Value {
        let mut spec = json!({
            "runtimeClassName": "usher",
            "terminationGracePeriodSeconds": 60,
            "containers": self.containers,
            "initContainers": self.init_containers,
            "volumes": [{ "name": "shared", "hostPath": { "path": case.shared_dir() } }],
        });
        spec.as_object_mut()
            .expect("an object")
            .extend(self.spec.clone());
        let metadata = json!({ "annotations": self.annotations, "labels": self.labels });
        json!({ "metadata": metadata, "spec": spec })
    }

    fn object(&self, case: &Case, api: &str, kind: &str, spec: Value) -> Value {
        json!({
            "apiVersion": api, "kind": kind, "spec": spec,
            "metadata": { "name": self.name, "namespace": case.namespace },
        })
    }
}

impl<'a> Case<'a> {
    pub fn new(cluster: &'a Cluster, name: &str) -> Self {
        let mut namespace = name.replace("::", "-").replace('_', "-");
        // The API limits the length of a namespace's name.
        namespace.truncate(60);
        let case = Self {
            cluster,
            namespace: namespace.trim_end_matches('-').to_owned(),
        };
        fs::create_dir_all(case.shared_dir()).expect("the shared directory");
        case.create_namespace();
        case
    }

    /// The directory mounted on `/shared` in every container.
    pub fn shared_dir(&self) -> PathBuf {
        self.cluster.path("shared").join(&self.namespace)
    }

    /// Creates the namespace and its service account. The account's token is not mounted, so that
    /// pods need not wait for the token. If Kubernetes has already created the account, changes
    /// that account.
    fn create_namespace(&self) {
        let name = &self.namespace;
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name },
        });
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": { "name": "default", "namespace": name },
            "automountServiceAccountToken": false,
        });
        let words = ["apply", "--server-side", "--force-conflicts"];
        let finished = self.cluster.give(&words, &[namespace, account]);
        assert!(finished.ok(), "kubectl apply: {}", finished.err());
    }

    #[track_caller]
    pub fn create(&self, pod: &Pod) {
        let finished = self.try_create(pod);
        assert!(finished.ok(), "kubectl apply: {}", finished.err());
    }

    /// Creates pods with one command.
    #[track_caller]
    pub fn create_all(&self, pods: &[Pod]) {
        let objects: Vec<Value> = pods.iter().map(|pod| self.pod_object(pod)).collect();
        self.cluster.apply(&objects);
    }

    /// Creates a pod that the API may refuse.
    pub fn try_create(&self, pod: &Pod) -> Finished {
        self.cluster.try_apply(&[self.pod_object(pod)])
    }

    fn pod_object(&self, pod: &Pod) -> Value {
        let mut object = pod.template(self);
        object["apiVersion"] = "v1".into();
        object["kind"] = "Pod".into();
        object["metadata"]["name"] = pod.name.as_str().into();
        object["metadata"]["namespace"] = self.namespace.as_str().into();
        object
    }

    /// Creates a static pod. Writes a file from which kubelet creates the pod without the API
    /// server.
    pub fn create_static(&self, pod: &Pod) -> StaticPod {
        let file = self.cluster.path(settings::STATIC_PODS);
        let file = file.join(format!("{}.json", self.namespace));
        let object = self.pod_object(pod).to_string();
        // kubelet reads every file in the directory, except those whose names begin with a dot. So
        // write a file with such a name, and rename it when it is complete.
        let unfinished = file.with_file_name(".unfinished");
        fs::write(&unfinished, object).expect("a file");
        fs::rename(unfinished, &file).expect("a file");
        StaticPod {
            name: format!("{}-{NODE}", pod.name),
            file,
        }
    }

    pub fn create_job(&self, pod: &Pod, backoff_limit: u32) {
        let spec = json!({ "backoffLimit": backoff_limit, "template": pod.template(self) });
        self.cluster
            .apply(&[pod.object(self, "batch/v1", "Job", spec)]);
    }

    /// Creates a Deployment of one replica that always has a ready pod, even during a rollout.
    pub fn create_deployment(&self, pod: &Pod) {
        let spec = json!({
            "replicas": 1,
            "selector": { "matchLabels": { "app": pod.name } },
            "strategy": { "rollingUpdate": { "maxUnavailable": 0, "maxSurge": 1 } },
            "template": pod.template(self),
        });
        self.cluster
            .apply(&[pod.object(self, "apps/v1", "Deployment", spec)]);
    }

    pub fn create_stateful_set(&self, pod: &Pod, replicas: u32) {
        let spec = json!({
            "replicas": replicas,
            "serviceName": pod.name,
            "selector": { "matchLabels": { "app": pod.name } },
            "template": pod.template(self),
        });
        self.cluster
            .apply(&[pod.object(self, "apps/v1", "StatefulSet", spec)]);
    }

    /// Runs `kubectl` in the case's namespace.
    #[track_caller]
    pub fn kubectl(&self, words: &[&str]) -> String {
        let mut all = vec!["--namespace", self.namespace.as_str()];
        all.extend(words);
        self.cluster.must(&all)
    }

    /// Runs a `kubectl` command that waits for a condition.
    #[track_caller]
    pub fn kubectl_waits(&self, words: &[&str]) {
        let words = [&["--namespace", &*self.namespace], words].concat();
        let finished = self.cluster.kubectl_waits(&words);
        assert!(
            finished.ok(),
            "kubectl {words:?}: {}\n{}",
            finished.err(),
            self.diagnosis()
        );
    }

    #[track_caller]
    pub fn await_job(&self, name: &str, condition: &str) {
        let (condition, job) = (
            format!("--for=condition={condition}"),
            format!("job/{name}"),
        );
        self.kubectl_waits(&["wait", &condition, &job]);
    }

    #[track_caller]
    pub fn await_rollout(&self, of: &str) {
        self.kubectl_waits(&["rollout", "status", of]);
    }

    pub fn record(&self) -> Record {
        Record::read(&self.shared_dir())
    }

    #[track_caller]
    pub fn await_record(&self, what: &str, condition: impl Fn(&Record) -> bool) -> Record {
        let probe = || Some(self.record()).filter(|record| condition(record));
        match poll(PATIENCE, probe) {
            Some(record) => record,
            None => panic!("it never came true that {what}\n{}", self.diagnosis()),
        }
    }

    #[track_caller]
    pub fn await_event(&self, name: &str, event: &str) -> Record {
        self.await_record(&format!("{name} recorded {event}"), |record| {
            record.has(name, event)
        })
    }

    /// Makes an empty file in the shared directory. Scripts of containers wait for such files.
    pub fn touch(&self, name: &str) {
        fs::write(self.shared_dir().join(name), "").expect("a file");
    }

    // --- methods for pods in the API ---

    pub fn pod(&self, name: &str) -> Option<Value> {
        let finished = self.cluster.kubectl(&[
            "--namespace",
            &self.namespace,
            "get",
            "pod",
            name,
            "--output",
            "json",
        ]);
        if finished.ok() {
            return serde_json::from_slice(&finished.stdout).ok();
        }
        assert!(finished.err().contains("NotFound"), "{}", finished.err());
        None
    }

    /// Waits until the pod that the API returns meets a condition.
    #[track_caller]
    pub fn await_pod(&self, name: &str, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
        let probe = || {
            std::thread::sleep(Duration::from_millis(200));
            self.pod(name).filter(|pod| condition(pod))
        };
        match poll(PATIENCE, probe) {
            Some(pod) => pod,
            None => panic!("pod {name} never was {what}\n{}", self.diagnosis()),
        }
    }

    #[track_caller]
    pub fn await_ready(&self, name: &str) -> Value {
        self.await_pod(name, "ready", |pod| {
            condition(pod, "Ready")["status"] == "True"
        })
    }

    #[track_caller]
    pub fn await_phase(&self, name: &str, phase: &str) -> Value {
        self.await_pod(name, phase, |pod| pod["status"]["phase"] == phase)
    }

    #[track_caller]
    pub fn await_gone(&self, name: &str) {
        let gone = || {
            std::thread::sleep(Duration::from_millis(200));
            self.pod(name).is_none().then_some(())
        };
        assert!(
            poll(PATIENCE, gone).is_some(),
            "pod {name} never went away\n{}",
            self.diagnosis()
        );
    }

    /// The pods whose label `app` has this value.
    pub fn pods_of(&self, app: &str) -> Vec<Value> {
        let label = format!("app={app}");
        let text = self.kubectl(&["get", "pods", "--selector", &label, "--output", "json"]);
        let list: Value = serde_json::from_str(&text).expect("a list");
        list["items"].as_array().cloned().unwrap_or_default()
    }

    /// Deletes a pod, and does not wait until it is gone.
    pub fn delete(&self, name: &str, options: &[&str]) {
        let mut words = vec!["delete", "pod", name, "--wait=false"];
        words.extend(options);
        self.kubectl(&words);
    }

    /// Changes the resources of a container in a running pod. Does not wait until the container is
    /// resized.
    #[track_caller]
    pub fn resize(&self, name: &str, container: &str, resources: &Value) {
        let container = json!({ "name": container, "resources": resources });
        self.patch_size(name, &json!({ "containers": [container] }));
    }

    /// KEP-5419: changes the resources that a running pod has of its own. Does not wait until the
    /// pod is resized.
    #[track_caller]
    pub fn resize_pod(&self, name: &str, resources: &Value) {
        self.patch_size(name, &json!({ "resources": resources }));
    }

    #[track_caller]
    fn patch_size(&self, name: &str, spec: &Value) {
        let change = json!({ "spec": spec }).to_string();
        self.kubectl(&[
            "patch",
            "pod",
            name,
            "--subresource",
            "resize",
            "--patch",
            &change,
        ]);
    }

    /// Evicts a pod by the API, which respects disruption budgets.
    pub fn evict(&self, name: &str) {
        let version = if self.cluster.programs.version >= (1, 22) {
            "policy/v1"
        } else {
            "policy/v1beta1"
        };
        let eviction = json!({
            "apiVersion": version, "kind": "Eviction",
            "metadata": { "name": name, "namespace": self.namespace },
        });
        let file = self.cluster.path("tmp/eviction.json");
        fs::write(&file, eviction.to_string()).expect("a file");
        let path = format!("/api/v1/namespaces/{}/pods/{name}/eviction", self.namespace);
        let file = file.display().to_string();
        self.cluster
            .must(&["create", "--raw", &path, "--filename", &file]);
    }

    // --- methods for containers in containerd ---

    /// The tasks that run on the node.
    fn tasks(&self) -> Vec<String> {
        self.listed(&["tasks", "ls", "--quiet"])
    }

    /// The tasks of this case's pods.
    pub fn own_tasks(&self) -> Vec<String> {
        let own = label("pod.namespace", &self.namespace);
        let own = self.listed(&["containers", "ls", "--quiet", &own]);
        let mut tasks = self.tasks();
        tasks.retain(|id| own.contains(id));
        tasks
    }

    /// The output lines of `ctr`.
    fn listed(&self, words: &[&str]) -> Vec<String> {
        let finished = run(self.cluster.on_node(&self.cluster.ctr(words)), PATIENCE);
        assert!(finished.ok(), "ctr {words:?}: {}", finished.err());
        finished.out().lines().map(str::to_owned).collect()
    }

    /// Waits until kubelet has created the container of this name.
    ///
    /// By then, containerd has also recorded the start of the previous container. If containerd
    /// died before it recorded this start, it would forget the previous container, and kubelet
    /// would create another one.
    #[track_caller]
    pub fn await_container(&self, name: &str) {
        let filter = [
            label("container.name", name),
            label("pod.namespace", &self.namespace),
        ];
        let filter = filter.join(",");
        let words = self.cluster.ctr(&["containers", "ls", "--quiet", &filter]);
        let there = || {
            let finished = run(self.cluster.on_node(&words), PATIENCE);
            (finished.ok() && !finished.out().trim().is_empty()).then_some(())
        };
        assert!(poll(PATIENCE, there).is_some(), "{}", self.diagnosis());
    }

    #[track_caller]
    pub fn await_no_task_of(&self, gone: &[String]) {
        let none = || {
            let left = self.tasks();
            (!left.iter().any(|id| gone.contains(id))).then_some(())
        };
        assert!(
            poll(PATIENCE, none).is_some(),
            "{:?} never went away",
            self.tasks()
        );
    }

    pub fn diagnosis(&self) -> String {
        let words = ["--namespace", &self.namespace, "describe", "pods"];
        let pods = self.cluster.kubectl(&words).out();
        let log = self.cluster.log_tail("containerd", 400);
        let ours: Vec<&str> = log.lines().filter(|line| line.contains("usher")).collect();
        let tail = &ours[ours.len().saturating_sub(40)..];
        format!(
            "--- recorded\n{}--- pods\n{pods}\n--- usher\n{}",
            self.record(),
            tail.join("\n")
        )
    }
}

impl Drop for Case<'_> {
    fn drop(&mut self) {
        // All pods are removed, because the next case needs the whole machine.
        let all = [
            "--namespace",
            &self.namespace,
            "delete",
            "--all",
            "--force",
            "--grace-period=0",
        ];
        let kinds = ["deployments", "statefulsets", "jobs", "pods"].join(",");
        let words: Vec<&str> = all.iter().copied().chain([kinds.as_str()]).collect();
        let _ = self.cluster.kubectl(&words);
    }
}

/// A filter of `ctr` for containers whose label `io.kubernetes.KEY` has this value.
fn label(key: &str, value: &str) -> String {
    format!("labels.\"io.kubernetes.{key}\"=={value}")
}

/// A condition of the pod's status in the API. Null if the pod has no condition of this type.
pub fn condition<'a>(pod: &'a Value, kind: &str) -> &'a Value {
    let all = pod["status"]["conditions"].as_array();
    let found = all.and_then(|all| all.iter().find(|condition| condition["type"] == kind));
    found.unwrap_or(&Value::Null)
}

/// A container's status, from the pod's status in the API.
pub fn status_of<'a>(pod: &'a Value, container: &str) -> &'a Value {
    let status = &pod["status"];
    let lists = [
        "containerStatuses",
        "initContainerStatuses",
        "ephemeralContainerStatuses",
    ];
    let mut all = lists
        .iter()
        .filter_map(|list| status[list].as_array())
        .flatten();
    let found = all.find(|one| one["name"] == container);
    found.unwrap_or(&Value::Null)
}

/// The exit code of an exited container, from the pod's status in the API.
pub fn exit_code(pod: &Value, container: &str) -> Option<i64> {
    status_of(pod, container)["state"]["terminated"]["exitCode"].as_i64()
}

pub fn restarts(pod: &Value, container: &str) -> i64 {
    status_of(pod, container)["restartCount"]
        .as_i64()
        .unwrap_or(-1)
}
