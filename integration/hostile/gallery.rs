//! Every hostile pod ends in time and costs its node little, whatever the policy; `scripts/hostile` prints
//! the figures of all under each.

use std::time::Duration;

use super::pods::{self, Container, Pod};
use super::runner::{POLICIES, Side, cpu_rate, dearest, play, play_all};
use crate::harness::{time_scale, times};

/// How long each lives before its end.
const LIFE: Duration = Duration::from_secs(3);

/// What is tried each time.
const FEW: [&str; 3] = ["fifo", "probes", "runtime hangs at everything"];

#[test]
fn hostile_pods_end_in_time_and_cost_their_node_little() {
    let is_long = times(0, 1) == 1;
    let mut pods = pods::all();
    pods.retain(|pod| is_long || FEW.contains(&pod.name));
    let sides = POLICIES.iter().cycle().map(Side::Ours);
    let plays: Vec<_> = pods.into_iter().zip(sides).collect();
    let outcomes = play_all(&plays, LIFE);
    let late: Vec<_> = outcomes.iter().filter(|o| !o.is_in_time()).collect();
    assert!(late.is_empty(), "{late:#?}");
    let rate = cpu_rate(&outcomes);
    let dearest = dearest(&outcomes).expect("a pod");
    let scale = f64::from(time_scale());
    assert!(rate < 0.1 * scale, "{rate}: {outcomes:#?}");
    // What all probes may take, and as much for all the rest.
    assert!(dearest.cpu_rate() < 0.2 * scale, "{dearest:#?}");
}

// === the measure ===

const BUSY: Pod = Pod {
    name: "busy",
    containers: &[Container::new(
        "web",
        &["/bin/sh", "-c", "while :; do :; done"],
    )],
    ..Pod::NEW
};

/// The same, and its caller has a program executed in it again and again.
const BUSY_AND_ASKED: Pod = Pod {
    name: "busy and asked",
    meanwhile: |stage| {
        for _ in 0..10 {
            stage.host.exec("web", &["/bin/true"]);
        }
    },
    ..BUSY
};

#[test]
fn what_a_pod_takes_in_its_cgroup_is_not_counted_and_what_is_taken_for_it_beside_is() {
    let [busy, asked] = [&BUSY, &BUSY_AND_ASKED].map(|pod| {
        let outcome = play(pod, Side::Reference, LIFE);
        assert!(outcome.problem.is_none(), "{outcome:?}");
        outcome
    });
    // A quarter of a CPU for more than six seconds is six times that.
    assert!(busy.cpu < Duration::from_millis(250), "{busy:?}");
    assert!(
        asked.cpu > busy.cpu + Duration::from_millis(100),
        "{asked:?} {busy:?}"
    );
}

#[test]
fn an_end_is_measured_from_the_first_request_to_the_last_process() {
    // Nothing of it ends before its grace period of three seconds is over.
    let outcome = play(&BUSY, Side::Reference, Duration::ZERO);
    let at_least = Side::Reference.bound();
    assert!(outcome.has_ended && outcome.took >= at_least, "{outcome:?}");
    assert_eq!(outcome.overrun(), outcome.took - at_least);
}
