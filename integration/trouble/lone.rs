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

/// The time from `asked` to the last signal of a container.
fn told(pod: &Kubelet, name: &str, asked: Duration) -> Duration {
    let record = pod.host.record();
    let last = record.all(name, "signal").last();
    let last = last.unwrap_or_else(|| panic!("the signal of {name}: {record}"));
    Duration::from_nanos(last.at_ns).saturating_sub(asked)
}

#[test]
fn a_wedged_sidecar_that_is_asked_alone_keeps_half_of_its_time_whatever_an_apps_pre_stop_hides() {
    const POD: &[(&str, &str)] = &[("usher/sidecars", "proxy")];
    let pod = Kubelet::run_pod(POD, 8);
    let handler = r#"{"httpGet":{"port":8080}}"#;
    let web = pod.witness("web", &[]);
    pod.run("proxy", &[]);
    let key = "io.kubernetes.container.preStopHandler";
    pod.host.run(&web.annotation(key, handler));
    pod.host.await_event("web", "start");
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).expect("now");
    let asked = now();
    pod.stop(&["proxy"]);
    let wait = told(&pod, "proxy", asked);
    assert!(wait >= Duration::from_millis(3_900), "{wait:?}");
    assert!(wait < Duration::from_millis(5_500), "{wait:?}");
    // The end of the pod would have asked one without a handler at once.
    pod.run("proxy.1", &[]);
    pod.run("api", &[]);
    pod.host.await_event("api", "start");
    let asked = now();
    pod.stop(&["proxy.1"]);
    let wait = told(&pod, "proxy", asked);
    assert!(wait < Duration::from_millis(3_500), "{wait:?}");
    let record = pod.host.record();
    assert!(!record.has("web", "signal"), "{record}");
}

#[test]
fn a_reload_by_hand_is_delivered_as_it_is_and_a_stop_by_the_authors_signal() {
    const POD: &[(&str, &str)] = &[
        ("usher/sidecars", "proxy"),
        ("stop-signal.usher/web", "SIGQUIT"),
    ];
    let pod = Kubelet::run_pod(POD, 3);
    pod.run("proxy", &[]);
    pod.run("web", &["--ignore-term"]);
    pod.host.await_event("web", "start");
    for signal in ["SIGUSR1", "SIGHUP"] {
        // `ctr` gives its call no deadline.
        pod.host.kill("web", signal);
    }
    pod.host.await_record("both signals", |record| {
        record.all("web", "signal").count() == 2
    });
    assert_eq!(pod.host.status("web"), Some(Status::Running));
    pod.delete(&["proxy", "web"]);
    let record = pod.host.record();
    let signals: Vec<_> = record.all("web", "signal").map(|e| &*e.detail).collect();
    // Its stop, and once more before SIGKILL.
    assert_eq!(signals, ["10", "1", "3", "3"], "{record}");
}
