use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::manifest::Owner;
use crate::plan::{Limits, Minimums, Roles};

fn pod(annotations: &[(&str, &str)], spec: Value) -> Pod {
    let owner = Owner {
        kind: "Pod".to_owned(),
        name: "shop".to_owned(),
        namespace: None,
    };
    let annotations: BTreeMap<_, _> = annotations.iter().copied().collect();
    Pod::read(
        &owner,
        &json!({"metadata": {"annotations": annotations}, "spec": spec}),
    )
    .unwrap()
}

fn containers(names: &[&str]) -> Value {
    names.iter().map(|name| json!({"name": name})).collect()
}

fn everywhere(patterns: &[&str], everywhere: bool) -> Rules {
    let mut rules = Rules::default();
    rules.roles = Roles::new(patterns, everywhere).unwrap();
    rules
}

/// Completes a pod. Asserts that completing it again changes nothing.
#[track_caller]
fn completed(mut pod: Pod, rules: &Rules) -> (Pod, Completion) {
    let completion = complete(&pod, rules).unwrap().unwrap();
    completion.apply(&mut pod);
    let again = complete(&pod, rules).unwrap().unwrap();
    assert!(again.is_empty(), "{again:?}");
    let judgement = Judgement::of(&pod, rules);
    assert_eq!(judgement.refused, None);
    (pod, completion)
}

/// The changes as text; a removal is `-`.
fn written(completion: &Completion) -> Vec<(&str, &str)> {
    let annotations = completion.annotations.iter();
    annotations
        .map(|(key, value)| (key.as_str(), value.as_deref().unwrap_or("-")))
        .collect()
}

#[test]
fn a_pod_that_has_nothing_to_do_with_usher_is_left_alone() {
    let other = pod(
        &[("example.com/usher", "x")],
        json!({"containers": containers(&["proxy"])}),
    );
    assert_eq!(complete(&other, &Rules::default()), Ok(None));
    assert_eq!(complete(&other, &everywhere(&["proxy"], false)), Ok(None));
    assert!(
        complete(&other, &everywhere(&["proxy"], true))
            .unwrap()
            .is_some()
    );
    assert_eq!(complete(&other, &everywhere(&["mesh"], true)), Ok(None));
}

#[test]
fn its_author_writes_one_list_and_nothing_else() {
    let spec = json!({
        "restartPolicy": "Never",
        "initContainers": [{"name": "fetch"}],
        "containers": [
            {
                "name": "proxy",
                "startupProbe": {"tcpSocket": {"port": 1}, "periodSeconds": 1},
                "livenessProbe": {"httpGet": {"port": "admin"}, "terminationGracePeriodSeconds": 5},
                "lifecycle": {"stopSignal": "SIGQUIT"},
                "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": 1, "memory": "64Mi"}},
            },
            {"name": "job", "livenessProbe": {"tcpSocket": {"port": 2}}},
        ],
    });
    let (pod, completion) = completed(pod(&[("usher/sidecars", "proxy")], spec), &Rules::default());
    assert_eq!(
        written(&completion),
        [
            (
                "liveness-probe.usher/proxy",
                r#"{"httpGet":{"port":"admin"}}"#
            ),
            (
                "resources.usher/proxy",
                r#"{"limits":{"cpu":"1","memory":"64Mi"},"requests":{"cpu":"100m","memory":"64Mi"}}"#
            ),
            (
                "startup-probe.usher/proxy",
                r#"{"periodSeconds":1,"tcpSocket":{"port":1}}"#
            ),
            ("stop-signal.usher/proxy", "SIGQUIT"),
            ("usher/apps", "job"),
            ("usher/native-init", "fetch"),
            ("usher/restart-policy", "Never"),
        ]
    );
    assert_eq!(completion.without_liveness_probe, ["proxy"]);
    let notes: Vec<_> = completion.notes.iter().map(Warning::to_string).collect();
    assert_eq!(
        notes,
        [
            "proxy: terminationGracePeriodSeconds of its livenessProbe is dropped: usher's probes do not have it"
        ]
    );
    assert!(pod.container("job").unwrap().liveness_probe.is_some());
    let warnings = Judgement::of(&pod, &Rules::default()).warnings;
    let about = |it: &Warning| it.container.clone();
    let about: Vec<String> = warnings.iter().filter_map(about).collect();
    assert_eq!(about, ["fetch"], "{warnings:?}");
}

