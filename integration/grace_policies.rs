//! The five grace policies, with a grace period of eight seconds, in a pod whose containers all
//! ignore SIGTERM. Also the settings that extend the grace period. Lower bounds of times are
//! strict, upper bounds allow for slow machines.

use std::time::{Duration, Instant};

use crate::harness::{Containerd, PATIENCE, Record, Stopped, times};
use crate::pod::Pod;

const ALL: [&str; 4] = ["proxy", "web", "before", "after"];
const UNRESPONSIVE: &[&str] = &["--ignore-term"];

const MS: Duration = Duration::from_millis(1);

macro_rules! pod {
    ($policy:literal) => {
        Pod(&[
            ("usher/sidecars", "proxy"),
            ("usher/pre-exit", "before"),
            ("usher/post-exit", "after"),
            ("usher/grace-period", "8s"),
            ("usher/grace-policy", $policy),
            // Even on a slow machine the second stop request arrives within this time, and so
            // begins the termination.
            ("usher/termination-window", "20s"),
        ])
    };
}

/// Runs a pod whose containers all ignore SIGTERM.
#[track_caller]
fn start(pod: &Pod) -> Containerd {
    let host = Containerd::start();
    for name in ALL {
        host.run(&pod.witness(name, UNRESPONSIVE));
    }
    host.await_event("web", "start");
    host
}

/// Stops a pod as kubelet does, but never sends SIGKILL. The containers ignore SIGTERM. Returns the
/// containers' record and the duration of the termination.
#[track_caller]
fn stop(pod: &Pod) -> (Record, Duration) {
    let host = start(pod);
    let asked = Instant::now();
    host.ask_all(&ALL, Duration::from_secs(8));
    // Each wait has its own timeout. The waits are in the order of the exits, so that each timeout
    // has to cover only one step of the termination.
    for name in ["before", "web", "after", "proxy"] {
        let code = host.wait_exit(name);
        assert_eq!(code, if name == "web" { 137 } else { 0 }, "{name}");
    }
    (host.record(), asked.elapsed())
}

/// Checks the duration of a termination. The lower bound is strict; the upper bound allows for slow
/// machines.
#[track_caller]
fn assert_took(took: Duration, seconds: u64) {
    let expected = Duration::from_secs(seconds);
    assert!(took + 100 * MS >= expected, "{took:?} of {expected:?}");
    assert!(took < expected + PATIENCE, "{took:?} of {expected:?}");
}

#[test]
fn under_shared_the_first_step_may_use_the_whole_grace_period() {
    let (record, took) = stop(&pod!("Shared"));
    assert_took(took, 10);
    assert!(
        record.between(("before", "start"), ("before", "signal")) >= 6_000 * MS,
        "{record}"
    );
    assert!(!record.has("after", "start"), "{record}");
    assert!(
        record.has("web", "signal") && record.has("proxy", "signal"),
        "{record}"
    );
}

#[test]
fn under_reserve_each_later_step_has_two_seconds_of_the_grace_period() {
    let (record, took) = stop(&pod!("Reserve"));
    // The first step, `before`, has two of the eight seconds. The policy reserves the other six for
    // the three steps `web`, `after` and `proxy`.
    assert_took(took, 8);
    record.assert_before(("before", "start"), ("web", "signal"));
    record.assert_before(("web", "signal"), ("after", "start"));
    record.assert_before(("after", "start"), ("proxy", "signal"));
    assert!(
        record.between(("web", "signal"), ("after", "start")) >= 1_000 * MS,
        "{record}"
    );
}

#[test]
fn under_overrun_each_later_step_has_two_seconds_beyond_the_grace_period() {
    let (record, took) = stop(&pod!("Overrun"));
    assert_took(took, 14);
    assert!(
        record.between(("before", "start"), ("web", "signal")) >= 5_000 * MS,
        "{record}"
    );
    record.assert_before(("web", "signal"), ("after", "start"));
    record.assert_before(("after", "start"), ("proxy", "signal"));
}

