//! An app's program is not executed before the sidecars are started, whichever is created first.
//! Judged by what the containers have recorded.

use std::time::{Duration, Instant};

use crate::harness::{Containerd, PATIENCE, Status, eventually};
use crate::pod::{EXEC_PROBE, MESH, Pod, TCP_PROBE};

const MS: Duration = Duration::from_millis(1);

#[test]
fn an_app_that_is_created_first_is_held_until_its_sidecar_is_ready() {
    let host = Containerd::start();
    // The Start is answered though nothing runs: a caller like kubelet goes on to create the proxy.
    host.run(&MESH.witness("web", &[]));
    assert_eq!(host.status("web"), Some(Status::Running));
    MESH.run_proxy(&host, &["--ready-after", "700ms"]);
    let record = host.await_event("web", "start");
    record.assert_before(("proxy", "ready"), ("web", "start"));
    // One period of the probe, and what a busy machine adds.
    assert!(
        record.between(("proxy", "ready"), ("web", "start")) < 2000 * MS,
        "{record}"
    );
}

#[test]
fn an_app_that_is_created_last_is_reported_started_when_it_runs() {
    let host = Containerd::start();
    MESH.run_proxy(&host, &["--ready-after", "900ms"]);
    host.run(&MESH.witness("web", &[]));
    // `ctr run` has come back by now: it was kept waiting until the proxy was ready.
    let record = host.record();
    assert!(
        record.has("proxy", "ready"),
        "the Start was answered too early:\n{record}"
    );
    let record = host.await_event("web", "start");
    record.assert_before(("proxy", "ready"), ("web", "start"));
}

#[test]
fn a_probe_by_a_command_is_made_in_the_container() {
    let pod = Pod(&[
        ("usher/sidecars", "proxy"),
        ("startup-probe.usher/proxy", EXEC_PROBE),
    ]);
    let host = Containerd::start();
    host.run(&pod.witness("web", &[]));
    host.run(&pod.witness("proxy", &["--ready-after", "500ms"]));
    let record = host.await_event("web", "start");
    record.assert_before(("proxy", "ready"), ("web", "start"));
}

#[test]
fn a_probe_by_http_is_made_in_the_network_of_the_container() {
    let pod = Pod(&[
        ("usher/sidecars", "proxy"),
        (
            "startup-probe.usher/proxy",
            r#"{"httpGet":{"port":8080,"path":"/ready?full"},"periodMilliseconds":100,"failureThreshold":200}"#,
        ),
    ]);
    the_app_runs_once_the_proxy_says_that_it_is_ready(&pod, "--http");
}

#[test]
fn a_probe_by_grpc_is_made_in_the_network_of_the_container() {
    let pod = Pod(&[
        ("usher/sidecars", "proxy"),
        (
            "startup-probe.usher/proxy",
            r#"{"grpc":{"port":8080,"service":"mesh"},"periodMilliseconds":100,"failureThreshold":200}"#,
        ),
    ]);
    the_app_runs_once_the_proxy_says_that_it_is_ready(&pod, "--grpc");
}

/// It accepts connections all the time: what counts is the answer.
#[track_caller]
fn the_app_runs_once_the_proxy_says_that_it_is_ready(pod: &Pod, server: &str) {
    let host = Containerd::start();
    host.run(&pod.witness("web", &[]));
    host.run(&pod.witness("proxy", &[server, "8080"]));
    let record = host.await_event("web", "start");
    record.assert_before(("proxy", "ready"), ("web", "start"));
    assert_eq!(record.all("proxy", "refused").count(), 2, "{record}");
}

#[test]
fn two_sidecars_start_side_by_side_and_the_app_after_the_slower_one() {
    let pod = Pod(&[
        ("usher/sidecars", "proxy, logs"),
        ("startup-probe.usher/proxy", TCP_PROBE),
    ]);
    let host = Containerd::start();
    host.run(&pod.witness("web", &[]));
    pod.run_proxy(&host, &["--ready-after", "800ms"]);
    host.run(&pod.witness("logs", &[]));
    let record = host.await_event("web", "start");
    record.assert_before(("logs", "start"), ("proxy", "ready"));
    record.assert_before(("proxy", "ready"), ("web", "start"));
}

#[test]
fn a_startup_order_starts_sidecars_one_after_another() {
    let pod = Pod(&[
        ("usher/sidecars", "logs, proxy"),
        ("usher/startup-order", "proxy, logs"),
        ("startup-probe.usher/proxy", TCP_PROBE),
        (
            "startup-probe.usher/logs",
            r#"{"exec":{"command":["/bin/test","-e","/shared/ready-logs"]},"periodMilliseconds":50,"failureThreshold":200}"#,
        ),
    ]);
    let host = Containerd::start();
    host.run(&pod.witness("web", &[]));
    host.run(&pod.witness("logs", &["--ready-after", "300ms"]));
    pod.run_proxy(&host, &["--ready-after", "400ms"]);
    let record = host.await_event("web", "start");
    record.assert_before(("proxy", "ready"), ("logs", "start"));
    record.assert_before(("logs", "ready"), ("web", "start"));
}

