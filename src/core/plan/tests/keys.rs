use super::{annotations, plan, refusal};
use crate::plan::{Plan, Role};

#[test]
fn a_pod_without_usher_keys_is_none_of_our_business() {
    let plan = plan(&[
        ("io.kubernetes.cri.container-type", "container"),
        ("usher", "x"),
        ("a/usher/b", "x"),
    ]);
    assert!(plan.is_empty());
    assert_eq!(plan.role("web"), Role::Guest);
    assert!(plan.stages().is_empty());
}

#[test]
fn any_usher_key_makes_a_plan() {
    assert!(!plan(&[("usher/grace-period", "10s")]).is_empty());
    assert!(!plan(&[("stop-signal.usher/web", "INT")]).is_empty());
}

#[test]
fn an_unknown_pod_wide_key_is_refused_with_the_known_ones() {
    let sentence = refusal(&[("usher/inti", "a")]);
    assert!(
        sentence.starts_with(
            "unknown annotation usher/inti; expected usher/ and one of init, native-init, "
        ) && sentence.ends_with("; did you mean usher/init?"),
        "{sentence}"
    );
    for key in [
        "usher/",
        "usher/Init",
        "usher/startup-probe",
        "usher/init/x",
    ] {
        assert!(
            refusal(&[(key, "a")]).starts_with("unknown annotation "),
            "{key}"
        );
    }
}

#[test]
fn an_unknown_setting_of_a_container_is_refused_with_the_known_ones() {
    let sentence = refusal(&[("startup-prob.usher/web", "{}")]);
    assert_eq!(
        sentence,
        "unknown annotation startup-prob.usher/web; expected one of startup-probe, \
         restart-policy, caller-restarts, liveness-probe, termination-hook, restart, grace-period, stop-signal, resources before .usher/; did \
         you mean startup-probe.usher/web?"
    );
    for key in [".usher/web", "sidecars.usher/web", "x.restart.usher/web"] {
        assert!(
            refusal(&[(key, "a")]).starts_with("unknown annotation "),
            "{key}"
        );
    }
}

#[test]
fn a_misspelled_key_is_reported_with_the_intended_one() {
    for (key, meant) in [
        ("usher/sidecar", Some("usher/sidecars")),
        ("usher/post_exit", Some("usher/post-exit")),
        ("usher/startup-probe", Some("startup-probe.usher/CONTAINER")),
        ("sidecars.usher/web", Some("usher/sidecars")),
        ("stop-signl.usher/web", Some("stop-signal.usher/web")),
        ("usher/nothing", None),
    ] {
        let sentence = refusal(&[(key, "a")]);
        let end = meant.map_or("cgroup-sizing".to_owned(), |meant| {
            format!("; did you mean {meant}?")
        });
        assert!(sentence.ends_with(&end), "{sentence}");
    }
}

#[test]
fn a_key_for_a_container_without_a_proper_name_is_refused() {
    assert!(
        refusal(&[("restart.usher/", "Always")]).contains("container named \"\"; expected a name")
    );
    assert!(refusal(&[("restart.usher/a b", "Always")]).contains("container named \"a b\""));
    assert!(refusal(&[("restart.usher/a/b", "Always")]).contains("container named \"a/b\""));
}

#[test]
fn a_value_of_16_kib_is_read_and_a_longer_one_refused() {
    let padded = |length: usize| format!("a{}", " ".repeat(length - 1));
    assert_eq!(
        plan(&[("usher/sidecars", &padded(16 * 1024))]).sidecars(),
        ["a"]
    );
    let sentence = refusal(&[("usher/sidecars", &padded(16 * 1024 + 1))]);
    assert!(
        sentence.ends_with("…\" is 16385 bytes long; expected at most 16384"),
        "{sentence}"
    );
}

#[test]
fn a_long_value_is_shortened_between_characters() {
    let sentence = refusal(&[("usher/start-mode", &"ü".repeat(100))]);
    assert_eq!(
        sentence,
        format!(
            "usher/start-mode: \"{}…\" is not one of Auto, Block, Hold",
            "ü".repeat(64)
        )
    );
}

#[test]
fn a_refusal_stays_on_one_line() {
    let pairs = [
        ("usher/start-mode", "a\nb\"c\u{202e}"),
        ("usher/a\nb", "x"),
        ("usher/init", "a\u{1b}[2J"),
        ("startup-probe.usher/p", "{\"a\\nb\": 1}"),
        ("resources.usher/p", "{\"limits\": {\"a\\nb\": \"\\n\"}}"),
    ];
    for pair in pairs {
        let sentence = refusal(&[pair]);
        assert!(!sentence.chars().any(char::is_control), "{sentence:?}");
    }
}

#[test]
fn a_long_parser_message_keeps_the_expectation() {
    let probe = format!("{{\"{}\": 1}}", "x".repeat(10_000));
    let sentence = refusal(&[("usher/sidecars", "p"), ("startup-probe.usher/p", &probe)]);
    assert!(
        sentence.contains("unknown field `xxx") && sentence.contains("expected one of `exec`"),
        "{sentence}"
    );
    assert!(sentence.chars().count() < 600, "{}", sentence.len());
}

#[test]
fn two_plans_that_say_the_same_are_equal() {
    let commas = Plan::parse(&annotations(&[("usher/sidecars", "a,b")])).unwrap();
    let spaces = Plan::parse(&annotations(&[
        ("usher/sidecars", " a\n b"),
        ("other", "x"),
    ]))
    .unwrap();
    assert_eq!(commas, spaces);
}
