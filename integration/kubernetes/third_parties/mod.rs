//! Programs of other projects beside usher: proxies, a log shipper, injectors and cert-manager.
//! `scripts/test-kubernetes --third-parties` runs these cases, and prints the figures of a rolling
//! update.

mod cert_manager;
mod injectors;
mod rollout;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::cluster::{Cluster, PATIENCE};
use crate::harness::{Image, poll, populate};
use crate::images;

pub use cert_manager::certificates_are_issued_and_renewed_while_pods_are_created;
pub use injectors::{
    jobs_with_a_container_injected_by_opentelemetry_complete,
    jobs_with_containers_injected_by_vault_complete,
};
pub use rollout::print;

/// A container image with programs of another project.
const NGINX: &str = "localhost/usher-it/nginx:1";
const HAPROXY: &str = "localhost/usher-it/haproxy:1";
const RSYSLOG: &str = "localhost/usher-it/rsyslog:1";
/// The image with the static programs of all projects that are built from source.
const PROGRAMS: &str = "localhost/usher-it/third-parties:1";
const PATH: &str = "PATH=/usr/sbin:/usr/bin:/bin";

/// The directory that `scripts/lib/third-parties` has made for a project or package. The directory
/// is called `NAME-VERSION`.
fn directory(name: &str) -> PathBuf {
    let all = std::env::var_os("USHER_TEST_THIRD_PARTIES").expect("USHER_TEST_THIRD_PARTIES");
    let mut found = fs::read_dir(all).expect("directories").flatten();
    let is_named = |file: &str| {
        file.strip_prefix(name)
            .is_some_and(|rest| rest.starts_with('-'))
    };
    let found = found.find(|entry| entry.file_name().to_str().is_some_and(is_named));
    found.unwrap_or_else(|| panic!("no {name}")).path()
}

/// Imports the images of the proxies and the log shipper into containerd.
///
/// The images of nginx and HAProxy have the same stop signals as the official images. On these
/// signals, the proxies end open connections gracefully.
fn import_packages(cluster: &Cluster) {
    for (name, reference, signal) in [
        ("nginx", NGINX, "SIGQUIT"),
        ("haproxy", HAPROXY, "SIGUSR1"),
        ("rsyslog", RSYSLOG, "SIGTERM"),
    ] {
        let config = json!({ "Env": [PATH], "StopSignal": signal });
        images::import_rootfs(
            cluster,
            name,
            &directory(name),
            &[Image { reference, config }],
        );
    }
}

/// Imports the images of the programs that are built from source.
pub fn import_programs(cluster: &Cluster) {
    let rootfs = cluster.path("tmp/third-parties");
    fs::create_dir(&rootfs).expect("a directory");
    populate(&rootfs);
    images::link_applets(&rootfs);
    for project in ["cert-manager", "vault-k8s", "opentelemetry-operator"] {
        for program in fs::read_dir(directory(project).join("bin")).expect("programs") {
            let program = program.expect("a program");
            let to = rootfs.join("bin").join(program.file_name());
            fs::copy(program.path(), to).expect("a copy");
        }
    }
    injectors::write_stand_ins(&rootfs.join("bin"));
    let image = |reference, entrypoint: Value| Image {
        reference,
        config: json!({ "Env": [PATH], "Entrypoint": entrypoint }),
    };
    let images = [
        image(PROGRAMS, Value::Null),
        image(injectors::COLLECTOR, json!(["/bin/collector"])),
        image(injectors::VAULT_K8S, json!(["/bin/vault-k8s"])),
        image(injectors::OPERATOR, json!(["/bin/opentelemetry-operator"])),
    ];
    images::import_rootfs(cluster, "programs", &rootfs, &images);
}

/// Returns a kustomization's manifest, with `image` in place of each image.
fn manifest(cluster: &Cluster, kustomization: &Path, image: &str) -> String {
    let directory = kustomization.display().to_string();
    let text = cluster.must(&["kustomize", &directory]);
    let lines = text.lines().map(|line| match line.split_once("image: ") {
        Some((space, _)) if space.trim_matches([' ', '-']).is_empty() => {
            format!(
                "{space}image: {image}\n{}imagePullPolicy: Never\n",
                space.replace('-', " ")
            )
        }
        _ if line.trim_start().starts_with("imagePullPolicy:") => String::new(),
        _ => format!("{line}\n"),
    });
    lines.collect()
}

/// Applies a manifest with more options of kubectl, and returns the manifest's file. Server-side
/// apply is needed for large custom resource definitions.
fn apply(cluster: &Cluster, name: &str, text: &str, options: &[&str]) -> String {
    let file = cluster.path(&format!("tmp/{name}.yaml"));
    fs::write(&file, text).expect("a manifest");
    let file = file.display().to_string();
    let words = ["apply", "--server-side", "--filename", &file];
    cluster.must(&[&words, options].concat());
    file
}

fn await_rollout(cluster: &Cluster, namespace: &str, deployment: &str) {
    let deployment = format!("deployment/{deployment}");
    let words = ["--namespace", namespace, "rollout", "status", &deployment];
    let finished = cluster.kubectl_waits(&words);
    let log = ["--namespace", namespace, "logs", &deployment, "--tail=30"];
    let describe = ["--namespace", namespace, "describe", "pods"];
    assert!(
        finished.ok(),
        "{}\n{}\n{}",
        finished.err(),
        cluster.kubectl(&describe).out(),
        cluster.kubectl(&log).out(),
    );
}

/// Waits until every webhook of a configuration has a certificate authority (`caBundle`).
fn await_authority(cluster: &Cluster, configuration: &str) {
    let has_authority = || {
        let found = cluster.get("mutatingwebhookconfiguration", configuration)?;
        let webhooks = found["webhooks"].as_array()?;
        let trusted = |webhook: &Value| webhook["clientConfig"]["caBundle"].is_string();
        webhooks.iter().all(trusted).then_some(())
    };
    let found = poll(PATIENCE, has_authority);
    assert!(found.is_some(), "{configuration} never got an authority");
}
