//! An app starts only after its sidecars, whichever is created first. The tests judge by what the
//! containers recorded.

use std::time::{Duration, Instant};

use crate::harness::{Containerd, PATIENCE, Status, eventually};
use crate::pod::{EXEC_PROBE, MESH, Pod, TCP_PROBE};

const MS: Duration = Duration::from_millis(1);

#[test]
fn an_app_created_first_is_held_until_its_sidecar_is_ready() {
    let host = Containerd::start();
    // The shim answers Start although the program does not run yet. So a caller like kubelet
    // continues, and creates the proxy.
    host.run(&MESH.witness("web", &[]));
    assert_eq!(host.status("web"), Some(Status::Running));
    MESH.run_proxy(&host, &["--ready-after", "700ms"]);
    let record = host.await_event("web", "start");
    record.assert_before(("proxy", "ready"), ("web", "start"));
    // The shim may notice the proxy's readiness up to one probe period late. The limit also allows
    // for a slow machine.
    assert!(
        record.between(("proxy", "ready"), ("web", "start")) < 2000 * MS,
        "{record}"
    );
}

#[test]
fn an_app_created_last_is_reported_started_once_it_runs() {
    let host = Containerd::start();
    MESH.run_proxy(&host, &["--ready-after", "900ms"]);
    host.run(&MESH.witness("web", &[]));
    // The shim must not answer the app's Start before the proxy is ready. `ctr run` returns when
    // the shim answers.
    let record = host.record();
    assert!(
        record.has("proxy", "ready"),
        "the Start was answered too early:\n{record}"
    );
    let record = host.await_event("web", "start");
    record.assert_before(("proxy", "ready"), ("web", "start"));
}

