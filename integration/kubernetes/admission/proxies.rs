//! Proxies that another webhook injects, and proxies that the pod's author has written.

use std::fs;

use serde_json::{Value, json};

use super::injector::Injector;
use super::webhook::Webhook;
use crate::cluster::PATIENCE;
use crate::harness::{eventually, run};
use crate::pod::{Case, Pod, exit_code, restarts, with, witness};

/// A proxy that runs until it is stopped, and is ready after a second. If it is a native sidecar,
/// only kubelet probes it.
fn proxy(name: &str) -> Value {
    let probe = json!({
        "exec": { "command": ["test", "-e", format!("/shared/ready-{name}")] },
        "periodSeconds": 1, "failureThreshold": 120, "timeoutSeconds": 30,
    });
    let proxy = witness(name, &["--ready-after", "1s", "--exit", "143"]);
    with(proxy, json!({ "startupProbe": probe }))
}

fn native(container: Value) -> Value {
    with(container, json!({ "restartPolicy": "Always" }))
}

/// A Job's pod whose annotations and runtime class the webhook completes.
fn job(name: &str) -> Pod {
    Pod::new(name)
        .label("inject", name)
        .container(witness(&format!("app-{name}"), &["--run-for", "2s"]))
        .spec("restartPolicy", "Never")
        .spec("runtimeClassName", Value::Null)
}

#[track_caller]
fn await_complete(case: &Case, names: &[&str]) {
    for name in names {
        case.await_job(name, "complete");
    }
}

/// Checks that the proxy was ready before the app started, and was stopped after the app.
#[track_caller]
fn assert_ordered(case: &Case, app: &str, proxy: &str) {
    let record = case.record();
    record.assert_before((proxy, "ready"), (app, "start"));
    record.assert_before((app, "exit"), (proxy, "signal"));
    assert_eq!(record.all(proxy, "start").count(), 1, "{record}");
}

#[track_caller]
fn only_pod_of(case: &Case, job: &str) -> Value {
    let mut pods = case.pods_of(job);
    assert_eq!(pods.len(), 1, "{}", case.diagnosis());
    pods.remove(0)
}

/// Names of the injector's webhook. The API server calls webhooks in alphabetical order: `another`
/// before `usher-webhook`, and `zealous` after it.
const WHEN: [&str; 2] = ["another", "zealous"];

pub fn a_job_with_an_injected_proxy_completes(case: &Case) {
    let _webhook = Webhook::install(case.cluster);
    let mut injector = Injector::start(case);
    let mut names = Vec::new();
    for when in WHEN {
        for (form, list) in [("ordinary", "containers"), ("native", "initContainers")] {
            let name = format!("{when}-{form}");
            let container = proxy(&format!("proxy-{name}"));
            let container = match form {
                "native" => native(container),
                _ => container,
            };
            injector.inject(&name, list, &container);
            names.push(name);
        }
    }
    for name in &names {
        // The proxy is an ordinary container or a native sidecar. The same annotation works for
        // both.
        let annotated = format!("proxy-{name}?");
        case.create_job(&job(name).annotation("usher/sidecars", annotated), 0);
    }
    // Without `?` after its name, the proxy becomes a sidecar of usher although it is a native
    // sidecar. The order of the containers stays the same.
    injector.inject("named", "initContainers", &native(proxy("proxy-named")));
    case.create_job(&job("named").annotation("usher/sidecars", "proxy-named"), 0);
    await_complete(case, &["named"]);
    assert_ordered(case, "app-named", "proxy-named");

    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    await_complete(case, &names);
    for name in names {
        let (app, proxy) = (format!("app-{name}"), format!("proxy-{name}"));
        assert_ordered(case, &app, &proxy);
        let pod = only_pod_of(case, name);
        assert_eq!(pod["spec"]["runtimeClassName"], "usher", "{pod:#}");
        let annotations = &pod["metadata"]["annotations"];
        assert_eq!(annotations["usher/apps"], app, "{annotations:#}");
        match name.ends_with("native") {
            // kubelet itself starts and stops a native sidecar in order. So the webhook does not
            // list it as a sidecar of usher.
            true => {
                assert_eq!(annotations["usher/native-init"], proxy, "{annotations:#}");
                assert_eq!(annotations["usher/sidecars"], Value::Null);
            }
            false => {
                assert_eq!(annotations["usher/sidecars"], proxy, "{annotations:#}");
                assert_eq!(exit_code(&pod, &proxy), Some(0));
            }
        }
    }
}

pub fn a_job_whose_proxy_was_not_injected_runs(case: &Case) {
    let _webhook = Webhook::install(case.cluster);
    case.create_job(&job("alone").annotation("usher/sidecars", "proxy?"), 0);
    await_complete(case, &["alone"]);
    let pod = only_pod_of(case, "alone");
    let annotations = &pod["metadata"]["annotations"];
    assert_eq!(annotations["usher/sidecars"], Value::Null);
    assert_eq!(annotations["usher/apps"], "app-alone");
    assert_eq!(restarts(&pod, "app-alone"), 0);
}

