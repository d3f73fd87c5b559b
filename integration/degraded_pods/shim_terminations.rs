//! Pods that the shim terminates while the caller still creates containers, and pods whose caller
//! restarts all containers.

use std::time::Duration;

use crate::harness::{PATIENCE, Status};

use super::kubelet::{Kubelet, QUICK};

/// The deadline of kubelet's stop request for a grace period of two seconds: kubelet adds 120 s.
const TWO_SECONDS: Duration = Duration::from_secs(122);

const SIGTERM: u32 = 15;

/// Stops one container with a grace period of two seconds, as kubelet does to restart all
/// containers of a pod.
#[track_caller]
fn stop_shortly(pod: &Kubelet, id: &str) {
    let api = pod.host.task_api(id).deadline(TWO_SECONDS);
    api.kill(id, "", SIGTERM, false).expect("Kill");
    pod.ended(id);
}

#[test]
fn a_sidecar_started_after_its_job_completed_exits_with_0() {
    const JOB: &[(&str, &str)] = &[
        ("usher/sidecars", "proxy logs?"),
        ("usher/apps", "work"),
        ("usher/restart-policy", "Never"),
    ];
    let pod = Kubelet::run_pod(JOB, 20);
    pod.run("proxy", &[]);
    pod.run("work", &["--run-for", "100ms"]);
    assert_eq!(pod.ended("work"), 0);
    // The Job is complete. If this Start failed, the Job would fail.
    pod.run("logs", &[]);
    assert_eq!(pod.ended("logs"), 0);
    assert_eq!(pod.ended("proxy"), 0);
    assert_eq!(pod.starts("logs"), 0);
}

#[test]
fn an_app_that_fails_before_its_cleanup_exists_ends_the_pod_after_the_cleanup() {
    const POD: &[(&str, &str)] = &[
        ("usher/sidecars", "proxy"),
        ("usher/apps", "web"),
        ("usher/post-exit", "report"),
        ("usher/essential", "web"),
        ("usher/restart-policy", "Always"),
    ];
    let pod = Kubelet::run_pod(POD, 20);
    pod.run("proxy", &[]);
    pod.run("web", &["--run-for", "100ms", "--exit", "1"]);
    assert_eq!(pod.ended("web"), 1);
    // The container `report` comes after the app in the pod's spec, so kubelet creates the app
    // again before it creates `report`. The shim answers the app's Start at once.
    pod.run("web.1", &[]);
    assert_eq!(pod.host.status("proxy"), Some(Status::Running));
    pod.run("report", QUICK);
    pod.host.wait_exit("proxy");
    let record = pod.host.record();
    record.assert_before(("report", "exit"), ("proxy", "signal"));
    assert_eq!(pod.starts("web"), 1, "{record}");
}

#[test]
fn a_pod_whose_containers_all_restart_starts_in_order_again() {
    const POD: &[(&str, &str)] = &[
        ("usher/sidecars", "proxy"),
        ("usher/restart-policy", "Always"),
        (
            "startup-probe.usher/proxy",
            r#"{"tcpSocket": {"port": 8080}, "periodMilliseconds": 100, "failureThreshold": 1000}"#,
        ),
    ];
    let pod = Kubelet::run_pod(POD, 20);
    pod.run("proxy", &["--listen", "8080"]);
    pod.run("web", &["--run-for", "300ms", "--exit", "42"]);
    assert_eq!(pod.ended("web"), 42);
    stop_shortly(&pod, "proxy");
    // The sidecar comes last in the pod's spec, because a webhook has injected it. So the app is
    // created first.
    let web = pod.host.spawn_run(&pod.witness("web.1", &[]));
    pod.run("proxy.1", &["--listen", "8080", "--ready-after", "1500ms"]);
    web.finish(PATIENCE);
    pod.await_starts("web", 2);
    let record = pod.host.record();
    let ready: Vec<_> = record.all("proxy", "ready").collect();
    let started: Vec<_> = record.all("web", "start").collect();
    assert_eq!((ready.len(), started.len()), (2, 2), "{record}");
    assert!(ready[1].at_ns < started[1].at_ns, "{record}");
}

#[test]
fn an_app_that_kubelet_restarts_for_its_exit_code_does_not_end_its_job() {
    const JOB: &[(&str, &str)] = &[
        ("usher/sidecars", "proxy"),
        ("usher/apps", "work"),
        ("usher/post-exit", "report"),
        ("usher/restart-policy", "Never"),
        ("caller-restarts.usher/work", "42"),
    ];
    let pod = Kubelet::run_pod(JOB, 20);
    pod.run("proxy", &[]);
    pod.run("work", &["--run-for", "100ms", "--exit", "42"]);
    pod.run("report", QUICK);
    assert_eq!(pod.ended("work"), 42);
    pod.run("work.1", &["--run-for", "1s"]);
    assert_eq!(pod.ended("work.1"), 0);
    assert_eq!(pod.ended("report"), 0);
    assert_eq!(pod.ended("proxy"), 0);
    let record = pod.host.record();
    assert_eq!(pod.starts("report"), 1, "{record}");
    let ends: Vec<_> = record.all("work", "exit").collect();
    let report: Vec<_> = record.all("report", "start").collect();
    assert!(
        ends.len() == 2 && ends[1].at_ns < report[0].at_ns,
        "{record}"
    );
}
