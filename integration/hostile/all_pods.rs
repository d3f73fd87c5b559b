//! Each hostile pod ends in time and costs its node little CPU time, under any policy.
//! `scripts/hostile` prints the results of all pods and policies.

use std::time::Duration;

use super::pods::{self, Container, Pod};
use super::runner::{POLICIES, Side, costliest, cpu_rate, play, play_all};
use crate::harness::{time_scale, times};

/// Time for which each pod runs before it is ended.
const LIFE: Duration = Duration::from_secs(3);

/// The pods that a short run of the tests tries.
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
    let costliest = costliest(&outcomes).expect("a pod");
    let scale = f64::from(time_scale());
    assert!(rate < 0.1 * scale, "{rate}: {outcomes:#?}");
    // The probes of a pod may take a tenth of a CPU. Another tenth is allowed for everything else.
    assert!(costliest.cpu_rate() < 0.2 * scale, "{costliest:#?}");
}

const BUSY: Pod = Pod {
    name: "busy",
    containers: &[Container::new(
        "web",
        &["/bin/sh", "-c", "while :; do :; done"],
    )],
    ..Pod::NEW
};

/// The pod `BUSY`, in which the caller runs execs again and again.
const BUSY_WITH_EXECS: Pod = Pod {
    name: "busy with execs",
    meanwhile: |stage| {
        for _ in 0..10 {
            stage.host.exec("web", &["/bin/true"]);
        }
    },
    ..BUSY
};

#[test]
fn only_cpu_time_outside_of_the_pods_cgroup_is_counted() {
    let [busy, asked] = [&BUSY, &BUSY_WITH_EXECS].map(|pod| {
        let outcome = play(pod, Side::Reference, LIFE);
        assert!(outcome.problem.is_none(), "{outcome:?}");
        outcome
    });
    // The measured CPU time must not contain that of the pod's own processes. They use a quarter of
    // a CPU for more than six seconds, which is six times this limit.
    assert!(busy.cpu < Duration::from_millis(250), "{busy:?}");
    assert!(
        asked.cpu > busy.cpu + Duration::from_millis(100),
        "{asked:?} {busy:?}"
    );
}

#[test]
fn an_end_is_measured_from_the_first_request_to_the_last_process() {
    // All processes of the pod run until the grace period of three seconds is over.
    let outcome = play(&BUSY, Side::Reference, Duration::ZERO);
    let at_least = Side::Reference.bound();
    assert!(outcome.has_ended && outcome.took >= at_least, "{outcome:?}");
    assert_eq!(outcome.overrun(), outcome.took - at_least);
}
