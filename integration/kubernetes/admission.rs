//! The admission webhook, asked by a real API server.
//!
//! There is no registry and no proxy for Services here: so the program runs beside the API server, which
//! finds it by the Service's name, with the account that `scripts/kubernetes/webhook.yaml` gives it.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::{Cluster, PATIENCE};
use crate::harness::{Finished, poll, shim_dir};
use crate::machine::with_us;
use crate::pod::{Case, Pod, exit_code, with, witness};

const HOST: &str = "usher-webhook.usher-webhook.svc";
const NAME: &str = "usher-webhook";
const MANIFEST: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/scripts/kubernetes/webhook.yaml"
);

/// The webhook with all that belongs to it; it is gone when this is.
struct Webhook<'a> {
    cluster: &'a Cluster,
    program: Option<Child>,
}

impl<'a> Webhook<'a> {
    fn install(cluster: &'a Cluster) -> Self {
        let known = format!("grep -q {HOST} /etc/hosts || echo 127.0.0.1 {HOST} >>/etc/hosts");
        let named = cluster.on_machine(&["sh", "-c", &known]).status();
        assert!(named.expect("sh").success(), "/etc/hosts");
        cluster.apply(&objects(cluster));
        let mut webhook = Self {
            cluster,
            program: None,
        };
        webhook.start();
        webhook
    }

    /// Starts the program, and waits until the API server believes it.
    fn start(&mut self) {
        let account = ["create", "token", NAME, "--namespace", NAME];
        let token = self.cluster.must(&account);
        let config = self.cluster.path("etc/webhook.conf");
        let text = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "c", "cluster": {
                "server": "https://127.0.0.1", "insecure-skip-tls-verify": true,
            }}],
            "users": [{ "name": "u", "user": { "token": token.trim() } }],
            "contexts": [{ "name": "x", "context": { "cluster": "c", "user": "u", "namespace": NAME } }],
            "current-context": "x",
        });
        fs::write(&config, text.to_string()).expect("a setting");
        let program = shim_dir().join("usher-webhook").display().to_string();
        // Who enters the machine's namespaces is not the program, but its parent.
        let script = "echo $$ >\"$1\"; shift; exec \"$@\"";
        let pid = self.pid_file().display().to_string();
        let words = ["sh", "-c", script, "sh", &pid, &program];
        let options = ["--health", "127.0.0.1:8081", "--drain", "1"];
        let mut command = self.cluster.on_machine(&[&words[..], &options].concat());
        command.env("KUBECONFIG", config).stdin(Stdio::null());
        command.stdout(self.cluster.log("webhook"));
        command.stderr(self.cluster.log("webhook"));
        with_us(&mut command);
        self.program = Some(command.spawn().expect("nsenter"));
        let answers = || self.refuses(&wrong()).then_some(());
        let tail = || self.cluster.log_tail("webhook", 20);
        assert!(
            poll(PATIENCE, answers).is_some(),
            "it is not asked:\n{}",
            tail()
        );
    }

    /// Whether an object is refused by it, and not for another reason. Nothing is created.
    fn refuses(&self, object: &Value) -> bool {
        let said = dry_run(self.cluster, object);
        !said.ok() && said.err().contains("denied the request")
    }

    fn pid_file(&self) -> PathBuf {
        self.cluster.path("webhook.pid")
    }

    /// Kills it, as when its node dies.
    fn kill(&mut self) {
        let Some(mut program) = self.program.take() else {
            return;
        };
        let pid = fs::read_to_string(self.pid_file()).unwrap_or_default();
        let mut command = self.cluster.on_machine(&["kill", "-KILL", pid.trim()]);
        let _ = command.status();
        let _ = program.wait();
    }
}

impl Drop for Webhook<'_> {
    fn drop(&mut self) {
        self.kill();
        for kind in [
            "mutatingwebhookconfiguration",
            "validatingwebhookconfiguration",
        ] {
            self.cluster.kubectl(&["delete", kind, NAME]);
        }
    }
}

/// Those of the manifest that have a use here, with the address by which the program is found.
fn objects(cluster: &Cluster) -> Vec<Value> {
    let words = [
        "create",
        "--dry-run=client",
        "--output=json",
        "--filename",
        MANIFEST,
    ];
    let text = cluster.must(&words);
    let documents = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
    let documents = documents.map(|it| it.expect("JSON"));
    let mut all: Vec<Value> = documents
        .flat_map(|it| match it["items"].as_array() {
            Some(items) => items.clone(),
            None => vec![it],
        })
        .filter(|it| it["kind"] != "Deployment")
        .collect();
    for object in &mut all {
        for webhook in object["webhooks"].as_array_mut().into_iter().flatten() {
            let client = &mut webhook["clientConfig"];
            let path = client["service"]["path"].as_str().expect("a path");
            *client = json!({ "url": format!("https://{HOST}:8443{path}") });
        }
    }
    all
}

