//! The order of a pod's containers, as its annotations have it.

use super::{is_known, with_each};
use crate::harness::{Cri, CriSettings, Handler, Pod, PodSpec};

/// A sidecar that is first and last, and a cleanup when the app has gone.
const SHOP: &[(&str, &str)] = &[
    ("usher/sidecars", "proxy"),
    ("usher/apps", "app"),
    ("usher/post-exit", "clean-up"),
    ("usher/grace-period", "30s"),
    ("usher/termination-window", "20s"),
    (
        "startup-probe.usher/proxy",
        r#"{"tcpSocket":{"port":8080},"periodMilliseconds":100,"failureThreshold":200}"#,
    ),
];

/// Runs the pod as kubelet would, and ends it.
fn play(node: &Cri, handler: Handler) {
    let pod = node.run_pod(&PodSpec::new("shop", handler).annotations(SHOP));
    let app = pod.run("app", &["/bin/witness", "app", "--stop-after", "200ms"]);
    let proxy = [
        "/bin/witness",
        "proxy",
        "--ready-after",
        "300ms",
        "--listen",
        "8080",
    ];
    let proxy = pod.run("proxy", &proxy);
    let clean_up = ["/bin/witness", "clean-up", "--run-for", "100ms"];
    let clean_up = pod.run("clean-up", &clean_up);
    let record = node.await_event("app", "start");
    record.assert_before(("proxy", "ready"), ("app", "start"));
    assert!(!record.has("clean-up", "start"), "{record}");
    // Kubelet asks all at once.
    std::thread::scope(|scope| {
        for container in [&proxy, &app, &clean_up] {
            scope.spawn(|| container.stop(30));
        }
    });
    let record = node.record();
    record.assert_before(("app", "exit"), ("clean-up", "start"));
    record.assert_before(("clean-up", "exit"), ("proxy", "signal"));
    for container in [&app, &proxy, &clean_up] {
        assert_eq!(container.await_exit(), 0, "{}", container.name);
    }
    pod.end();
}

#[test]
fn the_sidecar_is_first_and_last_and_the_cleanup_comes_in_between() {
    with_each(play);
}

#[test]
fn without_a_pause_container_no_annotation_has_to_be_passed_on() {
    if !is_known() {
        return;
    }
    let node = Cri::start_with(CriSettings {
        passes_annotations: false,
        ..CriSettings::default()
    });
    play(&node, Handler::Pauseless);
}

/// What is wrong in an annotation is said before anything runs.
#[test]
fn a_pod_with_annotations_that_cannot_be_is_refused_by_the_name_of_what_is_wrong() {
    if !is_known() {
        return;
    }
    let node = Cri::start();
    let spec = PodSpec::new("wrong", Handler::Pauseless);
    let spec = spec.annotations(&[("usher/sidecars", "proxy"), ("usher/grace-period", "soon")]);
    let refused = node.try_run_pod(&spec).map(|pod: Pod| pod.id);
    let error = refused.expect_err("it cannot be");
    assert!(error.contains("usher/grace-period"), "{error}");
    assert!(error.contains("soon"), "{error}");
    assert!(node.pods().is_empty());
    node.clear();
}
