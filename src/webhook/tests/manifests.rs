//! Tests of the manifests in `scripts/kubernetes`.

use std::fs;
use std::path::Path;

use serde_json::Value;
use usher_core::manifest::pod_path;

fn documents() -> Vec<Value> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/kubernetes");
    let files = fs::read_dir(directory).expect("the manifests");
    let files = files.map(|file| file.expect("a file").path());
    let manifests = files.filter(|file| file.extension().is_some_and(|it| it == "yaml"));
    manifests
        .flat_map(|file| {
            let text = fs::read_to_string(&file).expect("a manifest");
            serde_saphyr::from_multiple::<Value>(&text).expect("YAML")
        })
        .collect()
}

/// GKE admits a pod with a system priority class outside kube-system only if a `ResourceQuota` of
/// the namespace covers the class.
#[test]
fn a_quota_covers_pods_of_a_system_priority_class_outside_kube_system() {
    let documents = documents();
    let mut found = 0;
    for object in &documents {
        let Some(path) = object["kind"].as_str().and_then(pod_path) else {
            continue;
        };
        let pod = path.iter().fold(object, |value, key| &value[*key]);
        let class = &pod["spec"]["priorityClassName"];
        let is_system = class.as_str().is_some_and(|it| it.starts_with("system-"));
        let namespace = &object["metadata"]["namespace"];
        if !is_system || namespace == "kube-system" {
            continue;
        }
        found += 1;
        let is_covered = documents.iter().any(|quota| {
            let scope = &quota["spec"]["scopeSelector"]["matchExpressions"][0];
            quota["kind"] == "ResourceQuota"
                && quota["metadata"]["namespace"] == *namespace
                && scope["scopeName"] == "PriorityClass"
                && scope["operator"] == "In"
                && scope["values"][0] == *class
        });
        assert!(is_covered, "{namespace}: {class}");
    }
    assert!(found > 0);
}
