use std::time::Duration;

use super::{plan, refusal};
use crate::plan::{Amounts, ContainerPlan, ExitCodes, RestartPolicy};

const PROBE: &str = r#"{"tcpSocket": {"port": 80}}"#;

const ROLES: [(&str, &str); 6] = [
    ("usher/init", "init"),
    ("usher/native-init", "native-init"),
    ("usher/sidecars", "sidecar"),
    ("usher/apps", "app"),
    ("usher/pre-exit", "defer"),
    ("usher/post-exit", "later"),
];

#[test]
fn most_containers_get_no_warning() {
    assert_eq!(
        *plan(&[("usher/sidecars", "p")]).container("p"),
        ContainerPlan::default()
    );
}

#[test]
fn the_settings_of_one_container_are_read_together() {
    let plan = plan(&[
        ("usher/sidecars", "p"),
        ("restart.usher/p", "OnFailure"),
        ("grace-period.usher/p", "1.5s"),
    ]);
    let expected = ContainerPlan {
        restart: Some(RestartPolicy::OnFailure),
        grace_period: Some(Duration::from_millis(1500)),
        ..ContainerPlan::default()
    };
    assert_eq!(*plan.container("p"), expected);
}

#[test]
fn a_setting_that_the_role_has_no_use_for_is_refused() {
    let settings: [(&str, &str, &[&str]); 9] = [
        ("startup-probe", PROBE, &["sidecar"]),
        (
            "restart-policy",
            "OnFailure",
            &["init", "native-init", "app"],
        ),
        ("caller-restarts", "42", &["init", "native-init", "app"]),
        ("liveness-probe", PROBE, &["sidecar", "defer", "later"]),
        ("termination-hook", PROBE, &["sidecar", "app"]),
        ("restart", "Always", &["sidecar", "defer", "later"]),
        (
            "grace-period",
            "1s",
            &["init", "sidecar", "app", "defer", "later"],
        ),
        (
            "stop-signal",
            "INT",
            &["init", "sidecar", "app", "defer", "later"],
        ),
        (
            "resources",
            "{}",
            &["init", "native-init", "sidecar", "app", "defer", "later"],
        ),
    ];
    for (setting, value, users) in settings {
        for name in [
            "init",
            "native-init",
            "sidecar",
            "app",
            "defer",
            "later",
            "guest",
        ] {
            let key = format!("{setting}.usher/{name}");
            let pairs = [&ROLES[..], &[(&key, value)]].concat();
            if users.contains(&name) {
                plan(&pairs);
            } else {
                let sentence = refusal(&pairs);
                assert!(
                    sentence.contains("; expected a container whose role is "),
                    "{sentence}"
                );
            }
        }
    }
}

#[test]
fn the_refusal_names_the_role_and_those_of_use() {
    assert_eq!(
        refusal(&[("usher/sidecars", "p"), ("restart.usher/web", "Always")]),
        "restart.usher/web: web is in none of usher/sidecars, usher/pre-exit, usher/post-exit, and its role is \
         app; expected a container whose role is sidecar or defer"
    );
}

#[test]
fn a_name_that_a_list_misspells_is_named_with_that_list_in_plain_text() {
    let refused = |sidecars: &str, name: &str| {
        let key = format!("startup-probe.usher/{name}");
        let roles = [("usher/sidecars", sidecars), ("usher/apps", "web, prox")];
        refusal(&[&roles[..], &[(&key, PROBE)]].concat())
    };
    let expected = "startup-probe.usher/proxy: proxy is not in usher/sidecars, and its role is guest; expected a \
        container whose role is sidecar; usher/sidecars lists proxi: is one of the two misspelled?";
    assert_eq!(refused("logs, proxi", "proxy"), expected);
    for near in ["proy", "proxyy", "prxoy", "poxy", "Proxy"] {
        let sentence = refused(near, "proxy");
        let hint = format!("; usher/sidecars lists {near}: is one of the two misspelled?");
        assert!(sentence.ends_with(&hint), "{sentence}");
    }
    for far in ["logs", "p", "metrics", "pro"] {
        let sentence = refused(far, "proxy");
        assert!(sentence.ends_with("whose role is sidecar"), "{sentence}");
    }
}

#[test]
fn a_container_in_no_list_may_have_what_an_app_may_have() {
    let plan = plan(&[
        ("stop-signal.usher/web", "INT"),
        ("termination-hook.usher/web", PROBE),
    ]);
    assert!(plan.container("web").termination_hook.is_some());
}

#[test]
fn exit_codes_are_listed_or_excluded() {
    let read = |text: &str| {
        let plan = plan(&[("caller-restarts.usher/web", text)]);
        plan.container("web").caller_restarts.clone()
    };
    let listed = read("0, 42 137,255");
    for (code, is_listed) in [(0, true), (42, true), (137, true), (255, true), (1, false)] {
        assert_eq!(listed.contains(code), is_listed, "{code}");
    }
    let excluded = read("! 0, 1");
    for (code, is_matched) in [(0, false), (1, false), (2, true), (255, true)] {
        assert_eq!(excluded.contains(code), is_matched, "{code}");
    }
    let all = read("!");
    assert!(all.contains(0) && all.contains(255));
    // No process exits with a code above 255.
    for code in [256, 298, u32::MAX] {
        assert!(!listed.contains(code) && !all.contains(code), "{code}");
    }
}