/// kubelet starts the pod's init containers and its native sidecar in the order of the manifest.
/// The containers whose order usher controls start afterwards.
pub fn native_init_containers_and_sidecars_work_beside_ushers(case: &Case) {
    let _webhook = Webhook::install(case.cluster);
    let mixed = job("mixed")
        .annotation("usher/sidecars", "ours")
        .init_container(witness("first", &["--run-for", "1s"]))
        .init_container(native(proxy("theirs")))
        .init_container(witness("second", &["--run-for", "1s"]))
        .container(proxy("ours"));
    case.create_job(&mixed, 0);
    await_complete(case, &["mixed"]);
    let record = case.record();
    for (earlier, later) in [
        (("first", "exit"), ("theirs", "start")),
        (("theirs", "ready"), ("second", "start")),
        (("second", "exit"), ("ours", "start")),
        (("ours", "ready"), ("app-mixed", "start")),
        (("app-mixed", "exit"), ("ours", "signal")),
        // kubelet stops native sidecars after all ordinary containers, and usher's sidecar is an
        // ordinary container for kubelet.
        (("ours", "exit"), ("theirs", "signal")),
    ] {
        record.assert_before(earlier, later);
    }
    let pod = only_pod_of(case, "mixed");
    let annotations = &pod["metadata"]["annotations"];
    assert_eq!(annotations["usher/native-init"], "first,theirs,second");
    assert_eq!(annotations["usher/apps"], "app-mixed");
    assert_eq!(exit_code(&pod, "ours"), Some(0));
}

/// The node's `config.toml`. The webhook gets a copy of it.
const ROLES: &str = "[roles]\nsidecars = ['*-mesh']\neverywhere = true\n";

pub fn a_proxy_in_the_nodes_roles_needs_no_annotation(case: &Case) {
    let config = NodeConfig::write(case);
    let mut injector = Injector::start(case);
    for (name, list, container) in [
        ("ordinary", "containers", proxy("ordinary-mesh")),
        ("native", "initContainers", native(proxy("native-mesh"))),
        ("unasked", "initContainers", native(proxy("unasked-mesh"))),
    ] {
        injector.inject(name, list, &container);
    }
    // usher's webhook is not installed yet, so the roles in the node's configuration apply to this
    // pod. By these roles, usher treats even a native sidecar as its own sidecar, and stops it.
    let unasked = job("unasked").spec("runtimeClassName", "usher");
    case.create_job(&unasked, 0);
    await_complete(case, &["unasked"]);
    assert_ordered(case, "app-unasked", "unasked-mesh");

    let webhook = Webhook::install(case.cluster);
    let from = format!("--from-file=config.toml={}", config.copy());
    webhook.kubectl(&["create", "configmap", "usher-config", &from]);
    webhook.kubectl(&["rollout", "restart", "deployment", "usher-webhook"]);
    webhook.await_rollout();
    let own = ["label", "namespace", &case.namespace, "usher/enabled=true"];
    case.cluster.must(&own);
    // The label takes effect a moment later.
    let plain = super::webhook::pod(json!({}));
    let completed = || {
        let mut pod = plain.clone();
        pod["metadata"]["namespace"] = case.namespace.as_str().into();
        let words = ["create", "--dry-run=server", "--output=json"];
        let finished = case.cluster.give(&words, &[pod]);
        finished.out().contains(r#""runtimeClassName": "usher""#)
    };
    eventually("the webhook completes pods", PATIENCE, completed);
    let names = ["ordinary", "native"];
    for name in names {
        case.create_job(&job(name), 0);
    }
    await_complete(case, &names);
    for name in names {
        assert_ordered(case, &format!("app-{name}"), &format!("{name}-mesh"));
        let pod = only_pod_of(case, name);
        assert_eq!(pod["spec"]["runtimeClassName"], "usher", "{pod:#}");
    }
}

const CONFIG: &str = "/etc/usher/config.toml";

/// The node's configuration file. Removed on drop.
struct NodeConfig<'a>(&'a Case<'a>);

impl<'a> NodeConfig<'a> {
    fn write(case: &'a Case<'a>) -> Self {
        let config = Self(case);
        fs::write(config.copy(), ROLES).expect("a file");
        config.on_node(&["install", "-D", "--mode=644", &config.copy(), CONFIG]);
        config
    }

    /// The path of a copy of the node's configuration file, in the cluster's directory.
    fn copy(&self) -> String {
        let file = self.0.cluster.path("tmp").join("config.toml");
        file.display().to_string()
    }

    fn on_node(&self, words: &[&str]) {
        let finished = run(self.0.cluster.on_node(words), PATIENCE);
        assert!(finished.ok(), "{words:?}: {}", finished.err());
    }
}

impl Drop for NodeConfig<'_> {
    fn drop(&mut self) {
        self.on_node(&["rm", "-f", CONFIG]);
    }
}
