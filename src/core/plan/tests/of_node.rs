//! Roles that the node gives to unlisted containers.

use std::collections::BTreeMap;

use crate::plan::{Origin, Plan, Role, Roles, Rules, Stage};

fn under(everywhere: bool, annotations: &[(&str, &str)]) -> Plan {
    let rules = Rules {
        roles: Roles::new(["istio-proxy", "*-exporter"], everywhere).unwrap(),
        ..Rules::default()
    };
    let annotations: BTreeMap<_, _> = annotations
        .iter()
        .map(|&(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    Plan::parse_under(&annotations, &rules).unwrap().plan
}

#[test]
fn a_container_with_a_role_of_the_node_only_is_an_optional_sidecar() {
    let mut plan = under(false, &[("usher/init", "setup"), ("usher/apps", "web")]);
    assert_eq!(plan.role("istio-proxy"), Role::Sidecar);
    assert_eq!(plan.origin("istio-proxy"), Origin::Node);
    assert_eq!(plan.origin("setup"), Origin::List);
    assert_eq!(plan.origin("debugger"), Origin::Default);
    assert!(plan.is_optional("istio-proxy"));
    assert!(plan.sidecars().is_empty());
    plan.mark_present("istio-proxy");
    plan.mark_present("node-exporter");
    plan.mark_present("debugger");
    assert_eq!(plan.sidecars(), ["istio-proxy", "node-exporter"]);
    let stage = Stage(vec!["istio-proxy".into(), "node-exporter".into()]);
    assert_eq!(plan.stages().last(), Some(&stage));
    plan.forget_who_came();
    assert!(plan.sidecars().is_empty());
}

#[test]
fn it_starts_beside_the_sidecars_or_after_all_that_are_in_order() {
    let last = |annotations: &[(&str, &str)]| {
        let mut plan = under(false, annotations);
        plan.mark_present("istio-proxy");
        plan.stages().last().unwrap().0.join(" ")
    };
    assert_eq!(last(&[("usher/sidecars", "logs")]), "logs istio-proxy");
    // `logs` is optional and absent, so the node's sidecar is alone in the stage.
    assert_eq!(last(&[("usher/sidecars", "logs?")]), "istio-proxy");
    let serial = [("usher/sidecars", "logs"), ("usher/startup-order", "logs")];
    assert_eq!(last(&serial), "istio-proxy");
}

#[test]
fn a_list_of_the_pod_comes_first() {
    let plan = under(true, &[("usher/apps", "istio-proxy")]);
    assert_eq!(plan.role("istio-proxy"), Role::App);
    assert_eq!(plan.origin("istio-proxy"), Origin::List);
}

#[test]
fn a_pod_without_annotations_is_left_alone_unless_the_node_has_a_role_for_one_of_its_containers() {
    let mut plan = under(false, &[]);
    plan.mark_present("istio-proxy");
    assert!(plan.is_empty());
    assert_eq!(plan.role("istio-proxy"), Role::Guest);
    let mut plan = under(true, &[]);
    plan.mark_present("web");
    assert!(plan.is_empty());
    assert_eq!(plan.role("web"), Role::App);
    plan.mark_present("istio-proxy");
    assert!(!plan.is_empty());
    assert_eq!(plan.role("istio-proxy"), Role::Sidecar);
}

#[test]
fn patterns_are_names_with_any_part_in_them() {
    let roles = Roles::new(["a*b*c", "*x", "y*", "exact"], false).unwrap();
    for name in ["abc", "a1b2c", "abbcc", "x", "1x", "y", "y-1", "exact"] {
        assert!(roles.is_sidecar(name), "{name}");
    }
    for name in ["ab", "bc", "acb", "xa", "ay", "exactly", "", "a b c"] {
        assert!(!roles.is_sidecar(name), "{name}");
    }
    // The parts before and after `*` must not overlap in a name.
    assert!(!Roles::new(["ab*ba"], false).unwrap().is_sidecar("aba"));
}

#[test]
fn an_invalid_pattern_is_refused() {
    for (pattern, words) in [
        ("", "is no pattern; expected a name of a container"),
        ("*", "is no pattern"),
        ("a b", "is no pattern"),
        ("-a", "is no pattern"),
        ("a?", "is no pattern"),
    ] {
        let sentence = Roles::new([pattern], false).unwrap_err().to_string();
        assert!(
            sentence.starts_with(&format!("sidecars: \"{pattern}\" {words}")),
            "{sentence}"
        );
    }
    let sentence = Roles::new(["a", "a"], false).unwrap_err().to_string();
    assert!(sentence.contains("\"a\" is listed twice"), "{sentence}");
    assert!(Roles::new(Vec::<String>::new(), true).is_err());
}

#[test]
fn optional_names_beyond_the_limit_of_a_list_are_left_out() {
    let mut plan = under(true, &[]);
    for number in 0..1000 {
        plan.mark_present(&format!("{number}-exporter"));
    }
    assert_eq!(plan.sidecars().len(), 256);
}
