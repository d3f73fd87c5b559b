use std::collections::BTreeMap;

use serde_json::{Value, json};
use usher_core::manifest;
use usher_core::plan::Plan;

use super::review::{Reply, admission, changed, created, review};
use crate::admission::{Malformed, Webhook};

const ALL: [Webhook; 3] = [Webhook::Mutate, Webhook::MutateNamespace, Webhook::Validate];

/// A pod with the containers `proxy` and `shop`, without usher annotations.
fn plain() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": "shop", "namespace": "shop" },
        "spec": {
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "proxy", "image": "proxy",
                    "startupProbe": { "tcpSocket": { "port": 15001 }, "periodSeconds": 1 },
                    "livenessProbe": { "tcpSocket": { "port": 15001 } },
                    "resources": { "requests": { "cpu": "100m", "memory": "64Mi" } },
                },
                { "name": "shop", "image": "shop" },
            ],
        },
    })
}

fn annotated(mut pod: Value, annotations: Value) -> Value {
    pod["metadata"]["annotations"] = annotations;
    pod
}

/// The plain pod with the one annotation that its author has to write.
fn mesh() -> Value {
    annotated(plain(), json!({ "usher/sidecars": "proxy" }))
}

fn wrong() -> Value {
    annotated(plain(), json!({ "usher/sidecars": "proxy, proxy" }))
}

fn annotation<'a>(reply: &'a Reply, key: &str) -> Option<&'a str> {
    reply.object["metadata"]["annotations"][key].as_str()
}

fn containers(pod: &mut Value) -> &mut Vec<Value> {
    pod["spec"]["containers"].as_array_mut().expect("a list")
}

/// An object of this kind, with the pod as its template.
fn templated(kind: &str, pod: &Value) -> Value {
    let template = json!({ "metadata": pod["metadata"], "spec": pod["spec"] });
    let mut object = json!({ "apiVersion": "x/v1", "kind": kind, "metadata": { "name": "shop" } });
    let path = manifest::pod_path(kind).expect("a kind with pods");
    let place = path.iter().fold(&mut object, |place, key| &mut place[*key]);
    *place = template;
    object
}

#[test]
fn a_pod_with_one_annotation_gets_the_others() {
    let reply = created(Webhook::Mutate, &mesh());
    assert_eq!(reply.refused, None);
    assert_eq!(annotation(&reply, "usher/sidecars"), Some("proxy"));
    assert_eq!(annotation(&reply, "usher/restart-policy"), Some("Never"));
    assert_eq!(annotation(&reply, "usher/apps"), Some("shop"));
    let probe = annotation(&reply, "startup-probe.usher/proxy").expect("a probe");
    let probe: Value = serde_json::from_str(probe).expect("JSON");
    assert_eq!(probe["tcpSocket"]["port"], 15001);
    let resources = annotation(&reply, "resources.usher/proxy").expect("requests");
    assert!(resources.contains("64Mi"), "{resources}");
    assert_eq!(reply.object["spec"]["runtimeClassName"], "usher");
}

#[test]
fn usher_runs_a_liveness_probe_that_kubelet_would_not_act_on() {
    let reply = created(Webhook::Mutate, &mesh());
    let probe = annotation(&reply, "liveness-probe.usher/proxy").expect("a probe");
    assert!(probe.contains("15001"), "{probe}");
    let containers = &reply.object["spec"]["containers"];
    assert!(containers[0].get("livenessProbe").is_none(), "{containers}");
}

/// A pod whose containers have restart policies and `restartPolicyRules` of their own.
fn with_restart_rules() -> Value {
    let rule = |action: &str, operator: &str, values: &[u8]| {
        let codes = json!({ "operator": operator, "values": values });
        json!({ "action": action, "exitCodes": codes })
    };
    let mut pod = mesh();
    let shop = &mut containers(&mut pod)[1];
    shop["restartPolicy"] = "Never".into();
    shop["restartPolicyRules"] = json!([
        rule("Restart", "In", &[42, 7]),
        rule("RestartAllContainers", "In", &[88]),
    ]);
    containers(&mut pod).push(json!({ "name": "report", "restartPolicy": "OnFailure" }));
    pod["spec"]["initContainers"] = json!([
        { "name": "proxy-init", "restartPolicy": "Always" },
        {
            "name": "fetch", "restartPolicy": "OnFailure",
            "restartPolicyRules": [rule("RestartAllContainers", "NotIn", &[0, 1])],
        },
    ]);
    pod
}

