//! Reviews made to be expensive: none takes more memory or processor time than its bound.

use std::fmt::Write;

use serde_json::{Value, json};

use super::review::{admission, review};
use crate::admission::{Outcome, Webhook};
use crate::server::MAX_REVIEW_BYTES;
use usher_fuzz::cost;

const ALL: [Webhook; 3] = [Webhook::Mutate, Webhook::MutateNamespace, Webhook::Validate];

/// Bytes of the largest object that an API server stores.
const OBJECT: usize = 3 << 20;

/// Kubernetes' limit on the bytes of an object's annotations.
const ANNOTATIONS: usize = 256 << 10;

/// A review of a pod with these annotations, whose `spec` is this text.
fn pod(annotations: &Value, spec: &str) -> String {
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": "shop", "annotations": annotations },
        "spec": "SPEC",
    });
    review(&pod, None).to_string().replace("\"SPEC\"", spec)
}

/// As many copies of `item` as fit into `bytes`, separated by commas.
fn many(item: &str, bytes: usize) -> String {
    let mut text = item.to_owned();
    for _ in 1..bytes / (item.len() + 1) {
        text.push(',');
        text.push_str(item);
    }
    text
}

/// Containers named `c0`, `c1`, …, each with these fields.
fn named(count: usize, fields: &str) -> String {
    let mut text = String::new();
    for index in 0..count {
        let comma = if index == 0 { "" } else { "," };
        write!(text, "{comma}{{\"name\":\"c{index}\"{fields}}}").unwrap();
    }
    text
}

/// `count` patterns that match the names `c0`, `c1`, …, and make the matcher backtrack.
fn patterns(count: usize) -> String {
    let pattern = |index: usize| format!("*c*{}*", index % 10);
    (0..count).map(pattern).collect::<Vec<_>>().join(",")
}

/// Lets each webhook answer the review, and asserts the bounds. Returns the outcomes.
#[track_caller]
fn answered(body: &str) -> Vec<Option<Outcome>> {
    assert!(body.len() <= MAX_REVIEW_BYTES, "{}", body.len());
    let admission = admission();
    let answer = |webhook| {
        cost::assert_cheap(body.len(), || {
            let answer = admission.answer(webhook, body.as_bytes()).ok()?;
            // Messages stay short, whatever the pod.
            assert!(answer.body.len() < 1 << 20, "{}", answer.body.len());
            Some(answer.outcome)
        })
    };
    ALL.map(answer).into()
}

fn sidecars(value: &str) -> Value {
    json!({ "usher/sidecars": value })
}

#[test]
fn empty_containers_cost_no_more_than_their_bytes() {
    for item in ["{\"\":0}", "[]", "{}", "null", "{\"name\":\"a\"}", "\"\""] {
        let containers = many(item, MAX_REVIEW_BYTES - 4096);
        let spec = format!("{{\"containers\":[{containers}]}}");
        answered(&pod(&sidecars("a?"), &spec));
    }
}

#[test]
fn a_pod_of_more_containers_than_kubernetes_can_run_is_refused_in_one_sentence() {
    for (init, containers) in [(0, 1001), (1001, 0), (501, 500), (0, 100_000)] {
        let (init, containers) = (named(init, ""), named(containers, ""));
        let spec = format!("{{\"initContainers\":[{init}],\"containers\":[{containers}]}}");
        let body = pod(&sidecars(&patterns(250)), &spec);
        assert_eq!(answered(&body), [Some(Outcome::Refused); 3]);
    }
}

#[test]
fn patterns_for_many_containers_cost_no_more_than_their_bytes() {
    for count in [1, 64, 250, 256, 300, 2_000] {
        let mut annotations = serde_json::Map::new();
        for list in ["sidecars", "init", "pre-exit", "apps", "essential"] {
            annotations.insert(format!("usher/{list}"), patterns(count).into());
        }
        let spec = format!("{{\"containers\":[{}]}}", named(1000, ""));
        answered(&pod(&annotations.into(), &spec));
        let sidecars = sidecars(&patterns(count));
        answered(&pod(&sidecars, &spec));
    }
}

#[test]
fn fields_of_containers_cost_no_more_than_their_bytes() {
    for (before, item, after) in [
        ("\"env\":[", "{\"\":\"\"}", "]"),
        ("\"startupProbe\":{\"a\":[", "{\"\":0}", "]}"),
        ("\"livenessProbe\":[", "{}", "]"),
        ("\"livenessProbe\":{", "\"k\":0", "}"),
        (
            "\"lifecycle\":{\"postStart\":{\"exec\":[",
            "{\"\":0}",
            "]}}",
        ),
        ("\"lifecycle\":{\"stopSignal\":\"", "x", "\"}"),
        (
            "\"securityContext\":{\"capabilities\":{\"add\":[",
            "\"\"",
            "]}}",
        ),
        ("\"restartPolicyRules\":[", "{}", "]"),
        (
            "\"restartPolicyRules\":[{\"exitCodes\":{\"values\":[",
            "0",
            "]}}]",
        ),
        ("\"resources\":{\"claims\":[", "{}", "]}"),
        ("\"resources\":{\"requests\":{", "\"cpu\":1", "}}"),
    ] {
        for count in [1, 1000] {
            let fields = format!(",{before}{}{after}", many(item, OBJECT / count));
            let spec = format!("{{\"containers\":[{}]}}", named(count, &fields));
            let spec = format!("{{\"restartPolicy\":\"Never\",{}", &spec[1..]);
            answered(&pod(&sidecars("*c*"), &spec));
        }
    }
}

