//! Whatever a pod's author writes, the answer is a plan without contradictions or one sentence.

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::plan::identity::Identity;
use crate::plan::kubelet::KubeletFacts;
use crate::plan::word::Word;
use crate::plan::{ContainerSetting, Plan, PodSetting, Role, Stage};

fn name() -> impl Strategy<Value = String> {
    prop_oneof![8 => "[a-e]", 1 => "[a-z0-9._-]{0,5}", 1 => any::<String>()]
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => prop::sample::select(PodSetting::WORDS).prop_map(|setting| format!("usher/{setting}")),
        6 => (prop::sample::select(ContainerSetting::WORDS), name())
            .prop_map(|(setting, name)| format!("{setting}.usher/{name}")),
        1 => any::<String>().prop_map(|name| format!("usher/{name}")),
        1 => prop::sample::select(vec!["preStopHandler", "ports", "restartCount"])
            .prop_map(|fact| format!("io.kubernetes.container.{fact}")),
        1 => any::<String>(),
    ]
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => prop::collection::vec(name(), 0..4).prop_map(|names| names.join(", ")),
        3 => prop::sample::select(vec![
            "Auto", "Never", "Mask", "Off", "Reserve", "3s", "0", "INT", r#"{"probe": true}"#,
            r#"{"tcpSocket": {"port": 80}}"#, r#"{"exec": {"command": ["a"]}}"#,
            r#"{"limits": {"cpu": "1", "memory": 5e-3}}"#, r#"{"sleep": {"seconds": 3}}"#,
        ]).prop_map(str::to_owned),
        2 => r#"[\[\]{}:," a-f0-9.e-]{0,60}"#,
        2 => r#"\{"(exec|httpGet|tcpSocket|grpc|sleep|limits|requests)": ?[\[{]"(port|command|host|seconds|cpu)": ?[-"0-9a-z\[\]{}]{0,8}\}\}"#,
        1 => any::<String>(),
    ]
}

fn sane(plan: &Plan, annotations: &BTreeMap<String, String>) {
    let mut staged: Vec<&String> = plan
        .stages()
        .iter()
        .flat_map(|Stage(names)| names)
        .collect();
    let mut listed: Vec<&String> = plan.init().iter().chain(plan.sidecars()).collect();
    for name in &staged {
        assert!(matches!(plan.role(name), Role::Init | Role::Sidecar));
        assert!(plan.position(name).is_some());
    }
    staged.sort();
    listed.sort();
    assert_eq!(staged, listed, "{annotations:?}");
    assert!(plan.apps().is_none_or(|apps| !apps.is_empty()));
    assert!(plan.stages().iter().all(|Stage(names)| !names.is_empty()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn any_annotations_make_a_sane_plan_or_one_short_sentence(
        annotations in prop::collection::btree_map(key(), value(), 0..4)
    ) {
        match Plan::validate(&annotations) {
            Ok(plan) => sane(&plan, &annotations),
            Err(error) => {
                let sentence = error.to_string();
                prop_assert!(!sentence.contains('\n'), "{}", sentence);
                prop_assert!(sentence.chars().count() < 4_000, "{}", sentence);
            }
        }
        let _ = Plan::parse(&annotations);
        let _ = KubeletFacts::read(&annotations);
        let _ = Identity::read("id", &annotations);
    }

    #[test]
    fn what_is_supported_is_valid_and_the_same(
        annotations in prop::collection::btree_map(key(), value(), 0..3)
    ) {
        if let Ok(plan) = Plan::parse(&annotations) {
            prop_assert_eq!(Plan::validate(&annotations), Ok(plan));
        }
    }
}
