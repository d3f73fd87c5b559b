use std::collections::BTreeMap;
use std::time::Duration;

use super::annotations;
use crate::plan::Hook;
use crate::plan::identity::{ContainerKind, Identity, group};
use crate::plan::kubelet::{Allotment, KubeletFacts, PreStop, termination_message_path};

fn pre_stop(json: &str) -> Option<PreStop> {
    KubeletFacts::read(&annotations(&[(
        "io.kubernetes.container.preStopHandler",
        json,
    )]))
    .pre_stop
}

#[test]
fn all_facts_of_kubelet_are_read() {
    let annotations = annotations(&[
        ("io.kubernetes.pod.terminationGracePeriod", "30"),
        (
            "io.kubernetes.container.preStopHandler",
            r#"{"exec":{"command":["sh","-c","sleep 1"]}}"#,
        ),
        ("io.kubernetes.container.restartCount", "3"),
        (
            "io.kubernetes.container.ports",
            r#"[{"name":"web","hostPort":80,"containerPort":8080,"protocol":"TCP"},{"containerPort":9},{"name":"web","containerPort":1}]"#,
        ),
        (
            "io.kubernetes.container.terminationMessagePath",
            "/dev/termination-log",
        ),
        ("io.kubernetes.cri.sandbox-memory", "67108864"),
        ("io.kubernetes.cri.sandbox-cpu-quota", "20000"),
        ("io.kubernetes.cri.sandbox-cpu-period", "100000"),
        ("io.kubernetes.cri.sandbox-cpu-shares", "102"),
    ]);
    let expected = KubeletFacts {
        grace_period: Some(Duration::from_secs(30)),
        pre_stop: Some(PreStop::Exec {
            command: ["sh", "-c", "sleep 1"].map(str::to_owned).to_vec(),
        }),
        pre_stop_hook: Some(Hook::Exec {
            command: ["sh", "-c", "sleep 1"].map(str::to_owned).to_vec(),
        }),
        restart_count: 3,
        ports: BTreeMap::from([("web".to_owned(), 8080)]),
        allotment: Allotment {
            memory: Some(64 << 20),
            quota: Some((20_000, 100_000)),
            shares: Some(102),
        },
    };
    assert_eq!(KubeletFacts::read(&annotations), expected);
    let path = termination_message_path(&annotations);
    assert_eq!(path, Some("/dev/termination-log"));
}

#[test]
fn a_malformed_fact_is_as_good_as_absent() {
    assert_eq!(
        KubeletFacts::read(&BTreeMap::new()),
        KubeletFacts::default()
    );
    for malformed in [
        "",
        "x",
        "-1",
        "1.5",
        "[1]",
        "{",
        "[{\"containerPort\":70000}]",
        "null",
    ] {
        let keys = [
            "io.kubernetes.pod.terminationGracePeriod",
            "io.kubernetes.container.preStopHandler",
            "io.kubernetes.container.restartCount",
            "io.kubernetes.container.ports",
            "io.kubernetes.cri.sandbox-memory",
            "io.kubernetes.cri.sandbox-cpu-quota",
            "io.kubernetes.cri.sandbox-cpu-shares",
        ];
        let facts = KubeletFacts::read(&annotations(&keys.map(|key| (key, malformed))));
        assert_eq!(facts, KubeletFacts::default(), "{malformed}");
    }
}

#[test]
fn a_pre_stop_handler_of_any_kubernetes_is_understood() {
    assert_eq!(
        pre_stop(r#"{"httpGet":{"path":"/","port":"web","scheme":"HTTP"}}"#),
        Some(PreStop::HttpGet)
    );
    assert_eq!(
        pre_stop(r#"{"tcpSocket":{"port":1}}"#),
        Some(PreStop::TcpSocket)
    );
    assert_eq!(
        pre_stop(r#"{"sleep":{"seconds":5}}"#),
        Some(PreStop::Sleep(Duration::from_secs(5)))
    );
    assert_eq!(
        pre_stop(r#"{"exec":{"command":["a"],"new":1},"new":{}}"#),
        Some(PreStop::Exec {
            command: vec!["a".to_owned()]
        })
    );
    assert_eq!(
        pre_stop(r#"{"exec":{}}"#),
        Some(PreStop::Exec { command: vec![] })
    );
    assert_eq!(
        pre_stop(r#"{"exec":null,"dance":{}}"#),
        Some(PreStop::Other)
    );
    assert_eq!(pre_stop(r#"{"exec":{"command":"a"}}"#), None);
}

#[test]
fn a_grace_period_beyond_all_clocks_is_cut() {
    let facts = KubeletFacts::read(&annotations(&[(
        "io.kubernetes.pod.terminationGracePeriod",
        "9223372036854775807",
    )]));
    assert_eq!(facts.grace_period, Some(Duration::from_secs(9_223_372_036)));
}

#[test]
fn a_container_is_a_sandbox_if_its_cri_annotation_says_so() {
    let sandbox = annotations(&[
        ("io.kubernetes.cri.container-type", "sandbox"),
        ("io.kubernetes.cri.sandbox-id", "s1"),
    ]);
    let expected = Identity {
        kind: ContainerKind::Sandbox,
        name: "s1".to_owned(),
        sandbox: Some("s1".to_owned()),
    };
    assert_eq!(Identity::read("s1", &sandbox), expected);
}

#[test]
fn a_container_goes_by_its_name_else_by_its_id() {
    let named = annotations(&[
        ("io.kubernetes.cri.container-type", "container"),
        ("io.kubernetes.cri.container-name", "web"),
        ("io.kubernetes.cri.sandbox-id", "s1"),
    ]);
    let expected = Identity {
        kind: ContainerKind::Workload,
        name: "web".to_owned(),
        sandbox: Some("s1".to_owned()),
    };
    assert_eq!(Identity::read("c1", &named), expected);
    let bare = Identity {
        kind: ContainerKind::Workload,
        name: "c1".to_owned(),
        sandbox: None,
    };
    assert_eq!(
        Identity::read(
            "c1",
            &annotations(&[("io.kubernetes.cri.container-name", "")])
        ),
        bare
    );
}

#[test]
fn containers_are_grouped_as_the_runc_shim_groups_them() {
    let (runc, cri) = (
        ("io.containerd.runc.v2.group", "g"),
        ("io.kubernetes.cri.sandbox-id", "s"),
    );
    assert_eq!(group(&annotations(&[runc, cri])), Some("g"));
    assert_eq!(group(&annotations(&[cri])), Some("s"));
    assert_eq!(
        group(&annotations(&[("io.containerd.runc.v2.group", ""), cri])),
        Some("s")
    );
    assert_eq!(group(&annotations(&[])), None);
}
