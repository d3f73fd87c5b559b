//! Terminations of a pod whose app has crashed, while kubelet delays the restart of the app (its
//! back-off).

use crate::harness::{Stopped, times};

use super::kubelet::{CRASHES, Kubelet, QUICK, WINDOW};

/// A pod whose app has crashed. Of the other containers some run, and some are held: their programs
/// have not been executed yet.
#[track_caller]
fn in_crash_loop(annotations: &'static [(&'static str, &'static str)], others: &[&str]) -> Kubelet {
    let pod = Kubelet::run_pod(annotations, 20);
    for name in others {
        let is_sidecar = *name == "proxy";
        pod.run(name, if is_sidecar { &[] } else { QUICK });
    }
    pod.run("web", CRASHES);
    assert_eq!(pod.ended("web"), 1);
    pod
}

/// Checks that all containers exited in time with 0, so that the caller does not restart the pod.
#[track_caller]
fn assert_well(stopped: &[Stopped], pod: &Kubelet) {
    let well = |stop: &Stopped| !stop.killed && stop.code == 0;
    let record = pod.host.record();
    assert!(stopped.iter().all(well), "{stopped:?}\n{record}");
}

#[test]
fn a_defer_runs_when_it_is_the_only_container_to_stop() {
    for annotations in [
        &[("usher/pre-exit", "before")],
        &[("usher/post-exit", "before")],
    ] {
        let pod = in_crash_loop(annotations, &["before"]);
        let stopped = pod.delete(&["before"]);
        assert!(pod.host.record().has("before", "exit"), "{stopped:?}");
        assert_well(&stopped, &pod);
    }
}

#[test]
fn a_defer_runs_before_its_sidecar_stops_in_any_order_of_stop_requests() {
    const POD: &[(&str, &str)] = &[
        ("usher/sidecars", "proxy"),
        ("usher/pre-exit", "before"),
        WINDOW,
    ];
    for _ in 0..times(2, 8) {
        for asked in [["before", "proxy"], ["proxy", "before"]] {
            let pod = in_crash_loop(POD, &["proxy", "before"]);
            let stopped = pod.delete(&asked);
            let record = pod.host.record();
            record.assert_before(("before", "exit"), ("proxy", "signal"));
            assert!(!record.has("before", "signal"), "{record}");
            assert_well(&stopped, &pod);
        }
    }
}

#[test]
fn two_defers_run_in_their_order() {
    const POD: &[(&str, &str)] = &[
        ("usher/pre-exit", "before"),
        ("usher/post-exit", "after"),
        WINDOW,
    ];
    for asked in [["before", "after"], ["after", "before"]] {
        let pod = in_crash_loop(POD, &["before", "after"]);
        let stopped = pod.delete(&asked);
        let record = pod.host.record();
        record.assert_before(("before", "exit"), ("after", "start"));
        assert!(record.has("after", "exit"), "{record}");
        assert_well(&stopped, &pod);
    }
}

#[test]
fn a_defer_runs_while_the_exit_of_an_init_container_is_withheld() {
    const POD: &[(&str, &str)] = &[
        ("usher/init", "setup"),
        ("usher/pre-exit", "before"),
        WINDOW,
    ];
    let pod = in_crash_loop(POD, &["setup", "before"]);
    let stopped = pod.delete(&["setup", "before"]);
    assert!(pod.host.record().has("before", "exit"), "{stopped:?}");
    assert_well(&stopped, &pod);
}

/// Since Kubernetes 1.29, kubelet stops native sidecars only after the other containers have
/// exited.
#[test]
fn a_defer_runs_before_the_native_sidecars_stop_request() {
    const POD: &[(&str, &str)] = &[("usher/sidecars", "proxy"), ("usher/pre-exit", "before")];
    let pod = in_crash_loop(POD, &["proxy", "before"]);
    let first = pod.stop(&["before"]);
    let record = pod.host.record();
    assert!(record.has("before", "exit"), "{first:?}\n{record}");
    let last = pod.delete(&["proxy"]);
    let record = pod.host.record();
    record.assert_before(("before", "exit"), ("proxy", "signal"));
    assert_well(&[first, last].concat(), &pod);
}

#[test]
fn the_hook_of_a_sidecar_runs_when_it_is_the_only_container_to_stop() {
    const POD: &[(&str, &str)] = &[
        ("usher/sidecars", "proxy"),
        (
            "termination-hook.usher/proxy",
            r#"{"exec":{"command":["/bin/witness","mark","proxy","hook"]}}"#,
        ),
    ];
    let pod = in_crash_loop(POD, &["proxy"]);
    let stopped = pod.delete(&["proxy"]);
    let record = pod.host.record();
    record.assert_before(("proxy", "hook"), ("proxy", "signal"));
    assert_well(&stopped, &pod);
}

#[test]
fn a_defer_runs_again_after_a_create_disproves_the_termination() {
    const POD: &[(&str, &str)] = &[("usher/pre-exit", "before")];
    let pod = in_crash_loop(POD, &["before"]);
    // kubelet stops the defer to create it again with a changed image. When kubelet also restarts
    // the app, the shim sees that the pod is not ending.
    pod.stop(&["before"]);
    assert_eq!(pod.starts("before"), 1);
    pod.run("web.1", &[]);
    pod.await_starts("web", 2);
    pod.run("before.1", QUICK);
    assert_eq!(pod.starts("before"), 1);
    let stopped = pod.delete(&["web.1", "before.1"]);
    let record = pod.host.record();
    let last = record.all("before", "exit").nth(1);
    let last = last.unwrap_or_else(|| panic!("{record}"));
    assert!(last.at_ns < record.at("web", "signal"), "{record}");
    assert_well(&stopped, &pod);
}
