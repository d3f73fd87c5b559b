//! Injectors of other projects, built from their sources: Vault's agent injector, and the operator
//! of OpenTelemetry. Scripts stand in for the programs that they inject, because these programs
//! would need servers.

use std::path::Path;

use serde_json::{Value, json};

use crate::admission::Webhook;
use crate::cluster::{Cluster, PATIENCE};
use crate::harness::{eventually, write_program};
use crate::pod::{Case, Pod, exit_code, script};

use super::cert_manager::CertManager;
use super::{PROGRAMS, apply, await_authority, await_rollout, directory, manifest};

pub const VAULT_K8S: &str = "localhost/usher-it/vault-k8s:1";
pub const OPERATOR: &str = "localhost/usher-it/opentelemetry-operator:1";
pub const COLLECTOR: &str = "localhost/usher-it/collector:1";

/// A script in place of `vault agent -config=FILE`. In the init container it writes the secret and
/// exits; in the sidecar it runs until it is stopped.
const VAULT: &str = r#"#!/bin/sh
if grep -q '"exit_after_auth":true' "${2#-config=}"; then
    echo secret >/vault/secrets/config
    exit
fi
trap 'exit 143' TERM
while :; do sleep 0.1; done
"#;

/// A script in place of OpenTelemetry's collector.
const COLLECTOR_SCRIPT: &str = "#!/bin/sh
trap 'exit 143' TERM
while :; do sleep 0.1; done
";

/// Writes the scripts into the directory of programs.
pub fn write_stand_ins(bin: &Path) {
    write_program(&bin.join("vault"), VAULT);
    write_program(&bin.join("collector"), COLLECTOR_SCRIPT);
}

/// Objects of an injector's manifest. Removed on drop.
struct Installed<'a> {
    cluster: &'a Cluster,
    file: String,
}

impl Drop for Installed<'_> {
    fn drop(&mut self) {
        self.cluster
            .kubectl(&["delete", "--ignore-not-found", "--filename", &self.file]);
    }
}

/// The name of the configuration in the manifest of Vault's injector. The API server calls webhooks
/// in the order of their configurations' names, so it calls Vault's webhook after ours.
const VAULT_CONFIGURATION: &str = "vault-agent-injector-cfg";

fn install_vault<'a>(cluster: &'a Cluster, configuration: &str) -> Installed<'a> {
    let text = manifest(
        cluster,
        &directory("vault-k8s").join("manifests"),
        VAULT_K8S,
    );
    let text = text.replace(VAULT_CONFIGURATION, configuration);
    let lines = text
        .lines()
        .map(|line| match line.split_once("hashicorp/vault:") {
            Some((before, _)) => format!("{before}{PROGRAMS}\n"),
            None => format!("{line}\n"),
        });
    let text: String = lines.collect();
    cluster.apply(&[json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "vault" },
    })]);
    // The manifest's objects, except its Service, do not name their namespace.
    let file = apply(cluster, "vault", &text, &["--namespace", "vault"]);
    let installed = Installed { cluster, file };
    await_rollout(cluster, "vault", "vault-injector");
    await_authority(cluster, configuration);
    installed
}

/// A Job's pod whose container needs a file that Vault's agent writes.
fn with_vault() -> Pod {
    Pod::new("job")
        .annotation("usher/sidecars", "vault-agent")
        .annotation("vault.hashicorp.com/agent-inject", "true")
        .annotation("vault.hashicorp.com/role", "app")
        .annotation(
            "vault.hashicorp.com/agent-inject-secret-config",
            "secret/config",
        )
        .container(script("app", "test -s /vault/secrets/config && sleep 2"))
        .spec("restartPolicy", "Never")
        .spec("runtimeClassName", Value::Null)
        .spec("automountServiceAccountToken", true)
}

