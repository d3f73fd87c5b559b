//! Defer containers and hooks: their order at the end of a pod, and how they share the grace period
//! with other containers. The tests judge by what the containers recorded, and by the exit codes
//! that the caller gets.

use std::time::{Duration, Instant};

use crate::harness::{ContainerSpec, Containerd, PATIENCE, Status, eventually};
use crate::pod::Pod;

const GRACE: Duration = Duration::from_secs(30);

/// A termination window of 20 seconds: even on a slow machine the second stop request arrives
/// within the window, and so begins the termination.
const WINDOW: (&str, &str) = ("usher/termination-window", "20s");

/// The example pod of the proposal for defer containers.
const SHARD: Pod = Pod(&[
    ("usher/sidecars", "proxy"),
    ("usher/pre-exit", "remove-shard wait-for-rebalance kill-db"),
    ("usher/post-exit", "clean-update"),
    ("usher/grace-period", "30s"),
    WINDOW,
]);
const DEFERS: [&str; 4] = [
    "remove-shard",
    "wait-for-rebalance",
    "kill-db",
    "clean-update",
];
const ALL: [&str; 6] = [
    "proxy",
    "db",
    "remove-shard",
    "wait-for-rebalance",
    "kill-db",
    "clean-update",
];

/// A pod with a pre-exit and a post-exit container.
const PLAIN: Pod = Pod(&[
    ("usher/sidecars", "proxy"),
    ("usher/pre-exit", "before"),
    ("usher/post-exit", "after"),
    ("usher/grace-period", "30s"),
    WINDOW,
]);
const PLAIN_ALL: [&str; 4] = ["proxy", "web", "before", "after"];

const QUICK: &[&str] = &["--run-for", "100ms"];

#[track_caller]
fn run_all(host: &Containerd, pod: &Pod, containers: &[(&str, &[&str])]) {
    for (name, options) in containers {
        host.run(&pod.witness(name, options));
    }
}

/// Runs [`PLAIN`] or another pod with the same container names. `before` is the list of options of
/// the pre-exit container.
#[track_caller]
fn start_plain(pod: &Pod, before: &[&str]) -> Containerd {
    let others: [(&str, &[&str]); 2] = [("proxy", &[]), ("web", &[])];
    start(
        pod,
        &[&others[..], &[("before", before), ("after", QUICK)]].concat(),
    )
}

/// Runs a pod with these containers, and waits for the start of `web`.
#[track_caller]
fn start(pod: &Pod, containers: &[(&str, &[&str])]) -> Containerd {
    let host = Containerd::start();
    run_all(&host, pod, containers);
    host.await_event("web", "start");
    host
}

#[track_caller]
fn log_has(host: &Containerd, line: &str) {
    eventually(&format!("the log says {line:?}"), PATIENCE, || {
        host.log_tail(10_000).contains(line)
    });
}

#[test]
fn the_example_of_the_proposal_runs_in_order() {
    let host = Containerd::start();
    run_all(
        &host,
        &SHARD,
        &[("proxy", &[]), ("db", &["--stop-after", "200ms"])],
    );
    for name in DEFERS {
        host.run(&SHARD.witness(name, &["--run-for", "200ms"]));
        assert_eq!(
            host.status(name),
            Some(Status::Running),
            "as its caller sees it"
        );
    }
    host.await_event("db", "start");
    assert!(DEFERS.iter().all(|name| !host.record().has(name, "start")));
    let stopped = host.end_pod(&ALL, GRACE);
    for stop in &stopped {
        assert!(
            !stop.killed && stop.code == 0,
            "{stop:?}\n{}",
            host.record()
        );
        assert!(stop.answered < GRACE / 2, "{stop:?}");
    }
    let record = host.record();
    assert_eq!(record.order("start")[2..], DEFERS, "{record}");
    record.assert_before(("remove-shard", "exit"), ("wait-for-rebalance", "start"));
    record.assert_before(("wait-for-rebalance", "exit"), ("kill-db", "start"));
    record.assert_before(("kill-db", "exit"), ("db", "signal"));
    record.assert_before(("db", "exit"), ("clean-update", "start"));
    record.assert_before(("clean-update", "exit"), ("proxy", "signal"));
    assert!(
        DEFERS.iter().all(|name| !record.has(name, "signal")),
        "{record}"
    );
    for line in [
        "the pod terminates within 30s",
        "defer remove-shard ended with 0",
        "pre-exit containers over after",
        "apps over after",
        "post-exit containers over after",
        "sidecars over after",
    ] {
        log_has(&host, line);
    }
}

