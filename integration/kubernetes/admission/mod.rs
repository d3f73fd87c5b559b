//! The admission webhook, called by a real API server. Its image, replicas, account and certificate
//! are as `scripts/kubernetes/webhook.yaml` says.

mod failures;
mod injector;
mod proxies;
mod webhook;

use serde_json::{Value, json};

use crate::pod::{Case, Pod, exit_code, with, witness};

pub use failures::*;
pub use proxies::*;
pub use webhook::{NAME, Webhook};
use webhook::{dry_run, wrong};

/// A Job's pod with the only annotation that its author has to write.
fn job() -> Pod {
    let probe = json!({
        "exec": { "command": ["test", "-e", "/shared/ready-proxy"] },
        "periodSeconds": 1, "failureThreshold": 120, "timeoutSeconds": 30,
    });
    let proxy = witness("proxy", &["--ready-after", "2s", "--exit", "143"]);
    let first = witness("first", &["--run-for", "1s"]);
    Pod::new("job")
        .annotation("usher/sidecars", "pro*, logs?")
        .init_container(first)
        .container(with(proxy, json!({ "startupProbe": probe })))
        .container(witness("app", &["--run-for", "2s"]))
        .spec("restartPolicy", "Never")
        .spec("runtimeClassName", Value::Null)
}

pub fn a_job_with_one_annotation_behaves_as_with_all_annotations(case: &Case) {
    let _webhook = Webhook::install(case.cluster);
    case.create_job(&job(), 0);
    case.await_job("job", "complete");
    let record = case.record();
    record.assert_before(("first", "exit"), ("proxy", "start"));
    record.assert_before(("proxy", "ready"), ("app", "start"));
    record.assert_before(("app", "exit"), ("proxy", "signal"));
    let pods = case.pods_of("job");
    assert_eq!(pods.len(), 1);
    assert_eq!(pods[0]["spec"]["runtimeClassName"], "usher");
    assert_eq!(exit_code(&pods[0], "proxy"), Some(0));
    let annotations = &pods[0]["metadata"]["annotations"];
    for (key, value) in [
        ("usher/sidecars", "proxy"),
        ("usher/apps", "app"),
        ("usher/native-init", "first"),
        ("usher/restart-policy", "Never"),
    ] {
        assert_eq!(annotations[key], value, "{annotations:#}");
    }
}

pub fn objects_that_the_shim_would_refuse_are_refused_by_the_api_server(case: &Case) {
    let webhook = Webhook::install(case.cluster);
    let pod = wrong();
    let template = json!({
        "metadata": { "annotations": pod["metadata"]["annotations"], "labels": { "app": "x" } },
        "spec": pod["spec"],
    });
    let sentence = r#"usher/sidecars: "proxy, proxy""#;
    let object = |api: &str, kind: &str, spec: Value| {
        json!({
            "apiVersion": api, "kind": kind, "spec": spec,
            "metadata": { "name": "x", "namespace": "default" },
        })
    };
    let selector = json!({ "matchLabels": { "app": "x" } });
    let mut job = template.clone();
    job["spec"]["restartPolicy"] = "Never".into();
    let job = json!({ "template": job });
    let apps = json!({ "selector": selector, "template": template, "serviceName": "x" });
    let mut plain = apps.clone();
    plain
        .as_object_mut()
        .expect("an object")
        .remove("serviceName");
    for refused in [
        pod,
        object("apps/v1", "Deployment", plain.clone()),
        object("apps/v1", "ReplicaSet", plain.clone()),
        object("apps/v1", "DaemonSet", plain),
        object("apps/v1", "StatefulSet", apps),
        object("batch/v1", "Job", job.clone()),
        object(
            "batch/v1",
            "CronJob",
            json!({
                "schedule": "* * * * *", "jobTemplate": { "spec": job },
            }),
        ),
        object(
            "v1",
            "ReplicationController",
            json!({ "template": template }),
        ),
    ] {
        let said = dry_run(webhook.cluster, &refused);
        assert!(!said.ok(), "{refused:#}");
        assert!(said.err().contains(sentence), "{}", said.err());
    }
    let namespaced = json!({ "usher/sidecars": "proxy, later" });
    let said = dry_run(webhook.cluster, &webhook::pod(namespaced));
    assert!(said.ok(), "{}", said.err());
    assert!(said.err().contains("Warning: later: "), "{}", said.err());
}

pub fn the_webhook_has_only_the_permissions_that_it_needs(case: &Case) {
    let webhook = Webhook::install(case.cluster);
    let account = format!("--as=system:serviceaccount:{NAME}:{NAME}");
    let may = |words: &[&str]| {
        let all = [&["auth", "can-i", &account], words].concat();
        webhook.cluster.kubectl(&all).ok()
    };
    let own = format!("secret/{NAME}");
    assert!(may(&["update", &own, "--namespace", NAME]));
    assert!(!may(&["get", "secret/other", "--namespace", NAME]));
    assert!(!may(&["list", "secrets", "--namespace", NAME]));
    assert!(!may(&["create", "secrets", "--namespace", NAME]));
    assert!(!may(&["get", &own, "--namespace", "default"]));
    assert!(!may(&["get", "pods", "--namespace", NAME]));
    assert!(!may(&["get", "nodes"]));
    for kind in [
        "mutatingwebhookconfigurations",
        "validatingwebhookconfigurations",
    ] {
        assert!(may(&["update", &format!("{kind}/{NAME}")]));
        assert!(!may(&["update", &format!("{kind}/other")]));
        assert!(!may(&["create", kind]));
        assert!(!may(&["delete", &format!("{kind}/{NAME}")]));
    }
}
