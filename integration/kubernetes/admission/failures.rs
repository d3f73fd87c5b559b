//! Failures of the webhook, and their effect on pods.

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Value, json};

use super::webhook::{CONFIGURATIONS, NAME, SEEN_WITHIN, Webhook, dry_run, pod, wrong};
use crate::cluster::PATIENCE;
use crate::harness::{eventually, poll, run};
use crate::pod::{Case, Pod, restarts, witness};

/// A pod in the webhook's own namespace. This namespace requires the security context.
fn own_pod() -> Value {
    let mut own = pod(json!({ "usher/sidecars": "proxy" }));
    own["metadata"]["namespace"] = NAME.into();
    for container in own["spec"]["containers"].as_array_mut().expect("a list") {
        container["securityContext"] = json!({
            "runAsNonRoot": true, "allowPrivilegeEscalation": false,
            "capabilities": { "drop": ["ALL"] }, "seccompProfile": { "type": "RuntimeDefault" },
        });
    }
    own
}

pub fn while_the_webhook_is_down_only_pods_that_need_it_wait(case: &Case) {
    let webhook = Webhook::install(case.cluster);
    let annotated = pod(json!({ "usher/sidecars": "proxy" }));
    assert!(dry_run(case.cluster, &annotated).ok());
    webhook.shut_down();
    let said = dry_run(case.cluster, &annotated);
    let why = "failed calling webhook";
    assert!(said.err().contains(why), "{}", said.err());
    let plain = dry_run(case.cluster, &pod(json!({})));
    assert!(plain.ok(), "{}", plain.err());
    // In a namespace labeled for the webhook, the API server refuses every pod while the webhook is
    // down.
    let namespace = ["label", "namespace", case.namespace.as_str()];
    let labeled = |label: &str| {
        case.cluster.must(&[&namespace[..], &[label]].concat());
        let mut plain = pod(json!({}));
        plain["metadata"]["namespace"] = case.namespace.as_str().into();
        // The label takes effect a moment later.
        move || dry_run(case.cluster, &plain)
    };
    let plain = labeled("usher/enabled=true");
    eventually("the API server refuses the pod", PATIENCE, || {
        plain().err().contains(why)
    });
    // Pods of the webhook's own namespace are created without the webhook, whatever their
    // annotations. So the webhook itself can start.
    let said = dry_run(case.cluster, &own_pod());
    assert!(said.ok(), "{}", said.err());

    // Under the policy `Ignore`, the API server creates pods unchanged while the webhook is down.
    webhook.set_failure_policy("Ignore");
    let as_written = || dry_run(case.cluster, &annotated).ok() && plain().ok();
    eventually("nothing waits", PATIENCE, as_written);
    webhook.set_failure_policy("Fail");
    let waits = || !dry_run(case.cluster, &annotated).ok();
    eventually("the API server refuses the pod again", PATIENCE, waits);

    webhook.scale(2);
    webhook.await_rollout();
    webhook.await_answers();
    assert!(dry_run(case.cluster, &annotated).ok());
    assert!(plain().ok());
}

/// Number of pods in a batch. While batches are created, a replica of the webhook is killed.
const LOAD: usize = 30;
/// Number of pods of a batch that may still be missing when the next batch begins.
const BEING_CREATED: usize = 20;

pub fn replicas_are_killed_in_turn_while_pods_are_created(case: &Case) {
    let webhook = Webhook::install(case.cluster);
    // No scheduler takes these pods, because only their creation is tested.
    let load = Pod::new("load")
        .annotation("usher/sidecars", "proxy")
        .container(witness("proxy", &[]))
        .container(witness("app", &[]))
        .spec("schedulerName", "none")
        .spec("runtimeClassName", Value::Null);
    case.create_deployment(&load);
    let count = || case.pods_of("load").len();
    let replicas = webhook.pods();
    assert_eq!(replicas.len(), 2);
    let mut tries = 0;
    let mut wanted = 0;
    let mut create_more = |not_awaited: usize| {
        wanted += LOAD;
        let scale = format!("--replicas={wanted}");
        case.kubectl(&["scale", "deployment", "load", &scale]);
        eventually("the pods are created", PATIENCE, || {
            // After each refused pod, the ReplicaSet's controller waits twice as long, in the end
            // for minutes. When the ReplicaSet changes, the controller tries again at once.
            tries += 1;
            let change = format!("tries={tries}");
            case.kubectl(&["annotate", "--overwrite", "replicasets", "--all", &change]);
            count() + not_awaited >= wanted
        });
    };
    for replica in &replicas {
        // Create pods before, during and after the kill, however long the kill takes.
        create_more(BEING_CREATED);
        std::thread::scope(|scope| {
            let kill = scope.spawn(|| webhook.kill(replica));
            while !kill.is_finished() {
                create_more(BEING_CREATED);
            }
        });
        create_more(0);
        let name = replica["metadata"]["name"].as_str();
        let is_back = || {
            let pods = webhook.pods();
            let same = pods
                .iter()
                .find(|it| it["metadata"]["name"].as_str() == name);
            same.is_some_and(|it| restarts(it, "webhook") == 1)
        };
        eventually("the webhook runs again", PATIENCE, is_back);
        webhook.await_rollout();
    }
    for pod in case.pods_of("load") {
        assert_eq!(pod["spec"]["runtimeClassName"], "usher", "{pod:#}");
        assert_eq!(
            pod["metadata"]["annotations"]["usher/apps"], "app",
            "{pod:#}"
        );
    }
}

