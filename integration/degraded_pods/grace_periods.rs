//! Time that containers get under each grace policy if they ignore SIGTERM. The caller kills a
//! container one grace period after the shim has answered the container's stop request, so a late
//! answer gives the container more time.

use std::time::Duration;

use crate::harness::{Record, Stopped};

use super::kubelet::{Kubelet, WINDOW};

const MS: Duration = Duration::from_millis(1);
const ALL: [&str; 3] = ["proxy", "web", "before"];

/// Ends a pod whose containers all ignore SIGTERM. The defer of the pod runs for the whole grace
/// period.
#[track_caller]
fn end_unresponsive(
    annotations: &'static [(&'static str, &'static str)],
) -> (Vec<Stopped>, Record) {
    let pod = Kubelet::run_pod(annotations, 7);
    for name in ALL {
        pod.run(name, &["--ignore-term", "--beat", "50ms"]);
    }
    pod.host.await_event("web", "start");
    let stopped = pod.delete(&ALL);
    (stopped, pod.host.record())
}

/// Checks that each of these containers ran for at least one second after its signal. Checks also
/// that the shim delayed its answers to their stop requests, but less than under other policies.
#[track_caller]
fn assert_had_their_time(names: &[&str], (stopped, record): &(Vec<Stopped>, Record)) {
    for name in names {
        let told = record.at(name, "signal");
        let last = record.all(name, "beat").last().map_or(0, |beat| beat.at_ns);
        let had = Duration::from_nanos(last.saturating_sub(told));
        assert!(
            had >= 1_000 * MS,
            "{name} had {had:?}\n{stopped:?}\n{record}"
        );
    }
    for stop in stopped {
        let withheld = (1_500 * MS..6_000 * MS).contains(&stop.answered);
        assert!(withheld || !names.contains(&&*stop.id), "{stop:?}");
    }
}

macro_rules! unresponsive {
    ($policy:literal) => {
        &[
            ("usher/sidecars", "proxy"),
            ("usher/pre-exit", "before"),
            ("usher/grace-policy", $policy),
            WINDOW,
        ]
    };
}

#[test]
fn under_shared_a_container_signaled_at_the_deadline_has_two_seconds_before_its_caller_kills_it() {
    let ended = end_unresponsive(unresponsive!("Shared"));
    let record = &ended.1;
    // The app gets its signal only at the end of the grace period, because the defer runs until
    // then.
    let used = record.between(("before", "start"), ("web", "signal"));
    assert!(used >= 4_000 * MS, "{record}");
    assert_had_their_time(&ALL, &ended);
}

#[test]
fn under_reserve_each_later_step_has_two_seconds_before_its_caller_kills_it() {
    let ended = end_unresponsive(unresponsive!("Reserve"));
    let record = &ended.1;
    record.assert_before(("before", "signal"), ("web", "signal"));
    record.assert_before(("web", "signal"), ("proxy", "signal"));
    assert_had_their_time(&["web", "proxy"], &ended);
}

#[test]
fn a_sidecar_that_dies_while_its_app_drains_restarts() {
    const POD: &[(&str, &str)] = &[("usher/sidecars", "proxy"), WINDOW];
    let pod = Kubelet::run_pod(POD, 30);
    pod.run("proxy", &[]);
    pod.run("web", &["--stop-after", "5s"]);
    pod.host.await_event("web", "start");
    let stopped = std::thread::scope(|scope| {
        let stops = scope.spawn(|| pod.delete(&["proxy", "web"]));
        pod.host.await_event("web", "signal");
        pod.crash("proxy");
        stops.join().expect("the pod has ended")
    });
    let record = pod.host.record();
    let again = record.all("proxy", "start").nth(1);
    let again = again.unwrap_or_else(|| panic!("{stopped:?}\n{record}"));
    assert!(again.at_ns < record.at("web", "exit"), "{record}");
    record.assert_before(("web", "exit"), ("proxy", "signal"));
    let well = |stop: &Stopped| !stop.killed && stop.code == 0;
    assert!(stopped.iter().all(well), "{stopped:?}");
}