fn dry_run(cluster: &Cluster, object: &Value) -> Finished {
    let file = cluster.path("tmp/dry-run.json");
    fs::write(&file, object.to_string()).expect("a file");
    let file = file.display().to_string();
    cluster.kubectl(&["create", "--dry-run=server", "--filename", &file])
}

/// A pod of the default namespace, with these annotations.
fn pod(annotations: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "generateName": "pod-", "namespace": "default", "annotations": annotations },
        "spec": { "containers": [{ "name": "proxy", "image": "x" }, { "name": "app", "image": "x" }] },
    })
}

fn wrong() -> Value {
    pod(json!({ "usher/sidecars": "proxy, proxy" }))
}

/// What its author has to write, and no more; and what the spec of any pod says.
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

pub fn a_job_with_one_annotation_behaves_as_with_all(case: &Case) {
    let _webhook = Webhook::install(case.cluster);
    case.create_job(&job(), 0);
    case.kubectl(&[
        "wait",
        "--for=condition=complete",
        "--timeout=3m",
        "job/job",
    ]);
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

pub fn what_the_shim_would_refuse_is_refused_when_it_is_applied(case: &Case) {
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
    let said = dry_run(webhook.cluster, &self::pod(namespaced));
    assert!(said.ok(), "{}", said.err());
    assert!(said.err().contains("Warning: later: "), "{}", said.err());
}

pub fn while_it_is_down_only_pods_that_need_it_wait(case: &Case) {
    let mut webhook = Webhook::install(case.cluster);
    let annotated = pod(json!({ "usher/sidecars": "proxy" }));
    assert!(dry_run(case.cluster, &annotated).ok());
    webhook.kill();
    let said = dry_run(case.cluster, &annotated);
    assert!(
        said.err().contains("failed calling webhook"),
        "{}",
        said.err()
    );
    let plain = dry_run(case.cluster, &pod(json!({})));
    assert!(plain.ok(), "{}", plain.err());
    // Its own namespace has no need of it, whatever its pods say.
    let mut own = annotated.clone();
    own["metadata"]["namespace"] = NAME.into();
    for container in own["spec"]["containers"].as_array_mut().expect("a list") {
        container["securityContext"] = json!({
            "runAsNonRoot": true, "allowPrivilegeEscalation": false,
            "capabilities": { "drop": ["ALL"] }, "seccompProfile": { "type": "RuntimeDefault" },
        });
    }
    let said = dry_run(case.cluster, &own);
    assert!(said.ok(), "{}", said.err());
    webhook.start();
    assert!(dry_run(case.cluster, &annotated).ok());
}

pub fn its_certificate_is_renewed_while_pods_are_created(case: &Case) {
    let webhook = Webhook::install(case.cluster);
    let secret = || {
        let words = [
            "get",
            "secret",
            NAME,
            "--namespace",
            NAME,
            "--output",
            "json",
        ];
        let secret: Value = serde_json::from_str(&webhook.cluster.must(&words)).expect("JSON");
        secret["data"]["tls.crt"].clone()
    };
    // The log has what cases before this one did, too.
    let taken = || {
        let log = case.cluster.log_tail("webhook", usize::MAX);
        log.matches("is served from now on").count()
    };
    let (old, before) = (secret(), taken());
    let empty = [
        "patch",
        "secret",
        NAME,
        "--namespace",
        NAME,
        "--patch",
        r#"{"data": null}"#,
    ];
    webhook.cluster.must(&empty);
    // Made at its next look, used at the one after that.
    let renewed = || {
        assert!(
            webhook.refuses(&wrong()),
            "{}",
            case.cluster.log_tail("webhook", 20)
        );
        (taken() > before).then_some(())
    };
    assert!(poll(Duration::from_secs(120), renewed).is_some());
    assert!(!secret().is_null() && secret() != old);
    for _ in 0..20 {
        assert!(webhook.refuses(&wrong()));
    }
}

pub fn it_has_no_right_that_it_does_not_need(case: &Case) {
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