#[test]
fn block_fails_with_the_name_of_what_it_waited_for() {
    let pod = Pod(&[
        ("usher/sidecars", "proxy"),
        ("usher/start-mode", "Block"),
        ("usher/startup-timeout", "700ms"),
    ]);
    let host = Containerd::start();
    let run = host.try_run(&pod.witness("web", &[]));
    assert!(!run.ok());
    assert!(
        run.err().contains("sidecar proxy (never created"),
        "{}",
        run.err()
    );
    assert!(!host.record().has("web", "start"));
}

#[test]
fn a_hold_that_lasts_too_long_ends_with_its_reason_in_sight() {
    let pod = Pod(&[
        ("usher/sidecars", "proxy"),
        ("usher/start-mode", "Hold"),
        ("usher/startup-timeout", "600ms"),
    ]);
    let host = Containerd::start();
    let run = host.run_attached(&pod.witness("web", &[]));
    assert_eq!(run.code, Some(1), "{}", run.err());
    assert!(run.err().contains("web was held for"), "{}", run.err());
    assert!(
        run.err().contains("sidecar proxy (never created"),
        "{}",
        run.err()
    );
    assert!(!host.record().has("web", "start"));
}

/// A sidecar that runs and never gets ready.
const NEVER_READY: &[(&str, &str)] = &[
    ("usher/sidecars", "proxy"),
    (
        "startup-probe.usher/proxy",
        r#"{"tcpSocket":{"port":9},"periodMilliseconds":50,"failureThreshold":10000}"#,
    ),
];

#[test]
fn block_fails_at_its_deadline_with_the_name_of_a_sidecar_that_never_gets_ready() {
    let host = Containerd::start();
    let spec = |name: &str| {
        let spec = Pod(NEVER_READY).witness(name, &[]);
        let spec = spec.annotation("usher/start-mode", "Block");
        spec.annotation("usher/startup-timeout", "1500ms")
    };
    host.run(&spec("proxy"));
    let begun = Instant::now();
    let run = host.try_run(&spec("web"));
    assert!(begun.elapsed() >= 1500 * MS, "{:?}", begun.elapsed());
    assert!(!run.ok());
    assert!(
        run.err().contains("sidecar proxy (not started yet)"),
        "{}",
        run.err()
    );
    assert!(!host.record().has("web", "start"));
    assert_eq!(host.status("proxy"), Some(Status::Running));
}

#[test]
fn an_app_that_is_held_for_a_sidecar_that_never_gets_ready_ends_with_its_reason_in_sight() {
    let host = Containerd::start();
    let spec = |name: &str| {
        let spec = Pod(NEVER_READY).witness(name, &[]);
        let spec = spec.annotation("usher/start-mode", "Hold");
        spec.annotation("usher/startup-timeout", "6s")
    };
    host.run(&spec("proxy"));
    let run = host.run_attached(&spec("web"));
    assert_eq!(run.code, Some(1), "{}", run.err());
    let waits_for = "sidecar proxy (not started yet)";
    let notice = format!("s: it waits for {waits_for}\n");
    assert!(
        run.err().contains("web has been held for 5"),
        "{}",
        run.err()
    );
    assert!(run.err().contains(&notice), "{}", run.err());
    let reason = format!("is ended: it waited for {waits_for}");
    assert!(run.err().contains(&reason), "{}", run.err());
    // And in the log, for whoever looks there.
    assert!(host.log_tail(2000).contains(&reason));
    assert!(!host.record().has("web", "start"));
}

#[test]
fn the_callers_own_init_containers_run_at_once_and_are_over_when_they_are() {
    let pod = Pod(&[("usher/sidecars", "proxy"), ("usher/native-init", "setup")]);
    let host = Containerd::start();
    // As kubelet does it: init containers one after another, each to its end.
    host.run(&pod.witness("setup", &["--run-for", "100ms", "--exit", "3"]));
    assert_eq!(host.wait_exit("setup"), 3);
    host.delete("setup");
    host.run(&pod.witness("setup", &["--run-for", "100ms"]));
    assert_eq!(host.wait_exit("setup"), 0);
    host.run(&pod.witness("web", &[]));
    host.run(&pod.witness("proxy", &[]));
    host.await_event("web", "start");
    host.kill_all(&["web", "proxy"], "SIGTERM");
    assert_eq!(host.wait_exit("proxy"), 0);
    host.record()
        .assert_before(("web", "exit"), ("proxy", "signal"));
}