/// During a rollout every single request is answered, because a replica exits only after all API
/// servers have noticed that it stops.
pub fn a_rollout_of_the_webhook_refuses_no_pod(case: &Case) {
    let webhook = Webhook::install(case.cluster);
    let annotated = pod(json!({ "usher/sidecars": "proxy" }));
    let before: Vec<Value> = webhook.pods();
    webhook.kubectl(&["rollout", "restart", "deployment", NAME]);
    let mut asked = 0;
    let is_over = || {
        let said = dry_run(case.cluster, &annotated);
        assert!(said.ok(), "after {asked}: {}", said.err());
        asked += 1;
        let name = |pod: &Value| pod["metadata"]["name"].as_str().map(str::to_owned);
        let now: Vec<_> = webhook.pods().iter().map(name).collect();
        let is_new = now.len() == 2 && !before.iter().any(|pod| now.contains(&name(pod)));
        is_new.then_some(())
    };
    assert!(poll(PATIENCE, is_over).is_some(), "{}", webhook.diagnosis());
}

fn certificate_of_secret(webhook: &Webhook, name: &str) -> Value {
    let text = webhook.kubectl(&["get", "secret", name, "--output", "json"]);
    let secret: Value = serde_json::from_str(&text).expect("JSON");
    secret["data"]["tls.crt"].clone()
}

/// The number of certificates that each replica has begun to serve since its start.
pub fn taken(webhook: &Webhook) -> BTreeMap<String, usize> {
    let mut taken = BTreeMap::new();
    for line in webhook.log().lines() {
        if line.contains("serving a new certificate") {
            let pod = line.split(' ').next().unwrap_or_default();
            *taken.entry(pod.to_owned()).or_default() += 1;
        }
    }
    taken
}

/// Requests a pod that only the webhook refuses, so its refusal shows that it answers.
#[track_caller]
pub fn assert_answers(webhook: &Webhook) {
    assert!(webhook.refuses(&wrong()), "{}", webhook.diagnosis());
}

/// Waits until each replica serves a new certificate. Meanwhile every request must be answered.
pub fn await_renewal(webhook: &Webhook, before: &BTreeMap<String, usize>) {
    let is_renewed = || {
        assert_answers(webhook);
        let now = taken(webhook);
        let has_another = |(pod, times): (&String, &usize)| now.get(pod) > Some(times);
        before.iter().all(has_another).then_some(())
    };
    assert!(poll(SEEN_WITHIN, is_renewed).is_some(), "{}", webhook.log());
    for _ in 0..10 {
        assert_answers(webhook);
    }
}

