//! All containers get a stop request at the same time. The shim delivers SIGTERM to the apps
//! immediately, and to the sidecars when the apps have exited. At the end of the grace period all
//! containers end. The tests judge by what the containers recorded.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::harness::{Containerd, PATIENCE, eventually};
use crate::pod::{MESH, Pod};

const MS: Duration = Duration::from_millis(1);

fn run_all(host: &Containerd, pod: &Pod, containers: &[(&str, &[&str])]) {
    for (name, options) in containers {
        host.run(&pod.witness(name, options));
        host.await_event(name, "start");
    }
}

#[test]
fn the_sidecar_is_signaled_after_the_app_has_exited_in_any_order_of_stop_requests() {
    for order in [["proxy", "web"], ["web", "proxy"]] {
        let host = Containerd::start();
        let web: &[&str] = &["--stop-after", "1s", "--exit", "5"];
        run_all(
            &host,
            &MESH,
            &[
                ("proxy", &["--listen", "8080", "--exit", "6"]),
                ("web", web),
            ],
        );
        host.kill_all(&order, "SIGTERM");
        assert_eq!(host.wait_exit("web"), 5, "an app reports its own code");
        assert_eq!(
            host.wait_exit("proxy"),
            0,
            "a sidecar that was told to go has not failed"
        );
        let record = host.record();
        record.assert_before(("web", "exit"), ("proxy", "signal"));
        assert!(
            record.between(("web", "exit"), ("proxy", "signal")) < 5_000 * MS,
            "{record}"
        );
    }
}

#[test]
fn sidecars_stop_in_the_reverse_order_of_their_start() {
    let pod = Pod(&[("usher/sidecars", "a b"), ("usher/startup-order", "a b")]);
    let host = Containerd::start();
    let slow: &[&str] = &["--stop-after", "300ms"];
    run_all(&host, &pod, &[("a", slow), ("b", slow), ("web", slow)]);
    host.kill_all(&["a", "b", "web"], "SIGTERM");
    for name in ["web", "b", "a"] {
        host.wait_exit(name);
    }
    let record = host.record();
    assert_eq!(record.order("signal"), ["web", "b", "a"], "{record}");
    record.assert_before(("b", "exit"), ("a", "signal"));
}

#[test]
fn the_requested_signal_is_the_one_delivered() {
    let host = Containerd::start();
    run_all(
        &host,
        &MESH,
        &[
            ("proxy", &["--listen", "8080"]),
            ("web", &["--stop-after", "500ms"]),
        ],
    );
    host.kill("proxy", "SIGQUIT");
    host.kill("web", "SIGINT");
    host.wait_exit("proxy");
    host.await_event("web", "signal");
    let record = host.record();
    assert_eq!(
        record.first("proxy", "signal").unwrap().detail,
        "3",
        "{record}"
    );
    assert_eq!(
        record.first("web", "signal").unwrap().detail,
        "2",
        "{record}"
    );
}

#[test]
fn the_end_of_the_grace_period_kills_apps_and_sidecars() {
    let pod = Pod(&[("usher/sidecars", "proxy"), ("usher/grace-period", "2s")]);
    let host = Containerd::start();
    run_all(
        &host,
        &pod,
        &[("proxy", &["--ignore-term"]), ("web", &["--ignore-term"])],
    );
    let (asked, asked_at) = (Instant::now(), SystemTime::now());
    host.kill_all(&["proxy", "web"], "SIGTERM");
    assert_eq!(host.wait_exit("web"), 137);
    // A sidecar that usher stops reports 0, even if it ignored its signal.
    assert_eq!(host.wait_exit("proxy"), 0);
    let took = asked.elapsed();
    assert!(
        took >= 3900 * MS,
        "two seconds of grace and two more: {took:?}"
    );
    assert!(took < 8000 * MS, "{took:?}");
    let record = host.record();
    // The app got its signal immediately. The sidecar got its signal at the end of the grace
    // period, which began with the first of the two stop requests.
    let told_at = UNIX_EPOCH + Duration::from_nanos(record.at("proxy", "signal"));
    let waited = told_at
        .duration_since(asked_at)
        .expect("web got the signal after the request");
    assert!(waited >= 2000 * MS, "{waited:?}\n{record}");
    let wait = record.between(("web", "signal"), ("proxy", "signal"));
    assert!(wait < 4000 * MS, "{wait:?}\n{record}");
}

#[test]
fn a_stop_request_for_one_app_leaves_the_rest_alone() {
    let host = Containerd::start();
    run_all(
        &host,
        &MESH,
        &[("proxy", &["--listen", "8080"]), ("web", &[])],
    );
    host.kill("web", "SIGTERM");
    host.wait_exit("web");
    host.delete("web");
    // The caller restarts the app while the proxy runs on.
    host.run(&MESH.witness("web", &["--beat", "20ms"]));
    host.await_event("web", "beat");
    assert!(!host.record().has("proxy", "signal"));
}

#[test]
fn a_stop_request_for_one_sidecar_takes_effect_after_the_window() {
    let pod = Pod(&[
        ("usher/sidecars", "proxy"),
        ("usher/termination-window", "700ms"),
    ]);
    let host = Containerd::start();
    run_all(&host, &pod, &[("proxy", &[]), ("web", &[])]);
    let asked = std::time::Instant::now();
    host.kill("proxy", "SIGTERM");
    host.wait_exit("proxy");
    assert!(asked.elapsed() >= 690 * MS, "{:?}", asked.elapsed());
    assert!(!host.record().has("web", "signal"));
}

#[test]
fn held_and_running_containers_end_with_a_killed_shim() {
    let host = Containerd::start();
    run_all(
        &host,
        &MESH,
        &[("proxy", &["--listen", "8080", "--ready-after", "1000s"])],
    );
    let mut web = host.spawn_run(&MESH.witness("web", &[]));
    eventually("the app is created", PATIENCE, || {
        host.status("web").is_some()
    });
    let shim = nix::unistd::Pid::from_raw(host.shim("web").pid as i32);
    nix::sys::signal::kill(shim, nix::sys::signal::Signal::SIGKILL).expect("kill the shim");
    assert_eq!(host.wait_exit("proxy"), 137);
    eventually("nothing remains", PATIENCE, || host.remains().is_empty());
    let _ = web.poll_running();
}