#[test]
fn a_sidecar_among_kubelets_own_init_containers_keeps_none_of_them_waiting() {
    let pod = Pod(&[
        ("usher/native-init", "setup"),
        ("usher/sidecars", "proxy"),
        ("startup-probe.usher/proxy", TCP_PROBE),
        ("usher/termination-window", "20s"),
    ]);
    let host = Containerd::start();
    // Kubelet has the proxy among its init containers, and starts the next one when it is started.
    pod.run_proxy(&host, &["--ready-after", "300ms"]);
    host.run(&pod.witness("setup", &["--run-for", "100ms"]));
    assert_eq!(host.wait_exit("setup"), 0);
    host.run(&pod.witness("web", &["--stop-after", "200ms"]));
    let record = host.await_event("web", "start");
    record.assert_before(("proxy", "ready"), ("web", "start"));
    // From 1.29 on it asks the proxy when the apps have ended: nothing waits for a second request.
    host.kill("web", "SIGTERM");
    host.wait_exit("web");
    let asked = Instant::now();
    host.kill("proxy", "SIGTERM");
    assert_eq!(host.wait_exit("proxy"), 0);
    assert!(asked.elapsed() < 10_000 * MS, "{:?}", asked.elapsed());
}

#[test]
fn a_guest_does_not_wait() {
    let pod = Pod(&[("usher/sidecars", "proxy"), ("usher/apps", "web")]);
    let host = Containerd::start();
    host.run(&pod.witness("web", &[]));
    host.run(&pod.witness("debugger", &[]));
    let record = host.await_event("debugger", "start");
    assert!(!record.has("web", "start"), "{record}");
}

#[test]
fn everything_works_on_a_held_container_but_probes() {
    let host = Containerd::start();
    host.run(&MESH.witness("web", &[]));
    let exec = host.exec("web", &["/bin/echo", "in a held container"]);
    assert_eq!(exec.out(), "in a held container\n", "{}", exec.err());
    assert_eq!(host.status("web"), Some(Status::Running));
    assert!(!host.pids("web").is_empty());
    host.metrics("web");
    for (command, status) in [("pause", Status::Paused), ("resume", Status::Running)] {
        host.must(&["task", command, "web"]);
        assert_eq!(host.status("web"), Some(status));
    }
    // It is still held, and still released.
    assert!(!host.record().has("web", "start"));
    MESH.run_proxy(&host, &[]);
    host.await_event("web", "start");
}

#[test]
fn a_container_that_is_paused_while_held_runs_when_it_is_resumed() {
    let host = Containerd::start();
    host.run(&MESH.witness("web", &[]));
    host.must(&["task", "pause", "web"]);
    MESH.run_proxy(&host, &[]);
    let released = "released";
    eventually("the shim has decided to release it", PATIENCE, || {
        host.log_tail(200).contains(released)
    });
    assert!(!host.record().has("web", "start"));
    host.must(&["task", "resume", "web"]);
    host.await_event("web", "start");
}

#[test]
fn a_held_container_is_released_by_a_containerd_that_was_restarted_meanwhile() {
    let host = Containerd::start();
    host.run(&MESH.witness("web", &[]));
    host.crash();
    host.start_again();
    assert_eq!(host.status("web"), Some(Status::Running));
    MESH.run_proxy(&host, &["--ready-after", "200ms"]);
    let record = host.await_event("web", "start");
    record.assert_before(("proxy", "ready"), ("web", "start"));
}

#[test]
fn a_held_container_that_is_asked_to_stop_ends_without_having_run() {
    for (signal, code) in [("SIGTERM", 143), ("SIGKILL", 137)] {
        let host = Containerd::start();
        host.run(&MESH.witness("web", &[]));
        host.kill("web", signal);
        assert_eq!(host.wait_exit("web"), code);
        assert!(!host.record().has("web", "start"));
        host.delete("web");
    }
}

#[test]
fn a_sidecar_whose_startup_probe_fails_too_often_is_stopped() {
    let pod = Pod(&[
        ("usher/sidecars", "proxy"),
        (
            "startup-probe.usher/proxy",
            r#"{"tcpSocket":{"port":9},"periodMilliseconds":50,"failureThreshold":3}"#,
        ),
    ]);
    let host = Containerd::start();
    host.run(&pod.witness("proxy", &["--exit", "9"]));
    assert_eq!(host.wait_exit("proxy"), 9);
    assert!(host.record().has("proxy", "signal"));
}

#[test]
fn an_optional_sidecar_is_waited_for_if_it_is_there() {
    const OPTIONAL: Pod = Pod(&[
        ("usher/sidecars", "proxy? mesh?"),
        ("startup-probe.usher/proxy", TCP_PROBE),
    ]);
    let host = Containerd::start();
    OPTIONAL.run_proxy(&host, &["--ready-after", "700ms"]);
    host.run(&OPTIONAL.witness("web", &["--stop-after", "500ms"]));
    let record = host.await_event("web", "start");
    // It listens then; what it accepts it records a moment later.
    let waited = record.between(("proxy", "start"), ("web", "start"));
    assert!(waited >= 700 * MS, "{record}");
    host.kill_all(&["proxy", "web"], "SIGTERM");
    host.wait_exit("web");
    host.wait_exit("proxy");
    let record = host.record();
    record.assert_before(("web", "exit"), ("proxy", "signal"));
    // Nothing waits for those that do not come.
    let host = Containerd::start();
    host.run(&OPTIONAL.witness("web", &[]));
    host.await_event("web", "start");
}
