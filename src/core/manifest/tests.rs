use serde_json::json;

use super::*;
use crate::plan::RestartPolicy;

fn read(pod: serde_json::Value) -> Result<Pod, String> {
    let owner = Owner {
        kind: "Pod".to_owned(),
        name: "shop".to_owned(),
        namespace: None,
    };
    Pod::read(&owner, &pod).map_err(|error| error.to_string())
}

#[test]
fn null_counts_as_absent() {
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
fn a_value_of_the_wrong_type_is_reported_with_its_path() {
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

#[test]
fn a_pod_reads_the_same_from_text_and_from_values() {
    let pod = json!({
        "metadata": {"annotations": {"usher/sidecars": "proxy", "other": null}},
        "spec": {
            "initContainers": [{"name": "fetch", "securityContext": {"capabilities": {"add": ["ALL"]}}}],
            "containers": [{
                "name": "proxy",
                "startupProbe": {"tcpSocket": {"port": 1, "host": null}, "a": [null, {"b": null}], "c": {}},
                "resources": {"requests": {"cpu": "1", "memory": null}},
                "restartPolicyRules": [
                    {"action": "Restart", "exitCodes": {"operator": "In", "values": [1, 2, 300]}},
                    {"action": "Restart", "exitCodes": null},
                ],
            }],
        },
    });
    let of_values = read(pod.clone()).unwrap();
    let owner = &of_values.owner;
    let text = json!({"spec": {"template": pod}}).to_string();
    let of_text = Pod::parse(owner, &["spec", "template"], &text);
    assert_eq!(of_text, Ok(Some(of_values.clone())));
    assert_eq!(Pod::parse(owner, &["spec", "other"], &text), Ok(None));
    let proxy = of_values.container("proxy").unwrap();
    let probe = proxy.startup_probe.as_ref().unwrap();
    assert_eq!(
        probe.text(),
        r#"{"a":[null,{}],"c":{},"tcpSocket":{"port":1}}"#
    );
    assert!(probe.has("a") && !probe.has("exec"));
    assert_eq!(proxy.restart_codes().to_string(), "1, 2");
    assert!(of_values.spec.init_containers[0].may_change_network());
}

#[test]
fn a_manifest_larger_than_kubernetes_allows_is_refused_in_one_sentence() {
    let many = |count: usize| json!(vec![json!({"name": "a"}); count]);
    let of_spec = |spec| read(json!({"spec": spec})).unwrap_err();
    assert!(read(json!({"spec": {"containers": many(1000)}})).is_ok());
    let sentence = "spec has 1001 containers; expected at most 1000";
    assert_eq!(of_spec(json!({"containers": many(1001)})), sentence);
    let both = json!({"initContainers": many(1), "containers": many(1000)});
    assert_eq!(of_spec(both), sentence);
    let long = json!([{"name": "a"}, {"name": "a".repeat(254)}]);
    let sentence = of_spec(json!({"containers": long}));
    assert!(sentence.starts_with("spec.containers[1] has a name of more than 253"));
    let annotations = json!({"a": "x".repeat(256 << 10)});
    let sentence = read(json!({"metadata": {"annotations": annotations}})).unwrap_err();
    assert_eq!(
        sentence,
        "metadata.annotations has 262145 bytes; expected at most 262144"
    );
}
