use serde_json::json;

use super::*;
use crate::plan::RestartPolicy;

fn read(pod: serde_json::Value) -> Result<Pod, String> {
    let owner = Owner {
        kind: "Pod".to_owned(),
        name: "shop".to_owned(),
        namespace: None,
    };
    Pod::read(&owner, &pod)
}

#[test]
fn what_is_null_is_not_there() {
    let pod = read(json!({
        "metadata": {"annotations": null, "creationTimestamp": null},
        "spec": {
            "restartPolicy": null,
            "initContainers": null,
            "containers": [{"name": "web", "livenessProbe": null, "resources": {"limits": null}}],
        },
    }));
    let pod = pod.unwrap();
    assert!(pod.annotations.is_empty());
    assert_eq!(pod.restart_policy(), Some(RestartPolicy::Always));
    assert_eq!(pod.all().count(), 1);
    assert_eq!(pod.container("web").unwrap().liveness_probe, None);
}

#[test]
fn what_has_another_type_is_named_with_its_place() {
    let containers = |containers| read(json!({"spec": {"containers": containers}})).unwrap_err();
    let sentence = containers(json!([{"name": "a"}, {"name": "b", "resources": 5}]));
    assert!(
        sentence.starts_with("spec.containers[1] (b): resources"),
        "{sentence}"
    );
    let sentence = containers(json!("web"));
    assert!(sentence.starts_with("spec: "), "{sentence}");
    let sentence = read(json!({"metadata": {"annotations": {"a": 1}}})).unwrap_err();
    assert!(sentence.starts_with("metadata.annotations: "), "{sentence}");
}
