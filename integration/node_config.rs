//! The node's configuration file, as the shim reads it, overrides the annotations of pods.

use std::fs;

use crate::control::usher;
use crate::harness::{ContainerSpec, Containerd, PATIENCE, eventually, run};
use crate::pod::{MESH, Pod};

/// Starts a containerd on a node with this configuration file of usher.
fn node(config: &str) -> Containerd {
    let host = Containerd::start();
    fs::write(host.usher_config(), config).unwrap();
    host
}

#[test]
fn an_invalid_file_fails_the_create_and_leaves_nothing() {
    let host = node("[limits]\ngrace-period = 'soon'\n");
    let run = host.try_run(&MESH.witness("web", &[]));
    assert!(!run.ok(), "the pod was not refused");
    let said = run.err();
    for word in ["usher.toml", "[limits]", "grace-period", "soon", "duration"] {
        assert!(said.contains(word), "{word:?} is missing in: {said}");
    }
    assert!(host.shims().is_empty(), "a shim is left");
    assert_eq!(host.remains(), Vec::<String>::new());
}

#[test]
fn a_running_pod_keeps_the_configuration_it_started_with() {
    let host = node("");
    host.run(&MESH.witness("web", &[]));
    fs::write(host.usher_config(), "this is no TOML").unwrap();
    MESH.run_proxy(&host, &[]);
    let record = host.await_event("web", "start");
    record.assert_before(("proxy", "ready"), ("web", "start"));
}

#[test]
fn a_value_above_the_nodes_limit_is_refused() {
    let host = node("[limits]\nstartup-timeout = '1m'\n");
    let run = host.try_run(&Pod(&[("usher/startup-timeout", "1h")]).witness("web", &[]));
    assert!(!run.ok(), "the pod was not refused");
    let said = run.err();
    for word in ["usher/startup-timeout", "1h", "for this node", "60s"] {
        assert!(said.contains(word), "{word:?} is missing in: {said}");
    }
    assert_eq!(host.remains(), Vec::<String>::new());
}

#[test]
fn a_value_below_the_nodes_minimum_is_refused() {
    let host = node("[minimums]\nprobe-period = '100ms'\n");
    let probe = (
        "startup-probe.usher/web",
        r#"{"exec":{"command":["true"]},"periodMilliseconds":1}"#,
    );
    let run =
        host.try_run(&ContainerSpec::new("web").annotations(&[("usher/sidecars", "web"), probe]));
    assert!(!run.ok(), "the pod was not refused");
    let said = run.err();
    for word in ["startup-probe.usher/web", "for this node", "at least 100ms"] {
        assert!(said.contains(word), "{word:?} is missing in: {said}");
    }
    assert_eq!(host.remains(), Vec::<String>::new());
}

#[test]
fn the_nodes_own_defaults_never_refuse_a_pod() {
    let host = node(
        "[defaults]\ngrace-policy = 'Reserve'\n[limits]\nprobe-period = '5s'\n\
         probe-failure-threshold = 2\n",
    );
    let probe = (
        "startup-probe.usher/web",
        r#"{"exec":{"command":["/bin/true"]}}"#,
    );
    let annotations = [
        ("usher/sidecars", "web"),
        ("usher/grace-period", "4s"),
        probe,
    ];
    let run = host.try_run(&ContainerSpec::new("web").annotations(&annotations));
    assert!(run.ok(), "{}", run.err());
}

#[test]
fn an_unknown_key_is_ignored_if_the_node_allows_it() {
    let host = node("unknown-keys = 'Warn'\n");
    let pod = Pod(&[("usher/tomorrow", "x")]);
    host.run(&pod.witness("web", &[]));
    host.await_event("web", "start");
    eventually("the log tells of it", PATIENCE, || {
        host.log_tail(2000).contains("usher/tomorrow")
    });
}

#[test]
fn a_node_with_usher_disabled_holds_no_container() {
    let host = node("enabled = false\n");
    // No sidecar of the pod is created, yet the app runs.
    host.run(&MESH.witness("web", &[]));
    host.await_event("web", "start");
}

#[test]
fn a_container_matched_by_the_nodes_roles_is_ordered_as_a_sidecar() {
    const APP: Pod = Pod(&[("usher/apps", "web"), ("usher/restart-policy", "Never")]);
    const NOTHING: Pod = Pod(&[]);
    for (everywhere, pod, app_by) in [(false, APP, "list"), (true, NOTHING, "-")] {
        let roles = format!("[roles]\nsidecars = ['*-proxy']\neverywhere = {everywhere}\n");
        let host = node(&roles);
        host.run(&pod.witness("istio-proxy", &["--exit", "6"]));
        host.await_event("istio-proxy", "start");
        host.run(&pod.witness("web", &["--stop-after", "1s", "--exit", "5"]));
        host.await_event("web", "start");
        let inspect = run(usher(&host, &["inspect", "pod1"]), PATIENCE).out();
        let row = |name: &str| {
            let rows = inspect.lines();
            let rows = rows.map(|row| row.split_whitespace().collect());
            let mut rows = rows.filter(|row: &Vec<_>| row.first() == Some(&name) && row.len() > 5);
            rows.next().map_or(String::new(), |row| row[..3].join(" "))
        };
        assert_eq!(row("istio-proxy"), "istio-proxy sidecar node", "{inspect}");
        assert_eq!(row("web"), format!("web app {app_by}"), "{inspect}");
        host.kill_all(&["istio-proxy", "web"], "SIGTERM");
        assert_eq!(host.wait_exit("web"), 5);
        assert_eq!(
            host.wait_exit("istio-proxy"),
            0,
            "istio-proxy got its stop signal"
        );
        host.record()
            .assert_before(("web", "exit"), ("istio-proxy", "signal"));
    }
}

#[test]
fn node_roles_for_annotated_pods_ignore_a_pod_without_annotations() {
    let host = node("[roles]\nsidecars = ['*-proxy']\n");
    let pod = Pod(&[]);
    for name in ["istio-proxy", "web"] {
        host.run(&pod.witness(name, &["--stop-after", "300ms", "--exit", "6"]));
        host.await_event(name, "start");
    }
    host.kill_all(&["istio-proxy", "web"], "SIGTERM");
    assert_eq!(host.wait_exit("istio-proxy"), 6, "no code is masked");
    host.wait_exit("web");
    let record = host.record();
    record.assert_before(("istio-proxy", "signal"), ("web", "exit"));
}
