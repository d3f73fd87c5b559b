//! Stop requests for a single container. The rest of the pod goes on.

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

/// Stops a container and creates it again, as kubelet does after a failed liveness probe. The shim
/// must deliver the stop signal only after the time in `usher/termination-window`, and must not
/// stop any other container.
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
fn a_single_stop_request_stops_only_the_app_after_the_window() {
    let pod = running();
    assert_stopped_alone(&pod, "web", "proxy");
    // The defer runs only at the end of the pod.
    pod.delete(&["proxy", "web.1", "before"]);
    assert_eq!(pod.starts("before"), 1);
}

#[test]
fn a_single_stop_request_stops_only_the_sidecar_after_the_window() {
    let pod = running();
    assert_stopped_alone(&pod, "proxy", "web");
    pod.delete(&["proxy.1", "web", "before"]);
    assert_eq!(pod.starts("before"), 1);
}

#[test]
fn a_single_stop_request_stops_only_the_app_though_another_is_down() {
    let pod = running();
    pod.run("other", CRASHES);
    assert_eq!(pod.ended("other"), 1);
    assert_stopped_alone(&pod, "web", "proxy");
}

#[test]
fn a_single_stop_request_ends_a_defer_without_running_it() {
    let pod = running();
    let stopped = pod.stop(&["before"]);
    assert!(!stopped[0].killed, "{stopped:?}");
    let record = pod.host.record();
    assert!(!record.has("before", "start"), "{record}");
    assert!(!record.has("web", "signal"), "{record}");
    // kubelet also stops and recreates a container if its image has changed.
    pod.run("before.1", QUICK);
    pod.delete(&["proxy", "before.1", "web"]);
    let record = pod.host.record();
    record.assert_before(("before", "exit"), ("web", "signal"));
    assert_eq!(pod.starts("before"), 1, "{record}");
}

/// The time from `asked` to the last signal that the container got.
fn signal_delay(pod: &Kubelet, name: &str, asked: Duration) -> Duration {
    let record = pod.host.record();
    let last = record.all(name, "signal").last();
    let last = last.unwrap_or_else(|| panic!("the signal of {name}: {record}"));
    Duration::from_nanos(last.at_ns).saturating_sub(asked)
}

#[test]
fn a_sidecar_stopped_alone_keeps_half_its_grace_period_despite_an_apps_pre_stop() {
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
    let wait = signal_delay(&pod, "proxy", asked);
    assert!(wait >= Duration::from_millis(3_900), "{wait:?}");
    assert!(wait < Duration::from_millis(5_500), "{wait:?}");
    // `api` has no preStop handler. So if the whole pod terminated, kubelet would send a stop
    // request to `api` at once. usher waits for this request for the default time of
    // `usher/termination-window`.
    pod.run("proxy.1", &[]);
    pod.run("api", &[]);
    pod.host.await_event("api", "start");
    let asked = now();
    pod.stop(&["proxy.1"]);
    let wait = signal_delay(&pod, "proxy", asked);
    assert!(wait < Duration::from_millis(3_500), "{wait:?}");
    let record = pod.host.record();
    assert!(!record.has("web", "signal"), "{record}");
}

#[test]
fn other_signals_are_delivered_unchanged_and_a_stop_uses_the_annotated_signal() {
    const POD: &[(&str, &str)] = &[
        ("usher/sidecars", "proxy"),
        ("stop-signal.usher/web", "SIGQUIT"),
    ];
    let pod = Kubelet::run_pod(POD, 3);
    pod.run("proxy", &[]);
    pod.run("web", &["--ignore-term"]);
    pod.host.await_event("web", "start");
    for signal in ["SIGUSR1", "SIGHUP"] {
        // `ctr` calls without a deadline, so the shim does not take these signals for stop
        // requests.
        pod.host.kill("web", signal);
    }
    pod.host.await_record("both signals", |record| {
        record.all("web", "signal").count() == 2
    });
    assert_eq!(pod.host.status("web"), Some(Status::Running));
    pod.delete(&["proxy", "web"]);
    let record = pod.host.record();
    let signals: Vec<_> = record.all("web", "signal").map(|e| &*e.detail).collect();
    // The app's stop signal is SIGQUIT (3). usher sends SIGQUIT a second time before SIGKILL.
    assert_eq!(signals, ["10", "1", "3", "3"], "{record}");
}