#[test]
fn exits_after_which_kubelet_creates_a_container_again_are_written_for_those_that_end() {
    let rule = |action: &str, operator: &str, values: &[i64]| {
        let codes = json!({"operator": operator, "values": values});
        json!({"action": action, "exitCodes": codes})
    };
    let rules = json!([
        rule("Restart", "NotIn", &[0, 1, 300]),
        rule("RestartAllContainers", "In", &[1, -1]),
        rule("Other", "In", &[0]),
        {"action": "Restart"},
    ]);
    let ruled =
        |name: &str| json!({"name": name, "restartPolicy": "Never", "restartPolicyRules": rules});
    let spec = json!({
        "restartPolicy": "OnFailure",
        "initContainers": [
            {"name": "mesh", "restartPolicy": "Always"}, {"name": "fetch", "restartPolicy": "Never"},
        ],
        "containers": [
            ruled("setup"), ruled("proxy"), ruled("web"), ruled("bye"),
            {"name": "same", "restartPolicy": "OnFailure"}, {"name": "none", "restartPolicy": "Other"},
        ],
    });
    let annotations = [
        ("usher/init", "setup"),
        ("usher/sidecars", "proxy"),
        ("usher/post-exit", "bye"),
    ];
    let (_, completion) = completed(pod(&annotations, spec), &Rules::default());
    let written = written(&completion).into_iter();
    let written: Vec<_> = written
        .filter(|(key, _)| key.contains("restart") && !key.starts_with("usher/"))
        .collect();
    let expected = [
        ("caller-restarts.usher/setup", "!0"),
        ("caller-restarts.usher/web", "!0"),
        ("restart-policy.usher/fetch", "Never"),
        ("restart-policy.usher/setup", "Never"),
        ("restart-policy.usher/web", "Never"),
    ];
    assert_eq!(written, expected);
    assert_eq!(completion.notes, []);
}

#[test]
fn under_always_kubelet_restarts_an_unhealthy_container() {
    let spec = json!({"containers": [
        {"name": "proxy", "livenessProbe": {"tcpSocket": {"port": 1}}}, {"name": "web"},
    ]});
    let (_, completion) = completed(pod(&[("usher/sidecars", "proxy")], spec), &Rules::default());
    assert_eq!(
        written(&completion),
        [("usher/apps", "web"), ("usher/restart-policy", "Always")]
    );
    assert!(completion.without_liveness_probe.is_empty());
}

#[test]
fn annotations_of_the_author_are_kept() {
    let said = [
        ("usher/sidecars", "proxy"),
        ("usher/apps", "web"),
        ("usher/restart-policy", "OnFailure"),
        (
            "startup-probe.usher/proxy",
            r#"{"exec":{"command":["true"]}}"#,
        ),
        (
            "liveness-probe.usher/proxy",
            r#"{"exec":{"command":["true"]}}"#,
        ),
        ("stop-signal.usher/proxy", "INT"),
        ("resources.usher/proxy", "{}"),
    ];
    let probe = json!({"tcpSocket": {"port": 1}});
    let spec = json!({"restartPolicy": "Never", "containers": [
        {
            "name": "proxy",
            "startupProbe": probe,
            "livenessProbe": probe,
            "lifecycle": {"stopSignal": "SIGQUIT"},
            "resources": {"requests": {"cpu": "1"}},
        },
        {"name": "web"},
        {"name": "debug"},
    ]});
    let (_, completion) = completed(pod(&said, spec), &Rules::default());
    assert!(completion.is_empty(), "{completion:?}");
}

#[test]
fn patterns_become_the_names_that_there_are() {
    let spec = json!({
        "initContainers": containers(&["vpn-proxy"]),
        "containers": containers(&["a-proxy", "web", "b-proxy", "c-proxy"]),
    });
    let said = [
        ("usher/sidecars", "b-proxy *-proxy"),
        ("usher/post-exit", "c-proxy"),
    ];
    let (_, completion) = completed(pod(&said, spec.clone()), &Rules::default());
    assert_eq!(
        written(&completion),
        [
            ("usher/apps", "web"),
            ("usher/native-init", "vpn-proxy"),
            ("usher/restart-policy", "Always"),
            ("usher/sidecars", "b-proxy,a-proxy"),
        ]
    );
    // No container matches the pattern, but usher still handles the pod.
    let (_, completion) = completed(
        pod(&[("usher/sidecars", "*-agent")], spec),
        &Rules::default(),
    );
    assert!(written(&completion).contains(&("usher/sidecars", "-")));
    assert!(written(&completion).contains(&("usher/apps", "a-proxy,web,b-proxy,c-proxy")));
}

