use std::time::Duration;

use super::{plan, refusal};
use crate::plan::{Amounts, ContainerPlan, RestartPolicy};

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
fn nothing_is_said_about_most_containers() {
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
    let settings: [(&str, &str, &[&str]); 7] = [
        ("startup-probe", PROBE, &["sidecar"]),
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
        "restart.usher/web: \"Always\" is for \"web\", whose role is app; expected a container whose role is sidecar or defer"
    );
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