#[test]
fn an_exec_probe_runs_in_the_container() {
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
fn an_http_probe_runs_in_the_containers_network() {
    let pod = Pod(&[
        ("usher/sidecars", "proxy"),
        (
            "startup-probe.usher/proxy",
            r#"{"httpGet":{"port":8080,"path":"/ready?full"},"periodMilliseconds":100,"failureThreshold":200}"#,
        ),
    ]);
    check_app_waits_for_ready_answer(&pod, "--http");
}

#[test]
fn a_grpc_probe_runs_in_the_containers_network() {
    let pod = Pod(&[
        ("usher/sidecars", "proxy"),
        (
            "startup-probe.usher/proxy",
            r#"{"grpc":{"port":8080,"service":"mesh"},"periodMilliseconds":100,"failureThreshold":200}"#,
        ),
    ]);
    check_app_waits_for_ready_answer(&pod, "--grpc");
}

/// Checks that an app waits until the proxy answers a probe with success. The proxy accepts
/// connections from the beginning, so a connection alone does not mean that it is ready.
#[track_caller]
fn check_app_waits_for_ready_answer(pod: &Pod, server: &str) {
    let host = Containerd::start();
    host.run(&pod.witness("web", &[]));
    host.run(&pod.witness("proxy", &[server, "8080"]));
    let record = host.await_event("web", "start");
    record.assert_before(("proxy", "ready"), ("web", "start"));
    assert_eq!(record.all("proxy", "refused").count(), 2, "{record}");
}

#[test]
fn two_sidecars_start_together_and_the_app_after_the_slower_one() {
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
fn block_fails_and_names_a_sidecar_that_was_never_created() {
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
fn a_hold_that_times_out_prints_its_reason() {
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

/// A pod whose sidecar runs but never becomes ready.
const NEVER_READY: &[(&str, &str)] = &[
    ("usher/sidecars", "proxy"),
    (
        "startup-probe.usher/proxy",
        r#"{"tcpSocket":{"port":9},"periodMilliseconds":50,"failureThreshold":10000}"#,
    ),
];

#[test]
fn block_fails_at_its_deadline_and_names_a_sidecar_that_is_not_ready() {
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
fn an_app_held_for_a_sidecar_that_is_never_ready_prints_its_reason() {
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
    // The shim's log gives the same reason.
    assert!(host.log_tail(2000).contains(&reason));
    assert!(!host.record().has("web", "start"));
}

#[test]
fn native_init_containers_run_at_once_and_report_their_exits() {
    let pod = Pod(&[("usher/sidecars", "proxy"), ("usher/native-init", "setup")]);
    let host = Containerd::start();
    // kubelet runs init containers one after another, and waits for the exit of each.
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
fn a_native_sidecar_delays_no_native_init_container() {
    let pod = Pod(&[
        ("usher/native-init", "setup"),
        ("usher/sidecars", "proxy"),
        ("startup-probe.usher/proxy", TCP_PROBE),
        ("usher/termination-window", "20s"),
    ]);
    let host = Containerd::start();
    // The proxy is a native sidecar: kubelet lists it among the init containers, and starts the
    // next init container once the proxy has started.
    pod.run_proxy(&host, &["--ready-after", "300ms"]);
    host.run(&pod.witness("setup", &["--run-for", "100ms"]));
    assert_eq!(host.wait_exit("setup"), 0);
    host.run(&pod.witness("web", &["--stop-after", "200ms"]));
    let record = host.await_event("web", "start");
    record.assert_before(("proxy", "ready"), ("web", "start"));
    // Since Kubernetes 1.29, kubelet stops the proxy only when the apps have exited. So no second
    // stop request comes while the app runs, and the shim must not wait for a second one.
    host.kill("web", "SIGTERM");
    host.wait_exit("web");
    let asked = Instant::now();
    host.kill("proxy", "SIGTERM");
    assert_eq!(host.wait_exit("proxy"), 0);
    assert!(asked.elapsed() < 10_000 * MS, "{:?}", asked.elapsed());
}

#[test]
fn a_container_outside_the_list_of_apps_does_not_wait() {
    let pod = Pod(&[("usher/sidecars", "proxy"), ("usher/apps", "web")]);
    let host = Containerd::start();
    host.run(&pod.witness("web", &[]));
    host.run(&pod.witness("debugger", &[]));
    let record = host.await_event("debugger", "start");
    assert!(!record.has("web", "start"), "{record}");
}

#[test]
fn all_calls_but_probes_work_on_a_held_container() {
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
    // The failed command has changed nothing: the container is still held, and another command can
    // release it.
    assert!(!host.record().has("web", "start"));
    MESH.run_proxy(&host, &[]);
    host.await_event("web", "start");
}

#[test]
fn a_container_paused_while_held_starts_on_resume() {
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
fn a_held_container_is_released_after_a_restart_of_containerd() {
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
fn a_stopped_held_container_exits_without_having_run() {
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
fn a_sidecar_is_stopped_when_its_startup_probe_fails_too_often() {
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
fn an_app_waits_for_an_optional_sidecar_only_if_it_exists() {
    const OPTIONAL: Pod = Pod(&[
        ("usher/sidecars", "proxy? mesh?"),
        ("startup-probe.usher/proxy", TCP_PROBE),
    ]);
    let host = Containerd::start();
    OPTIONAL.run_proxy(&host, &["--ready-after", "700ms"]);
    host.run(&OPTIONAL.witness("web", &["--stop-after", "500ms"]));
    let record = host.await_event("web", "start");
    // The test measures from the proxy's start, not from the proxy's first connection. The proxy
    // may record the connection only after the app has started.
    let waited = record.between(("proxy", "start"), ("web", "start"));
    assert!(waited >= 700 * MS, "{record}");
    host.kill_all(&["proxy", "web"], "SIGTERM");
    host.wait_exit("web");
    host.wait_exit("proxy");
    let record = host.record();
    record.assert_before(("web", "exit"), ("proxy", "signal"));
    // The app does not wait for optional sidecars that are never created.
    let host = Containerd::start();
    host.run(&OPTIONAL.witness("web", &[]));
    host.await_event("web", "start");
}
