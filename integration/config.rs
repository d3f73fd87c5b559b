//! The node's administrator has the last word: `config.toml`, as the shim reads it.

use std::fs;

use crate::harness::{ContainerSpec, Containerd, PATIENCE, eventually};
use crate::pod::{MESH, Pod};

/// A containerd on a node with such a configuration.
fn node(config: &str) -> Containerd {
    let host = Containerd::start();
    fs::write(host.usher_config(), config).unwrap();
    host
}

#[test]
fn a_broken_file_is_refused_in_containerds_error_and_nothing_is_left() {
    let host = node("[limits]\ngrace-period = 'soon'\n");
    let run = host.try_run(&MESH.witness("web", &[]));
    assert!(!run.ok(), "it was not refused");
    let said = run.err();
    for word in ["usher.toml", "[limits]", "grace-period", "soon", "duration"] {
        assert!(said.contains(word), "{word:?} is missing in: {said}");
    }
    assert!(host.shims().is_empty(), "a shim is left");
    assert_eq!(host.remains(), Vec::<String>::new());
}

#[test]
fn a_pod_that_lives_goes_on_under_the_rules_that_it_began_with() {
    let host = node("");
    host.run(&MESH.witness("web", &[]));
    fs::write(host.usher_config(), "this is no TOML").unwrap();
    MESH.run_proxy(&host, &[]);
    let record = host.await_event("web", "start");
    record.assert_before(("proxy", "accepted"), ("web", "start"));
}

#[test]
fn more_than_the_node_allows_is_refused() {
    let host = node("[limits]\nstartup-timeout = '1m'\n");
    let run = host.try_run(&Pod(&[("usher/startup-timeout", "1h")]).witness("web", &[]));
    assert!(!run.ok(), "it was not refused");
    let said = run.err();
    for word in ["usher/startup-timeout", "1h", "for this node", "60s"] {
        assert!(said.contains(word), "{word:?} is missing in: {said}");
    }
    assert_eq!(host.remains(), Vec::<String>::new());
}

#[test]
fn less_than_the_node_allows_is_refused() {
    let host = node("[minimums]\nprobe-period = '100ms'\n");
    let probe = (
        "startup-probe.usher/web",
        r#"{"exec":{"command":["true"]},"periodMilliseconds":1}"#,
    );
    let run =
        host.try_run(&ContainerSpec::new("web").annotations(&[("usher/sidecars", "web"), probe]));
    assert!(!run.ok(), "it was not refused");
    let said = run.err();
    for word in ["startup-probe.usher/web", "for this node", "at least 100ms"] {
        assert!(said.contains(word), "{word:?} is missing in: {said}");
    }
    assert_eq!(host.remains(), Vec::<String>::new());
}

#[test]
fn a_pod_is_refused_for_nothing_that_only_the_node_says() {
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
fn an_unknown_key_is_ignored_where_that_is_allowed() {
    let host = node("unknown-keys = 'Warn'\n");
    let pod = Pod(&[("usher/tomorrow", "x")]);
    host.run(&pod.witness("web", &[]));
    host.await_event("web", "start");
    eventually("the log tells of it", PATIENCE, || {
        host.log_tail(2000).contains("usher/tomorrow")
    });
}

#[test]
fn where_it_is_off_nothing_is_held() {
    let host = node("enabled = false\n");
    // Its sidecar never comes.
    host.run(&MESH.witness("web", &[]));
    host.await_event("web", "start");
}