#[test]
fn exit_codes_that_are_none_are_refused() {
    for (text, expected) in [
        ("", "lists nothing; expected at least one exit code"),
        (
            "1,,2",
            "has an empty exit code; expected exit codes separated by",
        ),
        (
            "256",
            "lists \"256\"; expected exit codes from 0 to 255, or ! and",
        ),
        ("-1", "lists \"-1\"; expected exit codes"),
        ("+1", "lists \"+1\"; expected exit codes"),
        ("1 !2", "lists \"!2\"; expected exit codes"),
        ("1, 2, 01", "lists 1 twice; expected each exit code once"),
        ("In 1", "lists \"In\"; expected exit codes"),
    ] {
        let sentence = refusal(&[("caller-restarts.usher/web", text)]);
        assert!(sentence.contains(expected), "{text}: {sentence}");
    }
}

#[test]
fn exit_codes_are_shown_in_the_shorter_form_and_read_back() {
    let shown = |codes: &ExitCodes| {
        let text = codes.to_string();
        let plan = plan(&[("caller-restarts.usher/web", &text)]);
        assert_eq!(plan.container("web").caller_restarts, *codes, "{text}");
        text
    };
    let some: ExitCodes = [43, 42].into_iter().collect();
    assert_eq!(shown(&some), "42, 43");
    assert_eq!(shown(&some.complement()), "!42, 43");
    assert_eq!(shown(&ExitCodes::all()), "!");
    assert_eq!(ExitCodes::default().to_string(), "");
}

#[test]
fn a_container_is_created_again_by_its_own_policy_or_by_its_exit_codes() {
    let plan = plan(&[
        ("usher/restart-policy", "Never"),
        ("restart-policy.usher/own", "OnFailure"),
        ("restart-policy.usher/both", "OnFailure"),
        ("caller-restarts.usher/both", "0"),
        ("caller-restarts.usher/codes", "42"),
    ]);
    for (name, code, expected) in [
        ("own", 1, true),
        ("own", 0, false),
        ("both", 0, true),
        ("both", 1, true),
        ("codes", 42, true),
        ("codes", 1, false),
        ("plain", 1, false),
    ] {
        assert_eq!(plan.is_created_again(name, code), expected, "{name} {code}");
    }
}

#[test]
fn resources_are_read_in_millicores_and_bytes() {
    let json = r#"{"requests": {"cpu": "100m", "memory": "1.5Mi", "example.com/gpu": 1, "hugepages-2Mi": "4Mi"},
        "limits": {"cpu": 0.5, "memory": 2000000, "ephemeral-storage": "1Gi"}, "claims": [{"name": "gpu"}]}"#;
    let plan = plan(&[("resources.usher/web", json)]);
    let resources = plan.container("web").resources.as_ref().expect("resources");
    assert_eq!(
        resources.requests(),
        Amounts {
            cpu_millis: Some(100),
            memory_bytes: Some(3 << 19)
        }
    );
    assert_eq!(
        resources.limits(),
        Amounts {
            cpu_millis: Some(500),
            memory_bytes: Some(2_000_000)
        }
    );
}

#[test]
fn a_request_that_is_not_given_is_the_limit() {
    let plan = plan(&[(
        "resources.usher/web",
        r#"{"requests": {"cpu": 1}, "limits": {"memory": "1Gi"}}"#,
    )]);
    let resources = plan.container("web").resources.as_ref().expect("resources");
    assert_eq!(
        resources.requests(),
        Amounts {
            cpu_millis: Some(1000),
            memory_bytes: Some(1 << 30)
        }
    );
    assert_eq!(resources.limits().cpu_millis, None);
}

#[test]
fn resources_that_are_none_are_refused() {
    let refused = [
        ("[]", "expected an object"),
        (r#"{"request": {}}"#, "unknown field `request`"),
        (r#"{"limits": []}"#, "expected an object of resource names"),
        (
            r#"{"limits": {"cpu": "lots"}}"#,
            "\"cpu\": \"lots\" is not a Kubernetes quantity",
        ),
        (
            r#"{"limits": {"memory": "1GiB"}}"#,
            "\"memory\": \"1GiB\" is not a Kubernetes quantity; expected one such as",
        ),
        (r#"{"limits": {"cpu": null}}"#, "expected a quantity"),
        (r#"{"limits": {"cpu": -1}}"#, "\"-1\" is negative"),
        (r#"{"limits": {"memory": "8Ei"}}"#, "is too much"),
        (
            r#"{"limits": {"example.com/gpu": "many"}}"#,
            "is not a Kubernetes quantity",
        ),
        (
            r#"{"limits": {"/gpu": "1"}}"#,
            "\"/gpu\" is no resource name",
        ),
        (r#"{"limits": {"": "1"}}"#, "\"\" is no resource name"),
        (
            r#"{"limits": {"cpu": "1", "cpu": "2"}}"#,
            "duplicate field \"cpu\"",
        ),
        (
            r#"{"requests": {"cpu": 2}, "limits": {"cpu": 1}}"#,
            "requests more cpu than its limit",
        ),
        (
            r#"{"requests": {"memory": 2}, "limits": {"memory": 1}}"#,
            "requests more memory than its limit",
        ),
        (r#"{"claims": [{"name": 1}]}"#, "expected a string"),
    ];
    for (json, expected) in refused {
        let sentence = refusal(&[("resources.usher/web", json)]);
        assert!(sentence.contains(expected), "{json}: {sentence}");
    }
}