#[test]
fn of_optional_names_those_are_left_that_there_are() {
    let said = [
        ("usher/sidecars", "mesh? proxy?"),
        ("usher/startup-order", "mesh proxy"),
        ("usher/essential", "mesh"),
        ("startup-probe.usher/mesh", r#"{"tcpSocket":{"port":1}}"#),
    ];
    let spec = |names: &[&str]| json!({"containers": containers(names)});
    let (_, completion) = completed(pod(&said, spec(&["proxy", "web"])), &Rules::default());
    assert_eq!(
        written(&completion),
        [
            ("startup-probe.usher/mesh", "-"),
            ("usher/apps", "web"),
            ("usher/essential", "-"),
            ("usher/restart-policy", "Always"),
            ("usher/sidecars", "proxy"),
            ("usher/startup-order", "proxy"),
        ]
    );
    let (_, completion) = completed(
        pod(&said, spec(&["proxy", "web", "mesh"])),
        &Rules::default(),
    );
    assert_eq!(
        written(&completion),
        [
            ("usher/apps", "web"),
            ("usher/restart-policy", "Always"),
            ("usher/sidecars", "mesh,proxy"),
        ]
    );
}

/// An injector may add the same proxy as an ordinary container or as a native sidecar. Kubelet
/// itself handles native sidecars.
#[test]
fn an_optional_sidecar_that_is_kubelets_own_is_none_of_ours() {
    let said = [
        ("usher/sidecars", "mesh?, logs"),
        ("startup-probe.usher/mesh", r#"{"tcpSocket":{"port":1}}"#),
    ];
    let spec = json!({
        "initContainers": [{"name": "mesh", "restartPolicy": "Always"}, {"name": "migrate"}],
        "containers": containers(&["logs", "web"]),
    });
    let (_, completion) = completed(pod(&said, spec), &Rules::default());
    assert_eq!(
        written(&completion),
        [
            ("startup-probe.usher/mesh", "-"),
            ("usher/apps", "web"),
            ("usher/native-init", "mesh,migrate"),
            ("usher/restart-policy", "Always"),
            ("usher/sidecars", "logs"),
        ]
    );
}

/// The default startup timeout, five minutes, must not end the wait before the probes do.
#[test]
fn apps_wait_as_long_as_the_probes_of_the_spec_may_take() {
    let probe = |seconds: u32| json!({"tcpSocket": {"port": 1}, "periodSeconds": seconds, "failureThreshold": 60});
    let spec = |one: u32, other: u32| {
        json!({"containers": [
            {"name": "one", "startupProbe": probe(one)},
            {"name": "other", "startupProbe": probe(other)},
            {"name": "web"},
        ]})
    };
    let timeout = |said: &[(&str, &str)], one: u32, other: u32, rules: &Rules| {
        let said = [&[("usher/sidecars", "one, other")], said].concat();
        let (pod, completion) = completed(pod(&said, spec(one, other)), rules);
        let judgement = Judgement::of(&pod, rules);
        let is_too_long = |it: &Warning| it.says.contains("startup probe may take");
        let warned = judgement.warnings.iter().any(is_too_long);
        let timeout = completion.annotations.get("usher/startup-timeout");
        (timeout.cloned().flatten(), warned)
    };
    let rules = Rules::default();
    let minutes = |text: &str| (Some(text.to_owned()), false);
    // In the first case the probes run side by side, in the second case one after another.
    assert_eq!(timeout(&[], 7, 10, &rules), minutes("10m"));
    let serial = [("usher/startup-order", "one other")];
    assert_eq!(timeout(&serial, 7, 10, &rules), minutes("17m"));
    // In the first case the default timeout is long enough. In the second case the author has set a
    // timeout.
    assert_eq!(timeout(&[], 5, 4, &rules), (None, false));
    let said = [("usher/startup-timeout", "2m")];
    assert_eq!(timeout(&said, 7, 10, &rules), (None, true));
    // The node's limit forbids the longer timeout.
    let limits = Limits {
        startup_timeout: Some(Duration::from_secs(360)),
        ..Limits::default()
    };
    let bounded = Rules::new(&BTreeMap::new(), limits, Minimums::default()).unwrap();
    assert_eq!(timeout(&[], 7, 10, &bounded), (None, true));
}

#[test]
fn apps_wait_for_checks_of_a_startup_probe_that_take_longer_than_its_period() {
    let probe = json!({
        "tcpSocket": {"port": 1},
        "periodSeconds": 5, "timeoutSeconds": 30, "failureThreshold": 20,
    });
    let containers = json!([{"name": "proxy", "startupProbe": probe}, {"name": "web"}]);
    let pod = pod(
        &[("usher/sidecars", "proxy")],
        json!({"containers": containers}),
    );
    let (_, completion) = completed(pod, &Rules::default());
    assert_eq!(
        completion.annotations.get("usher/startup-timeout"),
        Some(&Some("10m".to_owned()))
    );
}

/// The shim accepts these pods as their author wrote them.
#[test]
fn a_list_that_would_be_refused_is_not_added() {
    let limits = Limits {
        names: Some(2),
        ..Limits::default()
    };
    let bounded = Rules::new(&BTreeMap::new(), limits, Minimums::default()).unwrap();
    let spec = json!({
        "initContainers": containers(&["migrate"]),
        "containers": containers(&["proxy", "a", "b", "c"]),
    });
    let essential = [("usher/sidecars", "proxy"), ("usher/essential", "injected")];
    for (said, rules) in [
        (&essential[..1], &bounded),
        (&essential[..], &Rules::default()),
    ] {
        let (_, completion) = completed(pod(said, spec.clone()), rules);
        let native_init = ("usher/native-init", "migrate");
        let written = written(&completion);
        assert_eq!(written, [native_init, ("usher/restart-policy", "Always")]);
        let notes: Vec<_> = completion.notes.iter().map(Warning::to_string).collect();
        assert!(
            matches!(&notes[..], [note] if note.starts_with("usher/apps is not added: ")),
            "{notes:?}"
        );
    }
}

#[test]
fn zeros_that_the_api_server_replaces_are_left_out_of_a_probe() {
    let zeros = json!({
        "tcpSocket": {"port": 1}, "initialDelaySeconds": 0,
        "periodSeconds": 0, "timeoutSeconds": 0, "successThreshold": 0, "failureThreshold": 0,
    });
    let (probe, lost) = fields::probe("startupProbe", zeros);
    let expected = json!({"tcpSocket": {"port": 1}, "initialDelaySeconds": 0});
    assert_eq!((probe, lost), (expected, Vec::new()));
}

#[test]
fn roles_of_the_node_are_written_into_the_annotations() {
    let spec = json!({
        "initContainers": containers(&["istio-init", "istio-native"]),
        "containers": containers(&["web", "istio-proxy"]),
    });
    let rules = everywhere(&["istio-*"], true);
    let (_, completion) = completed(pod(&[], spec.clone()), &rules);
    assert_eq!(
        written(&completion),
        [
            ("usher/apps", "web"),
            ("usher/native-init", "istio-init,istio-native"),
            ("usher/restart-policy", "Always"),
            ("usher/sidecars", "istio-proxy"),
        ]
    );
    let said = [("usher/sidecars", "web"), ("usher/startup-order", "web")];
    let (_, completion) = completed(pod(&said, spec), &rules);
    assert!(written(&completion).contains(&("usher/sidecars", "web,istio-proxy")));
    assert!(written(&completion).contains(&("usher/startup-order", "web,istio-proxy")));
}

#[test]
fn pods_that_the_shim_would_refuse_get_its_error() {
    let spec = json!({"containers": containers(&["web"])});
    let refused = |key, value| {
        let pod = pod(&[(key, value)], spec.clone());
        complete(&pod, &Rules::default()).unwrap_err().to_string()
    };
    assert_eq!(
        refused("usher/start-mode", "Slow"),
        "usher/start-mode: \"Slow\" is not one of Auto, Block, Hold"
    );
    assert!(refused("usher/apps", "").contains("lists nothing"));
    assert!(refused("usher/nothing", "x").starts_with("unknown annotation usher/nothing"));
}

/// The pod is not refused, because its author made no mistake.
#[test]
fn a_probe_that_kubernetes_takes_and_the_shim_does_not_is_left_to_kubelet() {
    let spec = json!({"restartPolicy": "Never", "containers": [
        {
            "name": "proxy",
            "startupProbe": {"httpGet": {"port": 1, "host": "example.com"}},
            "livenessProbe": {"httpGet": {"port": 1, "host": "example.com"}},
            "lifecycle": {"stopSignal": "SIGKILL"},
        },
        {"name": "web"},
    ]});
    let (_, completion) = completed(pod(&[("usher/sidecars", "proxy")], spec), &Rules::default());
    assert!(
        completion
            .annotations
            .keys()
            .all(|key| key.starts_with("usher/"))
    );
    assert!(completion.without_liveness_probe.is_empty());
    assert_eq!(completion.notes.len(), 3, "{:?}", completion.notes);
}

#[test]
fn a_stop_signal_that_only_kubelet_can_send_is_noted_unless_the_author_names_another() {
    for (annotations, notes) in [(&[][..], 1), (&[("stop-signal.usher/web", "SIGQUIT")], 0)] {
        let spec = json!({"containers": [
            {"name": "proxy"},
            {"name": "web", "lifecycle": {"stopSignal": "SIGKILL"}},
        ]});
        let annotations = [&[("usher/sidecars", "proxy")], annotations].concat();
        let (_, completion) = completed(pod(&annotations, spec), &Rules::default());
        assert_eq!(completion.notes.len(), notes, "{:?}", completion.notes);
    }
}

#[test]
fn containers_created_before_an_optional_sidecar_do_not_wait_for_it() {
    let judge = |names: &[&str]| {
        let pod = pod(
            &[("usher/sidecars", "proxy? mesh?"), ("usher/apps", "web")],
            json!({"runtimeClassName": "usher", "containers": containers(names)}),
        );
        let Judgement { plan, warnings, .. } = Judgement::of(&pod, &Rules::default());
        let start = entries(&plan.unwrap(), &pod);
        let web = start.iter().find(|it| it.container == "web").unwrap();
        assert_eq!(start.len(), names.len());
        let warnings = warnings.iter().map(Warning::to_string);
        (web.waits_for.clone(), warnings.collect::<Vec<_>>())
    };
    assert_eq!(judge(&["proxy", "web"]), (vec!["proxy".to_owned()], vec![]));
    assert_eq!(judge(&["web"]), (vec![], vec![]));
    let (waits_for, warnings) = judge(&["web", "proxy"]);
    assert!(waits_for.is_empty());
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with("web: is listed before proxy: it does not wait for optional"));
}

#[test]
fn a_pattern_means_its_names_to_explain_and_nothing_to_the_shim() {
    let pod = pod(
        &[("usher/sidecars", "*-proxy")],
        json!({"runtimeClassName": "usher", "containers": containers(&["a-proxy", "web"])}),
    );
    let judgement = Judgement::of(&pod, &Rules::default());
    assert_eq!(judgement.refused, None);
    assert_eq!(judgement.plan.unwrap().sidecars(), ["a-proxy"]);
    assert_eq!(judgement.warnings.len(), 1, "{:?}", judgement.warnings);
    assert!(
        judgement.warnings[0]
            .says
            .starts_with("usher/sidecars has a pattern")
    );
}

#[test]
fn a_role_of_the_node_for_an_init_container_of_kubelet_yields_a_warning() {
    let spec = json!({
        "runtimeClassName": "usher",
        "initContainers": containers(&["istio-proxy"]),
        "containers": containers(&["web"]),
    });
    let pod = pod(&[("usher/apps", "web")], spec);
    let warnings = Judgement::of(&pod, &everywhere(&["istio-proxy"], false)).warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(
        warnings[0]
            .says
            .ends_with("expected usher/native-init: istio-proxy")
    );
}

/// The sidecar is not held, because kubelet creates it first, so that it has no container to wait
/// for.
#[test]
fn a_sidecar_that_kubelet_starts_by_itself_is_warned_of() {
    let spec = json!({
        "runtimeClassName": "usher",
        "initContainers": [{"name": "mesh", "restartPolicy": "Always"}],
        "containers": containers(&["web"]),
    });
    let said = [("usher/sidecars", "mesh"), ("usher/apps", "web")];
    let warnings = Judgement::of(&pod(&said, spec), &Rules::default()).warnings;
    let says: Vec<&str> = warnings.iter().map(|it| it.says.as_str()).collect();
    assert_eq!(
        says,
        [
            "is an init container of the pod, which kubelet starts and stops by itself; expected it \
             in usher/native-init, and in no other list"
        ]
    );
}

/// A pod is never refused for a setting that its author has not written.
#[test]
fn resources_too_large_for_annotations_are_left_out() {
    let argument = "x".repeat(10_000);
    let probe = json!({"exec": {"command": ["true", argument]}});
    let container = |name: String| json!({"name": name, "startupProbe": probe});
    let sidecars: Vec<Value> = (0..8).map(|n| container(format!("{n}-proxy"))).collect();
    let spec = json!({"containers": sidecars});
    let (_, completion) = completed(
        pod(&[("usher/sidecars", "*-proxy")], spec),
        &Rules::default(),
    );
    let probes = completion.annotations.keys();
    assert_eq!(
        probes
            .filter(|key| key.starts_with("startup-probe"))
            .count(),
        3
    );
    assert_eq!(completion.notes.len(), 5);
    assert!(
        completion.notes[0]
            .says
            .starts_with("is not said to usher: ")
    );
}

#[test]
fn names_that_kubernetes_refuses_are_left_to_it() {
    let spec = json!({"containers": containers(&["web", "web", "a b", "", "*", "x?"])});
    let (_, completion) = completed(
        pod(&[("usher/grace-period", "1m")], spec),
        &Rules::default(),
    );
    assert!(written(&completion).contains(&("usher/apps", "web")));
}

/// A pod template lacks the containers that an injector adds to its pods.
#[test]
fn a_listed_container_that_does_not_exist_may_still_be_created() {
    let spec = json!({"runtimeClassName": "usher", "containers": containers(&["web"])});
    let said = [("usher/sidecars", "mesh"), ("usher/apps", "web")];
    let warnings = Judgement::of(&pod(&said, spec), &Rules::default()).warnings;
    let says: Vec<&str> = warnings.iter().map(|it| it.says.as_str()).collect();
    assert_eq!(
        says,
        [
            "usher/sidecars lists it, but the pod has no such container: containers that wait for it never run, unless \
             an injector adds it"
        ]
    );
}

#[test]
fn a_name_without_a_container_is_reported_with_its_list_and_a_similar_name() {
    let init = json!([{"name": "fetch"}]);
    let spec = json!({
        "runtimeClassName": "usher",
        "initContainers": init,
        "containers": containers(&["web", "proxy", "logs"])
    });
    let said = [
        ("usher/sidecars", "proxi, logs, loga?"),
        ("usher/native-init", "fetsh"),
        ("usher/grace-period", "soon"),
    ];
    let judgement = Judgement::of(&pod(&said, spec), &Rules::default());
    assert!(judgement.refused.is_some());
    let said: Vec<String> = judgement.warnings.iter().map(|it| it.to_string()).collect();
    let expected = [
        "fetsh: usher/native-init lists it, but the pod has no such init container; did you mean fetch?",
        "proxi: usher/sidecars lists it, but the pod has no such container: containers that wait for it never run, \
         unless an injector adds it; did you mean proxy?",
    ];
    assert_eq!(said, expected);
}

#[test]
fn a_key_similar_to_one_of_usher_is_reported_with_the_intended_one() {
    let spec = json!({"containers": containers(&["web", "proxy"])});
    let said = [
        ("user/sidecars", "proxy"),
        ("startup-probe.ushr/proxy", "{}"),
        ("user/name", "me"),
        ("example.com/sidecars", "proxy"),
    ];
    let judgement = Judgement::of(&pod(&said, spec), &Rules::default());
    let said: Vec<&str> = judgement
        .warnings
        .iter()
        .map(|it| it.says.as_str())
        .collect();
    let expected = [
        "startup-probe.ushr/proxy is not an annotation of usher and has no effect; did you mean \
         startup-probe.usher/proxy?",
        "user/sidecars is not an annotation of usher and has no effect; did you mean usher/sidecars?",
    ];
    assert_eq!(said, expected);
}
