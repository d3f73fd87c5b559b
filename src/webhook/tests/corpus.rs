//! Pods as injectors leave them (`integration/injected_pods`). When the webhook has completed such
//! a pod, `usher explain` and the shim must draw the same conclusions from it. `usher explain`
//! knows the spec. The shim only sees containers created one after another, and the annotations
//! that containerd passes on.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use usher_core::config;
use usher_core::manifest::{Json, Owner, Pod, pod_path};
use usher_core::plan::{Plan, Probe, Role, Rules, Stage};

use super::review::created_under;
use crate::admission::Webhook;

/// The nodes' configuration.
const NODE: &str = "[roles]\nsidecars = ['datadog-agent-*']\neverywhere = true\n";

/// The pods, as their controllers create them.
fn corpus() -> Vec<Value> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration/injected_pods");
    let files = fs::read_dir(directory).expect("the corpus");
    let files = files.map(|file| file.expect("a file").path());
    let manifests = files.filter(|file| file.extension().is_some_and(|it| it == "yaml"));
    let pods: Vec<Value> = manifests
        .map(|file| {
            let text = fs::read_to_string(&file).expect("a manifest");
            let object: Value = serde_saphyr::from_str(&text).expect("YAML");
            let path = pod_path(object["kind"].as_str().expect("a kind")).expect("it has pods");
            let mut pod = path.iter().fold(&object, |value, key| &value[*key]).clone();
            pod["apiVersion"] = "v1".into();
            pod["kind"] = "Pod".into();
            pod["metadata"]["name"] = object["metadata"]["name"].clone();
            pod
        })
        .collect();
    assert!(pods.len() >= 10);
    pods
}

/// Output of `usher explain` for a pod, from a process of its own.
fn explained(pod: &Value, config: &Path) -> Value {
    let this = std::env::current_exe().expect("this program");
    let mut child = Command::new(this)
        .args([
            "--exact",
            "tests::corpus::explain",
            "--ignored",
            "--nocapture",
        ])
        .env("CORPUS_CONFIG", config)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin
        .write_all(pod.to_string().as_bytes())
        .expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("a child");
    let text = String::from_utf8(output.stdout).expect("text");
    // The test harness prints its own lines before and after the document.
    let begin = text.find("\n{").expect("a document");
    let mut documents = serde_json::Deserializer::from_str(&text[begin..]).into_iter();
    let document: Value = documents.next().expect("a document").expect("JSON");
    assert_eq!(document["pods"].as_array().map(Vec::len), Some(1), "{text}");
    document["pods"][0].clone()
}

#[test]
#[ignore = "the command that the test beside it runs"]
fn explain() {
    let Some(config) = std::env::var_os("CORPUS_CONFIG") else {
        return;
    };
    println!();
    let words = ["usher", "explain", "-", "-o", "json", "--config"].map(Into::into);
    let _ = usher_cli::main(words.into_iter().chain([config]));
}

/// The shim's plan once all containers are created. containerd passes on the annotations that match
/// `usher/*` or `*.usher/*`, where `*` matches no slash.
fn plan_of_shim(pod: &Pod, rules: &Rules) -> Plan {
    let is_passed_on = |key: &str| {
        let parts: Vec<&str> = key.split('/').collect();
        matches!(parts[..], [prefix, _] if prefix == "usher" || prefix.ends_with(".usher"))
    };
    let annotations = pod.annotations.clone().into_iter();
    let annotations: BTreeMap<_, _> = annotations.filter(|(key, _)| is_passed_on(key)).collect();
    let mut plan = Plan::parse_under(&annotations, rules)
        .expect("a valid plan")
        .plan;
    for container in pod.all() {
        plan.mark_present(&container.name);
    }
    plan
}

fn waits_for(plan: &Plan, name: &str) -> Vec<String> {
    let stages = match (plan.role(name), plan.position(name)) {
        (_, Some(position)) => &plan.stages()[..position],
        (Role::App, None) => plan.stages(),
        _ => &[],
    };
    let names = stages.iter().flat_map(|Stage(names)| names.clone());
    names.collect()
}

/// A probe of the spec with Kubernetes' defaults: its kind, initial delay, period, timeout and
/// failure threshold.
fn probe_of_spec(probe: &Json) -> (&'static str, Duration, Duration, Duration, u64) {
    let probe = probe.value();
    let number = |field: &str, usual| probe[field].as_u64().unwrap_or(usual);
    let seconds = |field, usual| Duration::from_secs(number(field, usual));
    let kinds = ["exec", "httpGet", "tcpSocket", "grpc"];
    let kind = kinds.into_iter().find(|kind| !probe[*kind].is_null());
    (
        kind.expect("a kind"),
        seconds("initialDelaySeconds", 0),
        seconds("periodSeconds", 10),
        seconds("timeoutSeconds", 1),
        number("failureThreshold", 3),
    )
}

fn probe_of_shim(probe: &Probe) -> (&str, Duration, Duration, Duration, u64) {
    use usher_core::plan::Check::{Exec, Grpc, HttpGet, TcpSocket};
    let kind = match &probe.check {
        Exec { .. } => "exec",
        HttpGet(_) => "httpGet",
        TcpSocket { .. } => "tcpSocket",
        Grpc { .. } => "grpc",
    };
    let failures = u64::from(probe.failure_threshold);
    (
        kind,
        probe.initial_delay,
        probe.period,
        probe.timeout,
        failures,
    )
}

