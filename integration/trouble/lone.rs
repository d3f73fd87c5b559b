//! A stop of one container in a pod that has a defer and lives on.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::harness::Status;

use super::kubelet::{CRASHES, Kubelet, QUICK};

const POD: &[(&str, &str)] = &[
    ("usher/sidecars", "proxy"),
    ("usher/pre-exit", "before"),
    ("usher/termination-window", "2s"),
];

#[track_caller]
fn running() -> Kubelet {
    let pod = Kubelet::run_pod(POD, 20);
    pod.run("proxy", &[]);
    pod.run("before", QUICK);
    pod.run("web", &[]);
    pod.host.await_event("web", "start");
    pod
}

/// Stops a container and creates it again, as after a failed liveness probe: when the window is over,
/// and without the others.
#[track_caller]
fn assert_stopped_alone(pod: &Kubelet, name: &str, other: &str) {
    let asked = SystemTime::now().duration_since(UNIX_EPOCH).expect("now");
    let stopped = pod.stop(&[name]);
    assert!(!stopped[0].killed, "{stopped:?}");
    let told = Duration::from_nanos(pod.host.record().at(name, "signal"));
    assert!(told >= asked + Duration::from_millis(1_900), "{told:?}");
    pod.run(&format!("{name}.1"), &[]);
    pod.await_starts(name, 2);
    let record = pod.host.record();
    assert!(!record.has("before", "start"), "{record}");
    assert!(!record.has(other, "signal"), "{record}");
    assert_eq!(pod.host.status("before"), Some(Status::Running));
}

#[test]
fn an_app_that_is_asked_alone_is_stopped_alone_when_the_window_is_over() {
    let pod = running();
    assert_stopped_alone(&pod, "web", "proxy");
    // At the end it runs.
    pod.delete(&["proxy", "web.1", "before"]);
    assert_eq!(pod.starts("before"), 1);
}

#[test]
fn a_sidecar_that_is_asked_alone_is_stopped_alone_when_the_window_is_over() {
    let pod = running();
    assert_stopped_alone(&pod, "proxy", "web");
    pod.delete(&["proxy.1", "web", "before"]);
    assert_eq!(pod.starts("before"), 1);
}

#[test]
fn an_app_that_is_asked_alone_is_stopped_alone_though_another_is_down() {
    let pod = running();
    pod.run("other", CRASHES);
    assert_eq!(pod.ended("other"), 1);
    assert_stopped_alone(&pod, "web", "proxy");
}

#[test]
fn a_defer_that_is_asked_alone_while_its_app_runs_ends_without_having_run() {
    let pod = running();
    let stopped = pod.stop(&["before"]);
    assert!(!stopped[0].killed, "{stopped:?}");
    let record = pod.host.record();
    assert!(!record.has("before", "start"), "{record}");
    assert!(!record.has("web", "signal"), "{record}");
    // As after a change of its image.
    pod.run("before.1", QUICK);
    pod.delete(&["proxy", "before.1", "web"]);
    let record = pod.host.record();
    record.assert_before(("before", "exit"), ("web", "signal"));
    assert_eq!(pod.starts("before"), 1, "{record}");
}
