//! Tests that judging the most expensive pods costs little, and that the answers about them are
//! small.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::manifest::Owner;
use crate::plan::Roles;
use usher_fuzz::cost;

/// Maximum size of the answer about one pod, in bytes of JSON.
const OUTPUT_AT_MOST: usize = 8 << 20;

fn pod(annotations: &[(&str, String)], spec: &Value) -> Pod {
    let owner = Owner {
        kind: "Job".to_owned(),
        name: "shop".to_owned(),
        namespace: None,
    };
    let annotations: BTreeMap<_, _> = annotations.iter().cloned().collect();
    let pod = json!({"metadata": {"annotations": annotations}, "spec": spec});
    Pod::read(&owner, &pod).unwrap()
}

/// The names `c1`, `c2`, …, each followed by `mark`.
fn names(range: std::ops::Range<usize>, mark: &str) -> String {
    let names = range.map(|index| format!("c{index}{mark}"));
    names.collect::<Vec<_>>().join(",")
}

/// A spec with as many containers as a pod may have, of which the first `init` are init containers.
fn spec(init: usize) -> Value {
    let container = |index: usize| {
        json!({
            "name": format!("c{index}"),
            "startupProbe": {"httpGet": {"port": 1}},
            "livenessProbe": {"httpGet": {"port": 1}},
            "readinessProbe": {},
            "lifecycle": {"postStart": {"httpGet": {}}, "stopSignal": "SIGQUIT"},
            "resources": {"requests": {"cpu": "1m"}},
            "restartPolicyRules": [{
                "action": "Restart",
                "exitCodes": {"operator": "In", "values": [index % 256, index / 256, index % 7]},
            }],
        })
    };
    let all: Vec<Value> = (0..1000).map(container).collect();
    let (init, containers) = all.split_at(init);
    json!({
        "restartPolicy": "Never",
        "initContainers": init,
        "containers": containers,
        "resources": {"requests": {"cpu": "10"}},
    })
}

/// Completes and judges the pod, and makes the whole answer of `usher explain`. Returns the size of
/// the answer.
#[track_caller]
fn said(pod: &Pod, rules: &Rules) -> usize {
    let said = cost::assert_cheap(1 << 20, || {
        let mut completed = pod.clone();
        let completion = complete(pod, rules);
        if let Ok(Some(completion)) = &completion {
            completion.apply(&mut completed);
        }
        let mut length = 0;
        for pod in [pod, &completed] {
            let judgement = Judgement::of(pod, rules);
            let plan = judgement.plan.as_ref();
            let start = plan.map(|plan| entries(plan, pod));
            let later = plan.map(|plan| added_later(plan, pod));
            let stop = plan.map(|plan| termination(plan, pod));
            let resources = resources(plan, pod);
            let said = (start, later, stop, resources, &judgement.warnings);
            let said = serde_json::to_string(&said).unwrap().len();
            assert!(said <= OUTPUT_AT_MOST, "{said}");
            length += said;
        }
        length
    });
    assert!(said > 0);
    said
}

#[test]
fn no_pod_costs_more_than_its_bound_to_judge() {
    let lists: [&[(&str, String)]; 9] = [
        &[("usher/sidecars", names(0..256, ""))],
        &[
            ("usher/sidecars", names(744..1000, "?")),
            ("usher/init", names(400..656, "?")),
        ],
        &[
            ("usher/init", names(744..1000, "")),
            ("usher/sidecars", names(400..656, "")),
            ("usher/start-mode", "Hold".to_owned()),
        ],
        &[
            ("usher/pre-exit", names(744..1000, "")),
            ("usher/post-exit", names(400..656, "")),
            ("usher/sidecars", names(0..250, "")),
        ],
        &[("usher/apps", "c999".to_owned())],
        &[
            ("usher/sidecars", names(0..256, "")),
            ("usher/essential", names(0..256, "")),
        ],
        &[("usher/native-init", names(0..256, ""))],
        &[("usher/sidecars", "*c*1*,*c*2*,*9".to_owned())],
        &[("usher/init", "other".to_owned())],
    ];
    for annotations in lists {
        for init in [0, 500] {
            let pod = pod(annotations, &spec(init));
            said(&pod, &Rules::default());
        }
    }
    let mut everywhere = Rules::default();
    everywhere.roles = Roles::new(["c*", "*-proxy"], true).unwrap();
    said(&pod(&[], &spec(500)), &everywhere);
}

#[test]
fn defer_containers_that_run_again_cost_no_more() {
    let mut annotations = vec![("usher/pre-exit".to_owned(), names(700..956, ""))];
    for index in 700..956 {
        annotations.push((format!("restart.usher/c{index}"), "Always".to_owned()));
    }
    let annotations: Vec<(&str, String)> = annotations
        .iter()
        .map(|(key, value)| (key.as_str(), value.clone()))
        .collect();
    said(&pod(&annotations, &spec(0)), &Rules::default());
}

#[test]
fn too_many_patterns_are_refused_before_they_are_compared() {
    let patterns = |count: usize| {
        let patterns = (0..count).map(|index| format!("*c*{index}*"));
        patterns.collect::<Vec<_>>().join(",")
    };
    for (count, sentence) in [
        (
            257,
            "usher/sidecars lists 257 names and patterns; expected at most 256",
        ),
        (
            100,
            "usher/sidecars has patterns that need 100000 comparisons with names of containers; \
             expected at most 65536 for a pod",
        ),
    ] {
        let pod = pod(&[("usher/sidecars", patterns(count))], &spec(0));
        let refused = Judgement::of(&pod, &Rules::default()).refused;
        assert_eq!(refused.as_deref(), Some(sentence));
        let error = complete(&pod, &Rules::default()).unwrap_err();
        assert_eq!(error.to_string(), sentence);
    }
    let long = [("usher/sidecars", "c*, ".repeat(5000))];
    let refused = Judgement::of(&pod(&long, &spec(0)), &Rules::default()).refused;
    assert!(refused.unwrap().contains("is 20000 bytes long"));
}

#[test]
fn a_long_list_of_names_is_cut_short() {
    let names: Vec<String> = (0..100).map(|index| format!("c{index}")).collect();
    let few = order::few(names.iter().map(String::as_str));
    assert_eq!(few.len(), 33);
    assert_eq!(few.last().unwrap(), "and 68 more");
    let long = "a".repeat(200);
    let few = order::few(std::iter::repeat_n(long.as_str(), 7));
    assert_eq!(few.last().unwrap(), "and 2 more");
}