#[test]
fn under_skip_hooks_no_defer_runs_when_time_is_short() {
    let (record, took) = stop(&pod!("SkipHooks"));
    assert_took(took, 12);
    assert!(!record.has("after", "start"), "{record}");
    record.assert_before(("web", "signal"), ("proxy", "signal"));
}

#[test]
fn under_strict_containers_without_time_left_are_killed() {
    let (record, took) = stop(&pod!("Strict"));
    assert_took(took, 8);
    assert!(
        !record.has("web", "signal") && !record.has("proxy", "signal"),
        "{record}"
    );
    assert!(!record.has("after", "start"), "{record}");
}

/// Ends a pod as kubelet does. All of the pod's containers ignore SIGTERM.
#[track_caller]
fn end(pod: &Pod, grace: Duration) -> (Vec<Stopped>, Record) {
    let host = start(pod);
    let stopped = host.end_pod(&ALL, grace);
    (stopped, host.record())
}

#[test]
fn longer_policies_withhold_answers_so_that_no_container_is_killed_early() {
    let (stopped, record) = end(&pod!("Overrun"), Duration::from_secs(8));
    for stop in &stopped {
        assert!(stop.answered >= 5_000 * MS, "{stop:?}");
    }
    // Although all containers ignore SIGTERM, each termination step began: each container was
    // started or got its stop signal.
    record.assert_before(("before", "start"), ("web", "signal"));
    record.assert_before(("web", "signal"), ("after", "start"));
    record.assert_before(("after", "start"), ("proxy", "signal"));
}

#[test]
fn under_shared_kubelet_is_answered_earlier_than_under_the_other_policies() {
    let (stopped, record) = end(&pod!("Shared"), Duration::from_secs(8));
    for stop in &stopped {
        assert!(stop.answered < 6_000 * MS, "{stop:?}");
    }
    assert!(record.has("web", "signal"), "{record}");
}

#[test]
fn a_grace_period_of_its_own_limits_the_stop_of_one_container() {
    let pod = Pod(&[
        ("usher/sidecars", "proxy"),
        ("grace-period.usher/web", "3s"),
        ("usher/grace-period", "60s"),
        ("usher/termination-window", "20s"),
    ]);
    let host = Containerd::start();
    host.run(&pod.witness("proxy", &[]));
    host.run(&pod.witness("web", UNRESPONSIVE));
    host.await_event("web", "start");
    let stopped = host.end_pod(&["proxy", "web"], Duration::from_secs(60));
    let codes: Vec<_> = stopped
        .iter()
        .map(|stop| (stop.code, stop.killed))
        .collect();
    assert_eq!(codes, [(0, false), (137, false)], "{}", host.record());
    assert!(
        host.record()
            .between(("web", "signal"), ("proxy", "signal"))
            >= 1_000 * MS
    );
}

#[test]
fn the_grace_period_is_taken_from_the_callers_deadline() {
    let pod = Pod(&[
        ("usher/sidecars", "proxy"),
        ("usher/grace-period", "60s"),
        ("usher/termination-window", "20s"),
    ]);
    let host = Containerd::start();
    host.run(&pod.witness("proxy", &[]));
    host.run(&pod.witness("web", UNRESPONSIVE));
    host.await_event("web", "start");
    let stopped = host.end_pod(&["proxy", "web"], Duration::from_secs(4));
    assert_eq!(stopped[0].code, 0, "{stopped:?}");
    let record = host.record();
    // At the end of the grace period the proxy gets its signal, although the app still runs.
    assert!(record.has("proxy", "signal"), "{record}");
}

