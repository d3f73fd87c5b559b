//! Tests the comparison that `scripts/test-kubernetes --upstream` makes between outcomes of
//! Kubernetes' own tests. The compared reports are made up here.

#[path = "kubernetes/upstream/outcomes.rs"]
mod outcomes;

use serde_json::{Value, json};

use outcomes::{Count, Difference, Named, Outcome, Outcomes, quoted};

fn spec(kind: &str, above: &[&str], text: &str, state: &str, words: &str) -> Value {
    let mut spec = json!({
        "LeafNodeType": kind, "ContainerHierarchyTexts": above, "LeafNodeText": text, "State": state,
    });
    if !words.is_empty() {
        spec["Failure"] = json!({ "Message": words });
    }
    spec
}

fn outcomes(specs: &[(&str, &str, &str)]) -> Outcomes {
    let specs = specs.iter();
    let specs: Vec<Value> = specs
        .map(|(name, state, words)| spec("It", &[], name, state, words))
        .collect();
    let report = json!([{ "SpecReports": specs }]);
    Outcomes::of_report(&report.to_string()).unwrap()
}

fn names(differences: &[Difference]) -> Vec<&str> {
    differences.iter().map(|d| &*d.name).collect()
}

#[test]
fn a_test_name_includes_the_texts_of_its_containers() {
    let report = json!([{ "SpecReports": [
        spec("It", &["[sig-node] Pods", "with a probe"], "are restarted", "passed", ""),
        { "LeafNodeType": "It", "ContainerHierarchyTexts": null, "LeafNodeText": "alone", "State": "passed" },
    ] }]);
    let outcomes = Outcomes::of_report(&report.to_string()).unwrap();
    let names: Vec<&str> = outcomes.iter().map(|(name, _)| name).collect();
    assert_eq!(
        names,
        ["[sig-node] Pods with a probe are restarted", "alone"]
    );
}

#[test]
fn unselected_tests_and_suite_nodes_do_not_count() {
    let report = json!([{ "SpecReports": [
        spec("SynchronizedBeforeSuite", &[], "", "passed", ""),
        spec("It", &[], "not chosen", "skipped", ""),
        spec("It", &[], "not written", "pending", ""),
        spec("It", &[], "not here", "skipped", "needs SELinux"),
    ] }]);
    let outcomes = Outcomes::of_report(&report.to_string()).unwrap();
    let count = Count {
        inapplicable: 1,
        ..Count::default()
    };
    assert_eq!(outcomes.count(), count);
}

#[test]
fn every_state_but_passed_counts_as_failed() {
    let outcomes = outcomes(&[
        ("a", "failed", "expected 1"),
        ("b", "timedout", "too long"),
        ("c", "panicked", ""),
        ("d", "interrupted", ""),
        ("e", "passed", ""),
    ]);
    let count = Count {
        passed: 1,
        failed: 4,
        inapplicable: 0,
    };
    assert_eq!(outcomes.count(), count);
}

#[test]
fn a_different_or_missing_outcome_is_a_difference() {
    let control = outcomes(&[
        ("broken by us", "passed", ""),
        ("ended alike", "failed", "after 3 s"),
        ("mended by us", "failed", "no"),
        ("only here", "passed", ""),
        ("said to be none here", "passed", ""),
    ]);
    let ours = outcomes(&[
        ("broken by us", "failed", "no"),
        ("ended alike", "failed", "after 4 s"),
        ("mended by us", "passed", ""),
        ("only there", "passed", ""),
        ("said to be none here", "skipped", "no user namespaces"),
    ]);
    let differences = control.differences(&ours);
    let expected = [
        "broken by us",
        "mended by us",
        "only here",
        "only there",
        "said to be none here",
    ];
    assert_eq!(names(&differences), expected);
    assert_eq!(differences[2].ours, None);
    assert_eq!(control.differences(&control), []);
}

#[test]
fn a_later_run_replaces_the_outcomes_of_its_tests() {
    let mut known = outcomes(&[("a", "failed", "no"), ("b", "failed", "no")]);
    known.replace_by(&outcomes(&[("a", "passed", "")]));
    let expected = outcomes(&[("a", "passed", ""), ("b", "failed", "no")]);
    assert_eq!(known, expected);
}

#[test]
fn a_named_difference_has_a_reason() {
    let named = Named::of("# of them\n\n[sig-node] A b\n    since it\n    does\nC\n  so\n");
    let named = named.unwrap();
    assert_eq!(named.reason("[sig-node] A b"), Some("since it does"));
    assert_eq!(named.reason("C"), Some("so"));
    assert_eq!(named.reason("A b"), None);
    assert!(Named::of("a\nb\n  why\n").unwrap_err().contains("\"a\""));
    assert!(Named::of("  why\n").is_err());
}

#[test]
fn a_test_name_is_quoted_for_regular_expressions() {
    assert_eq!(quoted("[sig-node] a.b (c)"), r"\[sig\-node\] a\.b \(c\)");
}

#[test]
fn a_failure_message_is_printed_on_one_line() {
    let failed = Outcome::Failed("expected\n    <int>: 1".to_owned());
    assert_eq!(failed.brief(), "failed: expected <int>: 1");
}

#[test]
fn an_invalid_report_is_an_error() {
    assert!(Outcomes::of_report("").is_err());
    assert!(Outcomes::of_report("{}").is_err());
}

#[test]
fn all_named_differences_have_reasons() {
    let differences = include_str!("kubernetes/upstream/differences");
    let left_out = include_str!("kubernetes/upstream/left-out");
    for text in [differences, left_out] {
        let named = Named::of(text).unwrap();
        assert!(named.names().all(|name| named.reason(name).is_some()));
    }
}