#[test]
fn exit_codes_after_which_kubelet_creates_a_container_again_are_written() {
    let reply = created(Webhook::Mutate, &with_restart_rules());
    assert_eq!(reply.refused, None);
    for (key, value) in [
        ("caller-restarts.usher/shop", Some("7, 42, 88")),
        // The webhook does not write the annotation, because its value equals the pod's restart
        // policy.
        ("restart-policy.usher/shop", None),
        ("restart-policy.usher/report", Some("OnFailure")),
        ("caller-restarts.usher/report", None),
        ("restart-policy.usher/fetch", Some("OnFailure")),
        ("caller-restarts.usher/fetch", Some("!0, 1")),
        // The webhook writes no annotation for a native sidecar, which never exits before its pod
        // ends.
        ("restart-policy.usher/proxy-init", None),
    ] {
        assert_eq!(annotation(&reply, key), value, "{key}");
    }
    let unseen = reply.warnings.iter().find(|it| it.contains("does not see"));
    assert_eq!(unseen, None);
    // The author's own annotation stays.
    let mut own = with_restart_rules();
    own["metadata"]["annotations"]["caller-restarts.usher/shop"] = "1".into();
    let reply = created(Webhook::Mutate, &own);
    assert_eq!(annotation(&reply, "caller-restarts.usher/shop"), Some("1"));
    let other = reply.warnings.iter().find(|it| it.contains("does not see"));
    assert!(
        other.is_some_and(|it| it.starts_with("shop: ")),
        "{other:?}"
    );
}

#[test]
fn mutating_a_pod_twice_is_the_same_as_once() {
    for annotations in [
        json!({ "usher/sidecars": "proxy" }),
        json!({ "usher/sidecars": "*roxy, logs?" }),
        json!({ "usher/sidecars": "logs?" }),
    ] {
        let once = created(Webhook::Mutate, &annotated(plain(), annotations));
        assert_twice_is_once(once);
    }
    assert_twice_is_once(created(Webhook::Mutate, &with_restart_rules()));
}

fn assert_twice_is_once(once: Reply) {
    assert!(once.is_changed);
    let twice = created(Webhook::Mutate, &once.object);
    assert!(!twice.is_changed, "{once:#?}\n{twice:#?}");
    assert_eq!(twice.warnings, once.warnings);
    assert_eq!(created(Webhook::Validate, &once.object).refused, None);
}

#[test]
fn an_optional_sidecar_that_is_injected_later_becomes_a_sidecar() {
    let mut pod = annotated(plain(), json!({ "usher/sidecars": "proxy?" }));
    let proxy = containers(&mut pod).remove(0);
    let before = created(Webhook::Mutate, &pod);
    assert_eq!(before.refused, None);
    assert_eq!(annotation(&before, "usher/apps"), Some("shop"));
    let mut pod = before.object;
    containers(&mut pod).push(proxy);
    let after = created(Webhook::Mutate, &pod);
    let sidecars = annotation(&after, "usher/sidecars").expect("a list");
    assert_eq!(sidecars.trim_end_matches('?'), "proxy");
    assert_eq!(annotation(&after, "usher/apps"), Some("shop"));
    assert!(annotation(&after, "startup-probe.usher/proxy").is_some());
}

#[test]
fn an_app_that_is_injected_later_is_added_to_the_apps() {
    let mut pod = created(Webhook::Mutate, &mesh()).object;
    containers(&mut pod).push(json!({ "name": "other", "image": "other" }));
    let after = created(Webhook::Mutate, &pod);
    let apps = annotation(&after, "usher/apps").expect("a list");
    assert!(apps.contains("shop") && apps.contains("other"), "{apps}");
}