#[test]
fn an_extension_lets_a_running_defer_exceed_the_grace_period_and_withholds_the_answers() {
    let pod = Pod(&[
        ("usher/sidecars", "proxy"),
        ("usher/pre-exit", "before"),
        ("usher/grace-period", "3s"),
        (
            "usher/grace-extension",
            r#"{"intervalSeconds":5,"count":20}"#,
        ),
        ("usher/termination-window", "20s"),
    ]);
    let host = Containerd::start();
    host.run(&pod.witness("proxy", &[]));
    host.run(&pod.witness("web", &[]));
    // If `USHER_TEST_LONG` is `1`, the defer runs for nearly the longest time for which the shim
    // can delay an answer.
    let work = times(9, 95);
    host.run(&pod.witness("before", &["--run-for", &format!("{work}s")]));
    host.await_event("web", "start");
    let stopped = host.end_pod(&["proxy", "web", "before"], Duration::from_secs(3));
    for stop in &stopped {
        assert!(
            !stop.killed && stop.code == 0,
            "{stop:?}\n{}",
            host.record()
        );
        let least = Duration::from_secs(work as u64 - 1);
        assert!(stop.answered >= least, "{stop:?}");
    }
    let record = host.record();
    assert!(!record.has("before", "signal"), "{record}");
    record.assert_before(("before", "exit"), ("web", "signal"));
    record.assert_before(("web", "exit"), ("proxy", "signal"));
}

#[test]
fn an_extension_by_probe_lets_a_defer_run_while_its_probe_succeeds() {
    let pod = Pod(&[
        ("usher/sidecars", "proxy"),
        ("usher/pre-exit", "before"),
        ("usher/grace-period", "3s"),
        ("usher/grace-extension", r#"{"probe":true}"#),
        (
            "liveness-probe.usher/before",
            r#"{"exec":{"command":["/bin/test","!","-e","/shared/unwell"]},"periodSeconds":1,"timeoutSeconds":15}"#,
        ),
        ("usher/termination-window", "20s"),
    ]);
    let host = Containerd::start();
    host.run(&pod.witness("proxy", &[]));
    host.run(&pod.witness("web", &[]));
    host.run(&pod.witness("before", UNRESPONSIVE));
    host.await_event("web", "start");
    let ids = ["proxy", "web", "before"];
    let calls: Vec<_> = ids
        .iter()
        .map(|id| {
            let (id, api) = (
                (*id).to_owned(),
                host.task_api(id).deadline(Duration::from_secs(123)),
            );
            std::thread::spawn(move || (api.kill(&id, "", 15, false), Instant::now()))
        })
        .collect();
    host.await_event("before", "start");
    std::thread::sleep(Duration::from_secs(7));
    // Long after its grace period the defer still runs, and no stop request has been answered.
    assert!(calls.iter().all(|call| !call.is_finished()));
    assert!(!host.record().has("before", "signal"), "{}", host.record());
    let unwell = Instant::now();
    std::fs::write(host.shared_dir().join("unwell"), "").expect("a file");
    for call in calls {
        let (answer, at) = call.join().expect("a call");
        assert!(answer.is_ok() && at >= unwell, "{answer:?}");
    }
    for id in ids {
        assert_eq!(host.wait_exit(id), 0, "{id}");
    }
    let record = host.record();
    record.assert_before(("before", "signal"), ("web", "signal"));
    record.assert_before(("web", "exit"), ("proxy", "signal"));
}

#[test]
fn a_caller_that_vanishes_before_its_answer_changes_nothing() {
    let pod = Pod(&[
        ("usher/sidecars", "proxy"),
        ("usher/pre-exit", "before"),
        ("usher/grace-period", "30s"),
        ("usher/termination-window", "20s"),
        ("usher/grace-policy", "Overrun"),
    ]);
    let host = Containerd::start();
    host.run(&pod.witness("proxy", &[]));
    host.run(&pod.witness("web", &[]));
    host.run(&pod.witness("before", &["--run-for", "6s"]));
    host.await_event("web", "start");
    let calls = ["proxy", "web", "before"].map(|id| {
        let request = containerd_shim_protos::api::KillRequest {
            id: id.to_owned(),
            signal: 15,
            ..Default::default()
        };
        let api = host.task_api(id).deadline(Duration::from_secs(150));
        std::thread::spawn(move || api.call_and_vanish("Kill", &request, 3_000 * MS))
    });
    for call in calls {
        call.join().expect("a call");
    }
    for id in ["before", "web", "proxy"] {
        assert_eq!(host.wait_exit(id), 0, "{id}");
    }
    let record = host.record();
    record.assert_before(("before", "exit"), ("web", "signal"));
    record.assert_before(("web", "exit"), ("proxy", "signal"));
}
