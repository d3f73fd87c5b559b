//! cert-manager, built from its sources, issues the certificate of our webhook.

use serde_json::{Value, json};

use crate::admission::{NAME, Webhook, assert_answers, await_renewal, kustomized, taken};
use crate::cluster::{Cluster, PATIENCE};
use crate::harness::poll;
use crate::pod::Case;

use super::{PROGRAMS, apply, await_rollout, directory};

const NAMESPACE: &str = "cert-manager";

/// cert-manager on the cluster. Removed on drop.
///
/// The project publishes its manifests, except the custom resource definitions, as a Helm chart. In
/// place of the chart, the test creates objects that have all rights, because the tests are not
/// about rights.
pub struct CertManager<'a> {
    cluster: &'a Cluster,
}

impl<'a> CertManager<'a> {
    pub fn install(cluster: &'a Cluster) -> Self {
        let definitions = directory("cert-manager")
            .join("manifests")
            .display()
            .to_string();
        cluster.must(&["apply", "--server-side", "--filename", &definitions]);
        for kind in ["issuers", "certificates"] {
            let definition = format!("crd/{kind}.cert-manager.io");
            cluster.must(&["wait", "--for=condition=Established", &definition]);
        }
        cluster.apply(&objects());
        let installed = Self { cluster };
        for program in ["controller", "cainjector"] {
            await_rollout(cluster, NAMESPACE, program);
        }
        installed
    }
}

impl Drop for CertManager<'_> {
    fn drop(&mut self) {
        for (kind, name) in [("namespace", NAMESPACE), ("clusterrolebinding", NAMESPACE)] {
            self.cluster
                .kubectl(&["delete", "--ignore-not-found", "--wait=false", kind, name]);
        }
    }
}

fn objects() -> Vec<Value> {
    let in_namespace = |name: &str| json!({ "name": name, "namespace": NAMESPACE });
    let deployment = |program: &str, options: &[&str]| {
        let labels = json!({ "app": program });
        let mut command = vec![format!("/bin/{program}")];
        command.extend(options.iter().map(|&option| option.to_owned()));
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": in_namespace(program),
            "spec": {
                "selector": { "matchLabels": labels },
                "template": {
                    "metadata": { "labels": labels },
                    "spec": {
                        "serviceAccountName": NAMESPACE,
                        "terminationGracePeriodSeconds": 5,
                        "containers": [{
                            "name": program, "image": PROGRAMS, "command": command,
                            "env": [{ "name": "POD_NAMESPACE", "value": NAMESPACE }],
                        }],
                    },
                },
            },
        })
    };
    vec![
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } }),
        json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": in_namespace(NAMESPACE),
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": { "name": NAMESPACE },
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                "name": "cluster-admin",
            },
            "subjects": [{
                "kind": "ServiceAccount", "name": NAMESPACE, "namespace": NAMESPACE,
            }],
        }),
        deployment(
            "controller",
            &[
                "--leader-elect=false",
                "--cluster-resource-namespace=cert-manager",
            ],
        ),
        deployment("cainjector", &["--leader-elect=false"]),
    ]
}

/// Requests a new certificate, as `cmctl renew` does. Meanwhile the webhook must answer every request.
fn renew(webhook: &Webhook, certificate: &str) {
    let of = |webhook: &Webhook| {
        let words = ["get", "certificate", certificate, "--output", "json"];
        let found: Value = serde_json::from_str(&webhook.kubectl(&words)).expect("JSON");
        found["status"]["revision"].as_u64()
    };
    let before = of(webhook);
    let issuing = json!([{
        "op": "add", "path": "/status/conditions/-",
        "value": {
            "type": "Issuing", "status": "True", "reason": "ManuallyTriggered",
            "message": "renewed by a test", "lastTransitionTime": "2026-01-01T00:00:00Z",
        },
    }]);
    let words = [
        "patch",
        "certificate",
        certificate,
        "--subresource=status",
        "--type=json",
    ];
    webhook.kubectl(&[&words[..], &["--patch", &issuing.to_string()]].concat());
    let is_renewed = || {
        assert_answers(webhook);
        (of(webhook) > before).then_some(())
    };
    assert!(
        poll(PATIENCE, is_renewed).is_some(),
        "{certificate} is not renewed"
    );
}

/// The commands at the head of the kustomization work with a real cert-manager. Every request is
/// answered while the certificate, and then its authority, is renewed.
pub fn certificates_are_issued_and_renewed_while_pods_are_created(case: &Case) {
    let _cert_manager = CertManager::install(case.cluster);
    let webhook = Webhook::prepare(case.cluster);
    apply(case.cluster, "kustomized", &kustomized(&webhook), &[]);
    webhook.await_rollout();
    webhook.await_answers();
    let before = taken(&webhook);
    assert_eq!(before.len(), 2, "{}", webhook.log());
    renew(&webhook, NAME);
    await_renewal(&webhook, &before);
    // Renew the authority's certificate. Then let the authority sign another certificate for the
    // webhook. In between, the replicas serve a certificate that the former authority has signed. The
    // API server trusts it only because both authorities have the same key.
    let before = taken(&webhook);
    renew(&webhook, &format!("{NAME}-authority"));
    renew(&webhook, NAME);
    await_renewal(&webhook, &before);
}