/// The injector adds an init container and an ordinary container. Without an order, the Job would
/// never complete.
pub fn jobs_with_containers_injected_by_vault_complete(case: &Case) {
    let _webhook = Webhook::install(case.cluster);
    for configuration in [VAULT_CONFIGURATION, "a-vault-agent-injector-cfg"] {
        let installed = install_vault(case.cluster, configuration);
        // The API server reads a changed configuration a moment later.
        eventually("the injector is called", PATIENCE, || {
            let words = ["delete", "job", "job", "--ignore-not-found", "--wait"];
            case.kubectl(&words);
            case.create_job(&with_vault(), 0);
            let mut pods = Vec::new();
            eventually("the pod is created", PATIENCE, || {
                pods = case.pods_of("job");
                !pods.is_empty()
            });
            pods[0].to_string().contains("vault-agent-init")
        });
        case.await_job("job", "complete");
        let pod = &case.pods_of("job")[0];
        assert_eq!(pod["spec"]["runtimeClassName"], "usher", "{pod:#}");
        assert_eq!(exit_code(pod, "app"), Some(0), "{pod:#}");
        assert_eq!(exit_code(pod, "vault-agent"), Some(0), "{pod:#}");
        case.kubectl(&["delete", "job", "job"]);
        drop(installed);
    }
}

/// The operator adds a native sidecar. kubelet starts the native sidecar before the pod's ordinary
/// containers, and stops it after them. usher orders the ordinary containers.
pub fn jobs_with_a_container_injected_by_opentelemetry_complete(case: &Case) {
    const NAMESPACE: &str = "opentelemetry-operator-system";
    let cluster = case.cluster;
    let _cert_manager = CertManager::install(cluster);
    let _webhook = Webhook::install(cluster);
    let default = directory("opentelemetry-operator").join("manifests/default");
    // By default, the operator makes network policies, and needs the API server's EndpointSlice for
    // them. The API server of the test cluster makes no EndpointSlice
    // (`--endpoint-reconciler-type`). So the policies are turned off.
    let text = manifest(cluster, &default, OPERATOR).replace(
        "--zap-log-level=info",
        "--feature-gates=-operator.networkpolicy,-operand.networkpolicy",
    );
    let file = apply(cluster, "opentelemetry", &text, &[]);
    let _installed = Installed { cluster, file };
    await_rollout(
        cluster,
        NAMESPACE,
        "opentelemetry-operator-controller-manager",
    );
    await_authority(
        cluster,
        "opentelemetry-operator-mutating-webhook-configuration",
    );
    let collector = json!({
        "apiVersion": "opentelemetry.io/v1beta1", "kind": "OpenTelemetryCollector",
        "metadata": { "name": "sidecar", "namespace": case.namespace },
        "spec": {
            "mode": "sidecar", "image": COLLECTOR,
            "config": {
                "receivers": { "otlp": { "protocols": { "grpc": {} } } },
                "exporters": { "debug": {} },
                "service": { "pipelines": {
                    "traces": { "receivers": ["otlp"], "exporters": ["debug"] },
                } },
            },
        },
    });
    eventually("the operator accepts a collector", PATIENCE, || {
        cluster.try_apply(std::slice::from_ref(&collector)).ok()
    });
    let pod = Pod::new("job")
        .annotation("usher/sidecars", "proxy")
        .annotation("sidecar.opentelemetry.io/inject", "true")
        .container(script("proxy", COLLECTOR_SCRIPT))
        .container(script("app", "sleep 2"))
        .spec("restartPolicy", "Never")
        .spec("runtimeClassName", Value::Null);
    case.create_job(&pod, 0);
    case.await_job("job", "complete");
    let pod = &case.pods_of("job")[0];
    assert!(pod.to_string().contains("otc-container"), "{pod:#}");
    assert_eq!(pod["spec"]["runtimeClassName"], "usher", "{pod:#}");
    assert_eq!(exit_code(pod, "app"), Some(0), "{pod:#}");
    assert_eq!(exit_code(pod, "proxy"), Some(0), "{pod:#}");
}