pub fn the_webhooks_certificate_is_renewed_while_pods_are_created(case: &Case) {
    let webhook = Webhook::install(case.cluster);
    let both = || Some(taken(&webhook)).filter(|all| all.len() == 2);
    let before = poll(PATIENCE, both).expect("both have one");
    let old = certificate_of_secret(&webhook, NAME);
    // The webhook checks the Secret periodically. The next check notices that the certificate is
    // missing, and makes one. The check after that begins to use it.
    webhook.kubectl(&["patch", "secret", NAME, "--patch", r#"{"data": null}"#]);
    await_renewal(&webhook, &before);
    let new = certificate_of_secret(&webhook, NAME);
    assert!(!new.is_null() && new != old);
}

const CERT_MANAGER: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/scripts/kubernetes/cert-manager"
);

/// A script in place of cert-manager. It makes an authority, and certificates that the authority
/// has signed, by openssl.
const ISSUE: &str = r#"
set -e
cd "$1" && host=$2 secret=$3
new() { openssl req -newkey rsa:2048 -nodes -keyout "$1.key" -subj "/CN=$2" "${@:3}" 2>/dev/null; }
[ -e ca.crt ] || new ca authority -x509 -days 30 -out ca.crt
new tls "$host" -out tls.csr
printf 'subjectAltName=DNS:%s' "$host" >names
openssl x509 -req -in tls.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 1 -extfile names \
    -out tls.crt 2>/dev/null
kubectl --namespace usher-webhook create secret generic "$secret" --type=kubernetes.io/tls \
    --from-file=tls.crt --from-file=tls.key --from-file=ca.crt --dry-run=client --output=yaml |
    kubectl apply --filename -
"#;

/// Values in the manifest that tell cert-manager what to issue.
struct Wanted {
    host: String,
    secret: String,
}

fn issue(webhook: &Webhook, wanted: &Wanted) {
    let directory = webhook.cluster.path("certificates");
    fs::create_dir_all(&directory).expect("a directory");
    let directory = directory.display().to_string();
    let words = ["bash", "-c", ISSUE, "bash", &directory];
    let words = [&words[..], &[&wanted.host, &wanted.secret]].concat();
    let finished = run(webhook.cluster.on_machine(&words), PATIENCE);
    assert!(finished.ok(), "{}", finished.err());
}

/// Writes the certificate authority into the webhook's configurations, as cert-manager does. Each
/// configuration has an annotation that requests this.
fn inject_authority(webhook: &Webhook, wanted: &Wanted) {
    let text = webhook.kubectl(&["get", "secret", &wanted.secret, "--output", "json"]);
    let secret: Value = serde_json::from_str(&text).expect("JSON");
    for kind in CONFIGURATIONS {
        let configuration = webhook.cluster.get(kind, NAME).expect("a configuration");
        let asked = &configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"];
        assert_eq!(asked, "usher-webhook/usher-webhook");
        let add = |index: usize| {
            let path = format!("/webhooks/{index}/clientConfig/caBundle");
            json!({ "op": "add", "path": path, "value": secret["data"]["ca.crt"] })
        };
        let change = json!([add(0), add(1)]).to_string();
        webhook.kubectl(&["patch", kind, NAME, "--type=json", "--patch", &change]);
    }
}

/// Returns the manifest that a user applies with the commands in the kustomization's first comment.
pub fn kustomized(webhook: &Webhook) -> String {
    let directory = webhook.cluster.path("tmp/cert-manager");
    fs::create_dir_all(&directory).expect("a directory");
    for entry in fs::read_dir(CERT_MANAGER).expect("the kustomization") {
        let file = entry.expect("a file");
        fs::copy(file.path(), directory.join(file.file_name())).expect("a copy");
    }
    let manifest = webhook.cluster.path("tmp/webhook.yaml");
    fs::copy(manifest, directory.join("webhook.yaml")).expect("a copy");
    let directory = directory.display().to_string();
    webhook.cluster.must(&["kustomize", &directory])
}

/// Applies the kustomization without the objects for cert-manager.
fn apply_kustomization(webhook: &Webhook) -> Wanted {
    let text = kustomized(webhook);
    let (theirs, ours): (Vec<&str>, Vec<&str>) = text
        .split("\n---\n")
        .partition(|document| document.contains("apiVersion: cert-manager.io/"));
    let file = webhook.cluster.path("tmp/kustomized.yaml");
    fs::write(&file, ours.join("\n---\n")).expect("a file");
    let file = file.display().to_string();
    webhook.cluster.must(&["apply", "--filename", &file]);
    let certificate = theirs.iter().find(|it| it.contains("dnsNames:"));
    let certificate = certificate.expect("a certificate for a name");
    let field = |before: &str| {
        let (_, rest) = certificate.split_once(before).expect(before);
        rest.split_whitespace().next().expect(before).to_owned()
    };
    Wanted {
        host: field("dnsNames:\n  - "),
        secret: field("secretName: "),
    }
}

pub fn a_certificate_by_cert_manager_is_served_and_renewed(case: &Case) {
    let webhook = Webhook::prepare(case.cluster);
    let wanted = apply_kustomization(&webhook);
    // The webhook's pods cannot start before the Secret exists, as with a real cert-manager.
    issue(&webhook, &wanted);
    inject_authority(&webhook, &wanted);
    webhook.await_rollout();
    webhook.await_answers();
    // With cert-manager the webhook needs no access to the API.
    let account = format!("--as=system:serviceaccount:{NAME}:{NAME}");
    let may = |words: &[&str]| {
        let all = [&["auth", "can-i", &account, "--namespace", NAME], words].concat();
        webhook.cluster.kubectl(&all).ok()
    };
    assert!(!may(&["get", &format!("secret/{NAME}")]));
    assert!(!may(&[
        "get",
        &format!("mutatingwebhookconfigurations/{NAME}")
    ]));
    let mount = "/var/run/secrets/kubernetes.io/serviceaccount";
    for pod in webhook.pods() {
        assert!(!pod.to_string().contains(mount), "{pod:#}");
    }
    let before = taken(&webhook);
    assert_eq!(before.len(), 2, "{}", webhook.log());
    issue(&webhook, &wanted);
    await_renewal(&webhook, &before);
}