#[test]
fn an_annotation_that_another_webhook_has_changed_since_is_left_alone() {
    let pod = annotated(plain(), json!({ "usher/sidecars": "prox*" }));
    let mut pod = created(Webhook::Mutate, &pod).object;
    containers(&mut pod).push(json!({ "name": "logs", "image": "logs" }));
    let sidecars = &mut pod["metadata"]["annotations"]["usher/sidecars"];
    assert_eq!(*sidecars, "proxy");
    *sidecars = "proxy, logs".into();
    let after = created(Webhook::Mutate, &pod);
    assert_eq!(annotation(&after, "usher/sidecars"), Some("proxy, logs"));
}

#[test]
fn an_added_annotation_that_another_webhook_has_changed_since_is_left_alone() {
    for (key, value) in [
        ("startup-probe.usher/proxy", r#"{"tcpSocket":{"port":1}}"#),
        ("usher/apps", "shop, other"),
        ("usher/restart-policy", "OnFailure"),
    ] {
        let mut pod = created(Webhook::Mutate, &mesh()).object;
        let annotation_of_webhook = &mut pod["metadata"]["annotations"][key];
        assert!(annotation_of_webhook.is_string(), "{key}");
        *annotation_of_webhook = value.into();
        let after = created(Webhook::Mutate, &pod);
        assert_eq!(annotation(&after, key), Some(value));
        // At every later call, the webhook treats the changed annotation as the author's.
        let again = created(Webhook::Mutate, &after.object);
        assert_eq!(annotation(&again, key), Some(value));
    }
}

#[test]
fn annotations_of_the_author_stay() {
    let pod = annotated(
        plain(),
        json!({
            "usher/sidecars": "proxy",
            "usher/restart-policy": "OnFailure",
            "startup-probe.usher/proxy": r#"{"tcpSocket":{"port":1}}"#,
            "example.com/other": "kept",
        }),
    );
    let reply = created(Webhook::Mutate, &pod);
    assert_eq!(
        annotation(&reply, "usher/restart-policy"),
        Some("OnFailure")
    );
    assert_eq!(annotation(&reply, "example.com/other"), Some("kept"));
    let probe = annotation(&reply, "startup-probe.usher/proxy");
    assert_eq!(probe, Some(r#"{"tcpSocket":{"port":1}}"#));
}

#[test]
fn the_authors_runtime_class_stays() {
    let mut pod = mesh();
    pod["spec"]["runtimeClassName"] = "other".into();
    for webhook in [Webhook::Mutate, Webhook::MutateNamespace] {
        let reply = created(webhook, &pod);
        assert_eq!(reply.object["spec"]["runtimeClassName"], "other");
    }
}

#[test]
fn a_pod_without_usher_annotations_is_left_alone() {
    for annotations in [
        json!({}),
        json!({ "example.com/usher": "no", "usher-webhook/x": "y" }),
    ] {
        let pod = annotated(plain(), annotations);
        for webhook in [Webhook::Mutate, Webhook::Validate] {
            let reply = created(webhook, &pod);
            assert!(!reply.is_changed && reply.refused.is_none());
            assert_eq!(reply.warnings, Vec::<String>::new());
        }
    }
}

#[test]
fn every_pod_of_a_labeled_namespace_gets_the_runtime_class() {
    let reply = created(Webhook::MutateNamespace, &plain());
    assert_eq!(reply.object["spec"]["runtimeClassName"], "usher");
    assert!(reply.object["metadata"].get("annotations").is_none());
    assert!(!created(Webhook::MutateNamespace, &reply.object).is_changed);
    let reply = created(Webhook::MutateNamespace, &mesh());
    assert_eq!(annotation(&reply, "usher/apps"), Some("shop"));
}

#[test]
fn a_pod_for_windows_is_left_alone() {
    for mut pod in [plain(), mesh()] {
        pod["spec"]["os"] = json!({ "name": "windows" });
        assert!(!created(Webhook::MutateNamespace, &pod).is_changed);
        pod["spec"]["os"] = json!({ "name": "linux" });
        assert!(created(Webhook::MutateNamespace, &pod).is_changed);
    }
}

#[test]
fn a_moved_liveness_probe_under_another_runtime_class_yields_a_warning() {
    let warned = |class: &str| {
        let mut pod = mesh();
        pod["spec"]["runtimeClassName"] = class.into();
        let warnings = created(Webhook::Mutate, &pod).warnings;
        warnings.iter().any(|it| it.contains("livenessProbe"))
    };
    assert!(warned("gvisor"));
    assert!(!warned("usher"));
}

#[test]
fn a_mirror_pod_is_left_alone() {
    let mirror = json!({ "usher/sidecars": "proxy", "kubernetes.io/config.mirror": "hash" });
    for webhook in [Webhook::Mutate, Webhook::MutateNamespace] {
        assert!(!created(webhook, &annotated(plain(), mirror.clone())).is_changed);
    }
}

#[test]
fn a_pod_that_the_shim_would_refuse_is_refused_with_its_message() {
    let pod = wrong();
    let annotations = serde_json::from_value(pod["metadata"]["annotations"].clone()).unwrap();
    let sentence = Plan::parse(&annotations).unwrap_err().to_string();
    for webhook in ALL {
        let reply = created(webhook, &pod);
        assert_eq!(reply.refused.as_deref(), Some(&*sentence));
        assert!(!reply.is_changed);
    }
}

#[test]
fn a_list_that_names_no_container_of_the_pod_yields_a_warning() {
    let pod = annotated(plain(), json!({ "usher/sidecars": "proxy, logs" }));
    let reply = created(Webhook::Mutate, &pod);
    assert_eq!(reply.refused, None);
    let warnings = reply.warnings;
    assert!(
        warnings.iter().any(|it| it.starts_with("logs: ")),
        "{warnings:?}"
    );
}

#[test]
fn a_template_is_judged_and_not_changed() {
    for kind in manifest::kinds().filter(|kind| *kind != "Pod") {
        let reply = created(Webhook::Validate, &templated(kind, &mesh()));
        assert_eq!(reply.refused, None, "{kind}");
        // There is no warning about missing annotations, because the webhook adds them to the
        // template's pods.
        assert_eq!(reply.warnings, Vec::<String>::new(), "{kind}");
        let reply = created(Webhook::Validate, &templated(kind, &wrong()));
        let sentence = reply.refused.expect("refused");
        assert!(sentence.contains("usher/sidecars"), "{kind}: {sentence}");
        assert!(!created(Webhook::Mutate, &templated(kind, &mesh())).is_changed);
    }
}

#[test]
fn a_warning_is_not_repeated_when_a_template_changes() {
    let pod = annotated(plain(), json!({ "usher/sidecars": "proxy, logs" }));
    let old = templated("Deployment", &pod);
    assert!(!created(Webhook::Validate, &old).warnings.is_empty());
    let mut new = old.clone();
    new["spec"]["template"]["spec"]["containers"][1]["image"] = "shop:2".into();
    assert_eq!(changed(&old, &new).warnings, Vec::<String>::new());
}

#[test]
fn a_change_is_not_refused_for_an_error_that_the_object_already_had() {
    let mut old = templated("Deployment", &wrong());
    old["metadata"]["finalizers"] = json!(["example.com/one"]);
    let mut new = old.clone();
    new["metadata"]["finalizers"] = json!([]);
    assert_eq!(changed(&old, &new).refused, None);
    new["spec"]["template"]["spec"]["containers"][1]["image"] = "shop:2".into();
    assert_eq!(changed(&old, &new).refused, None);
    new["spec"]["template"]["metadata"]["annotations"] = json!({ "usher/sidecar": "proxy" });
    assert!(changed(&old, &new).refused.is_some());
    let good = templated("Deployment", &mesh());
    assert!(changed(&good, &old).refused.is_some());
}

#[test]
fn a_change_is_refused_only_for_a_new_mistake() {
    let with = |annotations: &[(&str, &str)]| {
        let all = annotations.iter().copied();
        let all: BTreeMap<&str, &str> = all.chain([("usher/sidecars", "proxy")]).collect();
        annotated(plain(), json!(all))
    };
    let (policy, key) = (("usher/grace-policy", "Foo"), ("usher/sidecar", "proxy"));
    for place in [Value::clone, |pod: &Value| templated("Deployment", pod)] {
        let change = |old: &[_], new: &[_]| changed(&place(&with(old)), &place(&with(new))).refused;
        for fixed in [[policy], [key]] {
            assert_eq!(change(&[policy, key], &fixed), None);
        }
        for (old, new) in [(policy, key), (key, policy)] {
            let sentence = change(&[old], &[old, new]).expect("refused");
            assert!(sentence.contains(new.0), "{sentence}");
        }
    }
}

#[test]
fn an_object_without_pods_is_left_alone() {
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": {}, "spec": {} });
    for webhook in ALL {
        let reply = created(webhook, &service);
        assert!(reply.refused.is_none() && !reply.is_changed);
    }
}

#[test]
fn a_body_that_is_no_review_yields_an_error() {
    let admission = admission();
    let ask = |body: &str| {
        admission
            .answer(Webhook::Mutate, body.as_bytes())
            .unwrap_err()
    };
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for body in [
        "",
        "{",
        "[]",
        "null",
        "\u{0}",
        "{}",
        r#"{"kind": 1}"#,
        &deep,
    ] {
        assert!(matches!(ask(body), Malformed::Unreadable(_)), "{body}");
    }
    let mut review = review(&mesh(), None);
    review["apiVersion"] = "admission.k8s.io/v1beta1".into();
    let other = ask(&review.to_string());
    assert!(other.to_string().contains("v1beta1"), "{other}");
    let none = json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview" });
    assert_eq!(ask(&none.to_string()), Malformed::WithoutRequest);
}

/// Replaces every value of a review, one after another, by values of other types.
#[test]
fn no_content_of_a_review_causes_a_panic() {
    let others = [
        json!(null),
        json!(-1),
        json!("x"),
        json!([]),
        json!({}),
        json!([{}]),
    ];
    let written =
        json!({ "usher/sidecars": "prox*, logs?", "usher-webhook/written": "{\"a\":[1]}" });
    let pod = annotated(plain(), written);
    for object in [pod.clone(), templated("CronJob", &pod)] {
        for old in [None, Some(&object)] {
            let whole = review(&object, old);
            for path in paths(&whole, "") {
                for other in &others {
                    let mut review = whole.clone();
                    *review.pointer_mut(&path).expect("it is there") = other.clone();
                    let body = review.to_string();
                    for webhook in ALL {
                        // The response does not matter: only a panic would fail the test.
                        let _ = admission().answer(webhook, body.as_bytes());
                    }
                }
            }
        }
    }
}

fn paths(value: &Value, at: &str) -> Vec<String> {
    let mut all = vec![at.to_owned()];
    let mut descend = |key: String, value| {
        let key = key.replace('~', "~0").replace('/', "~1");
        all.extend(paths(value, &format!("{at}/{key}")));
    };
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, it)| descend(key.clone(), it)),
        Value::Array(items) => {
            let items = items.iter().enumerate();
            items.for_each(|(index, it)| descend(index.to_string(), it));
        }
        _ => {}
    }
    all
}

#[test]
fn a_forged_record_changes_only_usher_annotations() {
    let forged = json!({
        "other/removed": [null, "theirs"],
        "other/replaced": ["mine", "theirs"],
        "usher/apps": [null, "shop"],
    });
    let pod = annotated(
        plain(),
        json!({
            "usher/sidecars": "proxy",
            "usher/apps": "shop",
            "other/removed": "theirs",
            "other/replaced": "theirs",
            "usher-webhook/written": forged.to_string(),
        }),
    );
    let reply = created(Webhook::Mutate, &pod);
    assert_eq!(reply.refused, None);
    assert_eq!(annotation(&reply, "other/removed"), Some("theirs"));
    assert_eq!(annotation(&reply, "other/replaced"), Some("theirs"));
    assert_eq!(annotation(&reply, "usher/apps"), Some("shop"));
}