/// Asserts that `explained` and `plan` have the same roles and the same order, and that `explained`
/// has no other containers than the pod.
fn assert_same_order(explained: &Value, plan: &Plan, pod: &Pod) {
    let entries = explained["start"].as_array().expect("a start plan");
    assert_eq!(entries.len(), pod.all().count(), "{explained:#}");
    let mut steps: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for container in pod.all() {
        let name = container.name.as_str();
        let entry = entries.iter().find(|entry| entry["container"] == name);
        let entry = entry.unwrap_or_else(|| panic!("{name}: {explained:#}"));
        assert_eq!(entry["role"], plan.role(name).to_string(), "{entry:#}");
        assert_eq!(entry["waitsFor"], json!(waits_for(plan, name)), "{entry:#}");
        assert_eq!(entry["optional"], false, "{entry:#}");
        let has_liveness = plan.container(name).liveness_probe.is_some();
        assert_eq!(!entry["liveness"].is_null(), has_liveness, "{entry:#}");
        if plan.position(name).is_some() {
            let step = entry["step"].as_u64().expect("a step");
            steps.entry(step).or_default().push(name.to_owned());
        }
    }
    let sorted = |mut names: Vec<String>| {
        names.sort();
        names
    };
    let steps: Vec<_> = steps.into_values().map(sorted).collect();
    let stages = plan.stages().iter();
    let stages: Vec<_> = stages.map(|Stage(names)| sorted(names.clone())).collect();
    assert_eq!(steps, stages);
}

/// Asserts that the shim gets the same probes and resources as the spec had before the webhook's
/// changes.
fn assert_same_probes_and_resources(before: &Pod, plan: &Plan, after: &Pod) {
    for container in before.all() {
        let name = container.name.as_str();
        let read = plan.container(name);
        let is_sidecar = plan.role(name) == Role::Sidecar;
        let startup = container.startup_probe.as_ref().filter(|_| is_sidecar);
        assert_eq!(
            read.startup_probe.as_ref().map(probe_of_shim),
            startup.map(probe_of_spec),
            "{name}"
        );
        // Either usher or kubelet runs the liveness probe, never both.
        let left = after
            .container(name)
            .and_then(|it| it.liveness_probe.as_ref());
        assert!(left.is_none() || read.liveness_probe.is_none(), "{name}");
        let liveness = read.liveness_probe.as_ref().map(probe_of_shim);
        assert_eq!(
            liveness.or(left.map(probe_of_spec)),
            container.liveness_probe.as_ref().map(probe_of_spec),
            "{name}"
        );
        assert_eq!(read.resources, container.resources, "{name}");
    }
}

/// Asserts that the shim expects a restart for exactly the exit codes after which kubelet restarts.
fn assert_same_restarts(pod: &Pod, plan: &Plan) {
    let of_pod = pod.restart_policy().expect("a policy");
    for container in pod.all() {
        let name = container.name.as_str();
        let is_native_sidecar = pod.has_init_container(name) && container.is_native_sidecar();
        if is_native_sidecar
            || !matches!(plan.role(name), Role::App | Role::Init | Role::NativeInit)
        {
            continue;
        }
        let policy = container.restart_policy().unwrap_or(of_pod);
        for code in 0..=255 {
            let is_created_again =
                policy.restarts(code) || container.restart_codes().contains(code);
            assert_eq!(
                plan.is_created_again(name, code),
                is_created_again,
                "{name} {code}"
            );
        }
    }
}

#[test]
fn explain_and_the_shim_read_the_webhooks_annotations_alike() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("config.toml");
    fs::write(&config, NODE).expect("a file");
    let rules = config::parse(NODE).expect("rules");
    for before in corpus() {
        let reply = created_under(&rules, Webhook::MutateNamespace, &before);
        assert_eq!(reply.refused, None);
        let after = reply.object;
        let again = created_under(&rules, Webhook::MutateNamespace, &after);
        assert!(!again.is_changed, "{after:#}");
        let validated = created_under(&rules, Webhook::Validate, &after);
        assert_eq!(validated.refused, None);

        let owner = Owner {
            kind: "Pod".to_owned(),
            name: before["metadata"]["name"]
                .as_str()
                .expect("a name")
                .to_owned(),
            namespace: None,
        };
        let read = |pod| Pod::read(&owner, pod).expect("a pod");
        let (before, pod) = (read(&before), read(&after));
        let plan = plan_of_shim(&pod, &rules);
        let explained = explained(&after, &config);
        assert_eq!(explained["refused"], Value::Null, "{explained:#}");
        assert_eq!(explained["name"], owner.name.as_str());
        assert_same_order(&explained, &plan, &pod);
        assert_same_probes_and_resources(&before, &plan, &pod);
        assert_same_restarts(&pod, &plan);
        assert_eq!(Some(plan.settings().restart_policy), pod.restart_policy());
        let warnings = explained["warnings"].as_array().expect("a list");
        let warnings: Vec<&str> = warnings
            .iter()
            .filter_map(|it| it["says"].as_str())
            .collect();
        for says in &warnings {
            assert!(!says.contains("differs from"), "{says}");
            // The webhook has returned each of these warnings, too.
            let told = reply.warnings.iter().any(|it| it.ends_with(says));
            assert!(told, "{says}: {:?}", reply.warnings);
        }
    }
}