#[test]
fn long_names_cost_no_more_than_their_bytes() {
    let name = "a".repeat(OBJECT / 8);
    let container = format!("{{\"name\":\"{name}\",\"livenessProbe\":{{}}}}");
    let spec = format!("{{\"containers\":[{}]}}", many(&container, OBJECT));
    answered(&pod(&sidecars("*a*"), &spec));
    let spec = format!("{{\"runtimeClassName\":\"{name}\",\"restartPolicy\":\"{name}\"}}");
    answered(&pod(&sidecars("a"), &spec));
}

#[test]
fn annotations_cost_no_more_than_their_bytes() {
    let spec = format!("{{\"containers\":[{}]}}", named(1000, ""));
    let each = |key: &dyn Fn(usize) -> String, value: &str, bytes: usize| -> Value {
        let count = bytes / (key(9_999).len() + value.len());
        let all = (0..count).map(|index| (key(index), value.into()));
        serde_json::Map::from_iter(all).into()
    };
    for annotations in [
        each(&|index| format!("a{index}"), "", OBJECT / 2),
        each(&|index| format!("a{index}"), "", ANNOTATIONS),
        each(
            &|index| format!("restart.usher/c{index}"),
            "Always",
            ANNOTATIONS,
        ),
        each(
            &|index| format!("resources.usher/c{index}"),
            "{}",
            ANNOTATIONS,
        ),
        sidecars(&"c1,".repeat(ANNOTATIONS / 3)),
        sidecars(&"c1? ".repeat(ANNOTATIONS / 4)),
        sidecars(&named_list(1000)),
        json!({ "usher/sidecars": named_list(256), "usher/essential": named_list(256) }),
        json!({ "usher/sidecars": optional_list(256), "usher/init": "c999" }),
        json!({ "usher-webhook/written": format!("{{{}}}", many("\"a\":[null,null]", ANNOTATIONS)) }),
    ] {
        answered(&pod(&annotations, &spec));
    }
}

/// A list of the names `c0`, `c1`, ….
fn named_list(count: usize) -> String {
    (0..count)
        .map(|index| format!("c{index},"))
        .collect::<String>()
        + "c999"
}

/// A list of the names `c900?`, `c899?`, …. In an annotation, `?` marks a container that the pod
/// may lack. The list is in the reverse order of the pod's spec.
///
/// The spec has most apps before the listed containers. Each of these apps gets a warning that it
/// does not wait for the listed containers.
fn optional_list(count: usize) -> String {
    let name = |index: usize| format!("c{}?", 900 - index);
    (0..count).map(name).collect::<Vec<_>>().join(",")
}

#[test]
fn unknown_fields_are_skipped() {
    let deep = format!("{}{}", "[".repeat(OBJECT), "]".repeat(OBJECT));
    answered(&deep);
    answered(&pod(&sidecars("a"), &deep));
    let spec = format!("{{\"volumes\":{deep},\"containers\":[{{\"name\":\"a\"}}]}}");
    let outcomes = answered(&pod(&sidecars("a"), &spec));
    assert_eq!(outcomes[0], Some(Outcome::Changed));
    let wide = many("{\"\":0}", MAX_REVIEW_BYTES - 4096);
    answered(&pod(&sidecars("a"), &format!("{{\"volumes\":[{wide}]}}")));
    let metadata = format!("{{\"managedFields\":[{wide}]}}");
    let of_nothing = pod(&json!({}), "{}").replace("\"metadata\":{", "\"metadata\":{\"more\":M,");
    answered(
        &of_nothing
            .replace('M', &metadata)
            .replace("METADATA", "metadata"),
    );
    answered(&format!("[{wide}]"));
    answered(&format!("{{\"a\":[{wide}]}}"));
}

#[test]
fn a_change_costs_no_more_than_its_bytes() {
    let containers = |prefix: &str| {
        let fields = ",\"readinessProbe\":{},\"livenessProbe\":{},\"restartPolicyRules\":[{}]";
        named(1000, fields).replace("\"c", &format!("\"{prefix}"))
    };
    let spec = |prefix: &str| format!("{{\"containers\":[{}]}}", containers(prefix));
    let template = |spec: &str| {
        let metadata = json!({ "annotations": { "usher/sidecars": "a0, b0" } });
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "shop" },
            "spec": { "template": { "metadata": metadata, "spec": spec } },
        })
    };
    let body = review(&template("NEW"), Some(&template("OLD"))).to_string();
    let body = body.replace("\"NEW\"", &spec("a"));
    answered(&body.replace("\"OLD\"", &spec("b")));
}