#[test]
fn a_log_forwarder_outlives_the_app_and_loses_no_line() {
    let host = Containerd::start();
    let pod = Pod(&[
        ("usher/sidecars", "forwarder"),
        (
            "startup-probe.usher/forwarder",
            r#"{"exec":{"command":["/bin/test","-e","/shared/reads"]},"periodMilliseconds":100,"failureThreshold":300}"#,
        ),
        ("usher/post-exit", "after"),
        ("usher/grace-period", "30s"),
        WINDOW,
    ]);
    let in_pod = |name: &str| {
        ContainerSpec::new(name)
            .in_pod("pod1", name)
            .annotations(pod.0)
    };
    // After its stop signal the forwarder reads on. It exits when no line has arrived for a second.
    host.run(&in_pod("forwarder").script(
        "mkfifo /shared/log; exec 3<>/shared/log; trap 'told=1' TERM; touch /shared/reads
         while :; do
             if read -t 1 -r line <&3; then echo \"$line\" >> /shared/collected
             elif [ -n \"$told\" ]; then break; fi
         done",
    ));
    host.run(&in_pod("app").script(
        "trap 'told=1' TERM; n=0; left=200
         while [ $left -gt 0 ]; do
             n=$((n + 1)); echo \"line $n\" > /shared/log
             [ -z \"$told\" ] || left=$((left - 1))
             [ $n -lt 50 ] || touch /shared/writes
         done
         echo $n > /shared/written",
    ));
    host.run(&in_pod("after").script("cp /shared/written /shared/seen-by-after"));
    let shared = host.shared_dir();
    eventually("the app writes", PATIENCE, || {
        shared.join("writes").exists()
    });
    let stopped = host.end_pod(&["forwarder", "app", "after"], GRACE);
    assert!(stopped.iter().all(|stop| !stop.killed), "{stopped:?}");
    let read = |name: &str| std::fs::read_to_string(shared.join(name)).expect(name);
    let written: usize = read("written").trim().parse().expect("a number");
    let expected: Vec<String> = (1..=written).map(|n| format!("line {n}")).collect();
    let collected = read("collected");
    assert!(
        collected.lines().eq(expected.iter()),
        "{written} lines were written"
    );
    assert_eq!(read("seen-by-after"), read("written"));
}

#[test]
fn a_mesh_proxy_outlives_the_app_and_refuses_no_connection() {
    let host = Containerd::start();
    let pod = Pod(&[
        ("usher/sidecars", "proxy"),
        ("startup-probe.usher/proxy", crate::pod::TCP_PROBE),
        ("usher/pre-exit", "before"),
        ("usher/grace-period", "30s"),
        WINDOW,
    ]);
    host.run(&pod.witness("proxy", &["--listen", "8080"]));
    host.await_event("proxy", "ready");
    let init = host
        .task_api("proxy")
        .state("proxy", "")
        .expect("State")
        .pid;
    let app = ContainerSpec::new("web")
        .in_pod("pod1", "web")
        .annotations(pod.0)
        .option(&["--with-ns", &format!("network:/proc/{init}/ns/net")])
        .script(
            "trap 'told=1' TERM; n=0; left=20
             while [ $left -gt 0 ]; do
                 if nc 127.0.0.1 8080 < /dev/null > /dev/null 2>&1
                 then n=$((n + 1)); else echo $n >> /shared/refused; fi
                 [ -z \"$told\" ] || left=$((left - 1))
                 [ $n -lt 10 ] || touch /shared/connects
             done
             echo $n > /shared/connected",
        );
    host.run(&app);
    host.run(&pod.witness("before", QUICK));
    let shared = host.shared_dir();
    eventually("the app connects", PATIENCE, || {
        shared.join("connects").exists()
    });
    let stopped = host.end_pod(&["proxy", "web", "before"], GRACE);
    assert!(stopped.iter().all(|stop| !stop.killed), "{stopped:?}");
    assert!(shared.join("connected").exists());
    assert!(!shared.join("refused").exists());
}

#[test]
fn a_failed_defer_delays_nothing_and_its_caller_sees_exit_code_0() {
    let failing: &[&str] = &["--run-for", "100ms", "--exit", "3"];
    let host = start(
        &PLAIN,
        &[
            ("proxy", &[]),
            ("web", &[]),
            ("before", failing),
            ("after", failing),
        ],
    );
    let stopped = host.end_pod(&PLAIN_ALL, GRACE);
    assert!(stopped.iter().all(|stop| stop.code == 0), "{stopped:?}");
    let record = host.record();
    record.assert_before(("before", "exit"), ("web", "signal"));
    record.assert_before(("after", "exit"), ("proxy", "signal"));
    log_has(&host, "defer before ended with 3");
}

#[test]
fn a_failed_defer_propagates_its_exit_code_if_asked_to() {
    let pod = Pod(&[
        ("usher/pre-exit", "before"),
        ("usher/defer-exit-code", "Propagate"),
        WINDOW,
    ]);
    let failing: &[&str] = &["--run-for", "100ms", "--exit", "3"];
    let host = start(&pod, &[("web", &[]), ("before", failing)]);
    let stopped = host.end_pod(&["web", "before"], GRACE);
    assert_eq!(stopped[1].code, 3, "{stopped:?}");
}

#[test]
fn a_failed_defer_runs_again_until_it_succeeds() {
    let host = Containerd::start();
    let pod = Pod(&[
        ("usher/pre-exit", "before"),
        ("restart.usher/before", "OnFailure"),
        WINDOW,
    ]);
    host.run(&pod.witness("web", &[]));
    let script =
        "/bin/witness mark before try; [ -e /shared/again ] || { touch /shared/again; exit 1; }";
    let before = ContainerSpec::new("before").in_pod("pod1", "before");
    host.run(&before.annotations(pod.0).script(script));
    host.await_event("web", "start");
    let stopped = host.end_pod(&["web", "before"], GRACE);
    assert!(
        stopped.iter().all(|stop| stop.code == 0 && !stop.killed),
        "{stopped:?}"
    );
    let record = host.record();
    assert_eq!(record.all("before", "try").count(), 2, "{record}");
    let last = record.all("before", "try").last().map(|event| event.at_ns);
    assert!(last < Some(record.at("web", "signal")), "{record}");
}

#[test]
fn a_defer_that_hangs_ends_with_the_grace_period_and_no_later_one_runs() {
    let pod = Pod(&[
        ("usher/sidecars", "proxy"),
        ("usher/pre-exit", "before"),
        ("usher/post-exit", "after"),
        ("usher/grace-period", "5s"),
        WINDOW,
    ]);
    let host = start_plain(&pod, &["--ignore-term"]);
    let asked = Instant::now();
    host.ask_all(&PLAIN_ALL, GRACE);
    for name in PLAIN_ALL {
        assert_eq!(host.wait_exit(name), 0, "{name}");
    }
    assert!(
        asked.elapsed() >= Duration::from_millis(6_900),
        "{:?}",
        asked.elapsed()
    );
    let record = host.record();
    // The hung defer gets its signal at the end of the grace period, not earlier.
    let hung = record.between(("before", "start"), ("before", "signal"));
    assert!(hung >= Duration::from_millis(2_000), "{record}");
    assert!(!record.has("after", "start"), "{record}");
    assert!(
        record.has("web", "exit") && record.has("proxy", "exit"),
        "{record}"
    );
}

#[test]
fn a_cap_ends_a_defer_that_hangs_and_the_next_one_runs() {
    let pod = Pod(&[
        ("usher/sidecars", "proxy"),
        ("usher/pre-exit", "before"),
        ("usher/post-exit", "after"),
        ("grace-period.usher/before", "4s"),
        ("usher/grace-period", "60s"),
        WINDOW,
    ]);
    let host = start_plain(&pod, &["--ignore-term"]);
    host.end_pod(&PLAIN_ALL, 2 * GRACE);
    let record = host.record();
    let told = record.between(("before", "start"), ("before", "signal"));
    assert!(told >= Duration::from_millis(3_900), "{record}");
    // The defer is killed two seconds after its signal, and only then does the app get its own
    // signal.
    let next = record.between(("before", "start"), ("web", "signal"));
    assert!(next >= Duration::from_millis(5_900), "{record}");
    record.assert_before(("web", "exit"), ("after", "start"));
    record.assert_before(("after", "exit"), ("proxy", "signal"));
}

#[test]
fn a_sigkill_ends_the_running_defer_and_no_later_one_runs() {
    let host = start_plain(&PLAIN, &["--ignore-term"]);
    host.ask_all(&PLAIN_ALL, GRACE);
    host.await_event("before", "start");
    assert!(!host.record().has("web", "signal"));
    host.kill("before", "SIGKILL");
    for name in PLAIN_ALL {
        assert_eq!(host.wait_exit(name), 0, "{name}");
    }
    let record = host.record();
    assert!(!record.has("after", "start"), "{record}");
    record.assert_before(("web", "exit"), ("proxy", "signal"));
}

#[test]
fn a_forced_deletion_runs_no_defer() {
    let host = start_plain(&PLAIN, QUICK);
    // For a grace period of zero, kubelet sends a stop request with a grace period of two seconds.
    host.end_pod(&PLAIN_ALL, Duration::from_secs(2));
    let record = host.record();
    assert!(
        !record.has("before", "start") && !record.has("after", "start"),
        "{record}"
    );
}

#[test]
fn two_simultaneous_pod_deletions_count_as_one() {
    let host = start(
        &PLAIN,
        &[
            ("proxy", &[]),
            ("web", &["--stop-after", "500ms"]),
            ("before", QUICK),
            ("after", QUICK),
        ],
    );
    let twice = [PLAIN_ALL, PLAIN_ALL].concat();
    let stopped = host.end_pod(&twice, GRACE);
    assert!(stopped.iter().all(|stop| stop.code == 0), "{stopped:?}");
    let record = host.record();
    record.assert_before(("before", "exit"), ("web", "signal"));
    record.assert_before(("web", "exit"), ("after", "start"));
    record.assert_before(("after", "exit"), ("proxy", "signal"));
    assert_eq!(record.all("before", "start").count(), 1, "{record}");
}

#[test]
fn the_termination_continues_while_containerd_restarts() {
    let host = start_plain(&PLAIN, &["--run-for", "3s"]);
    host.ask_all(&PLAIN_ALL, GRACE);
    host.await_event("before", "start");
    host.crash();
    host.await_event("proxy", "exit");
    host.start_again();
    for name in PLAIN_ALL {
        // Since containerd 1.7, a restarted containerd deletes tasks whose processes ended while it
        // was down.
        eventually("the container has ended", PATIENCE, || {
            matches!(host.status(name), None | Some(Status::Stopped))
        });
    }
    let record = host.record();
    record.assert_before(("before", "exit"), ("web", "signal"));
    record.assert_before(("after", "exit"), ("proxy", "signal"));
}

#[test]
fn a_shim_killed_during_the_termination_leaves_nothing() {
    let host = start_plain(&PLAIN, &["--ignore-term"]);
    host.ask_all(&PLAIN_ALL, GRACE);
    host.await_event("before", "start");
    let shim = nix::unistd::Pid::from_raw(host.shim("web").pid as i32);
    nix::sys::signal::kill(shim, nix::sys::signal::Signal::SIGKILL).expect("kill the shim");
    eventually("nothing remains", PATIENCE, || host.remains().is_empty());
    assert!(!host.record().has("after", "start"));
}

#[test]
fn a_completed_job_runs_its_defers() {
    let pod = Pod(&[
        ("usher/sidecars", "proxy"),
        ("usher/apps", "work"),
        ("usher/post-exit", "after"),
        ("usher/restart-policy", "Never"),
        WINDOW,
    ]);
    let host = Containerd::start();
    run_all(
        &host,
        &pod,
        &[
            ("proxy", &[]),
            ("after", QUICK),
            ("work", &["--run-for", "500ms", "--exit", "4"]),
        ],
    );
    for (name, code) in [("work", 4), ("after", 0), ("proxy", 0)] {
        assert_eq!(host.wait_exit(name), code, "{name}");
    }
    let record = host.record();
    record.assert_before(("work", "exit"), ("after", "start"));
    record.assert_before(("after", "exit"), ("proxy", "signal"));
}

#[test]
fn a_stop_request_for_one_app_runs_no_defer() {
    let pod = Pod(&[
        ("usher/sidecars", "proxy"),
        ("usher/pre-exit", "before"),
        ("usher/post-exit", "after"),
    ]);
    let host = start_plain(&pod, QUICK);
    host.kill("web", "SIGTERM");
    host.wait_exit("web");
    host.delete("web");
    host.run(&pod.witness("web", &["--beat", "20ms"]));
    let record = host.await_event("web", "beat");
    for name in ["before", "after", "proxy"] {
        assert!(!record.has(name, "signal"), "{record}");
    }
    assert!(!record.has("before", "start"), "{record}");
}

#[test]
fn hooks_run_before_any_container_gets_its_stop_signal() {
    let pod = Pod(&[
        ("usher/sidecars", "proxy"),
        (
            "termination-hook.usher/web",
            r#"{"exec":{"command":["/bin/witness","mark","web","hook"]}}"#,
        ),
        (
            "termination-hook.usher/proxy",
            r#"{"tcpSocket":{"port":8080}}"#,
        ),
        WINDOW,
    ]);
    let host = start(&pod, &[("proxy", &["--listen", "8080"]), ("web", &[])]);
    host.await_event("proxy", "ready");
    let stopped = host.end_pod(&["proxy", "web"], GRACE);
    assert!(stopped.iter().all(|stop| !stop.killed), "{stopped:?}");
    let record = host.record();
    record.assert_before(("web", "hook"), ("web", "signal"));
    // The proxy records only its first connection, which is that of the probe.
    record.assert_before(("proxy", "accepted"), ("web", "signal"));
}

#[test]
fn the_shim_runs_pre_stop_handlers_when_it_ends_the_pod_itself() {
    let pod = Pod(&[
        ("usher/sidecars", "proxy"),
        ("usher/apps", "work"),
        ("usher/restart-policy", "Never"),
        WINDOW,
    ]);
    let host = Containerd::start();
    let handler = r#"{"exec":{"command":["/bin/witness","mark","proxy","bye"]}}"#;
    let proxy = pod.witness("proxy", &[]);
    host.run(&proxy.annotation("io.kubernetes.container.preStopHandler", handler));
    host.run(&pod.witness("work", &["--run-for", "300ms"]));
    assert_eq!(host.wait_exit("proxy"), 0);
    let record = host.record();
    record.assert_before(("work", "exit"), ("proxy", "bye"));
    record.assert_before(("proxy", "bye"), ("proxy", "signal"));
}
