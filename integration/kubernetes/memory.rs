//! Processes that the kernel or kubelet kills when a pod or the node runs out of memory. Also
//! kubelet's memory settings other than limits. Most cases need cgroup v2. They also need
//! privileges that root has only on a separate node.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::cgroups::{read, read_of_container, reload_systemd};
use crate::cluster::PATIENCE;
use crate::harness::{Finished, run};
use crate::pod::{Case, Pod, condition, restarts, script, status_of, with, witness};

/// A shell command that makes `tail` keep one line of this many mebibytes in memory. The command
/// runs `then` once `tail` has read the line.
fn taking(mebibytes: u64, then: &str) -> String {
    let bytes = mebibytes << 20;
    format!("{{ head -c {bytes} /dev/zero; {then}; exec sleep 100000; }} | tail >/dev/null")
}

fn asks_for(container: Value, mebibytes: u64) -> Value {
    let requests = json!({ "memory": format!("{mebibytes}Mi") });
    with(container, json!({ "resources": { "requests": requests } }))
}

/// A pod whose sidecar requests little memory and uses much, and whose app requests much. With
/// kubelet's OOM scores, the kernel would kill the sidecar first. usher does not change the limits
/// of the pod's cgroup. `of_sidecar` is the sidecar's memory in MiB, and `app` is the app's script.
fn pod(of_sidecar: u64, app: &str) -> Pod {
    let proxy = format!(
        "witness mark proxy start; {}",
        taking(of_sidecar, "touch /shared/ready-proxy")
    );
    Pod::new("pod")
        .annotation("usher/sidecars", "proxy")
        .annotation("usher/apps", "app")
        .annotation("usher/cgroup-sizing", "Off")
        .probed("proxy")
        .container(asks_for(script("proxy", &proxy), 16))
        .container(asks_for(script("app", app), 1200))
        .spec("terminationGracePeriodSeconds", 2)
}

/// The distinct OOM scores of all processes of a container.
fn scores(case: &Case, container: &str) -> BTreeSet<i64> {
    // The script itself runs in an exec. The shim sets the OOM score of an exec's process only
    // after the OCI runtime has exited, so the script waits. The script ignores errors, because
    // processes may exit while their scores are read.
    let text = "sleep 3; cat /proc/[0-9]*/oom_score_adj 2>/dev/null; true";
    let container = format!("--container={container}");
    let said = case.kubectl(&["exec", "pod", &container, "--", "sh", "-c", text]);
    let numbers = said.split_whitespace().map(|text| text.parse());
    numbers.collect::<Result<_, _>>().expect("scores")
}

/// Waits until the app was killed for lack of memory and runs again. Checks that no other container
/// was killed.
fn assert_only_the_app_was_killed(case: &Case) {
    let pod = case.await_pod("pod", "seen to have lost its app", |pod| {
        restarts(pod, "app") == 1
    });
    let last = &status_of(&pod, "app")["lastState"]["terminated"];
    assert_eq!(last["reason"], "OOMKilled", "{last}");
    assert_eq!(last["exitCode"], 137, "{last}");
    let record = case.await_record("app has started again", |record| {
        record.all("app", "start").count() == 2
    });
    assert_eq!(record.all("proxy", "start").count(), 1, "{record}");
    assert!(!record.has("proxy", "signal"), "{record}");
}

/// A script that runs twice. In its first run, it waits until the test makes a file, and then
/// allocates memory without end. In its second run, it sleeps.
const EATS_ONCE: &str = "witness mark app start
    test -e /shared/eats && exec sleep 100000
    until test -e /shared/go; do sleep 0.2; done
    touch /shared/eats; tail /dev/zero; witness mark app survives; exec sleep 100000";

/// The pod has a memory limit, but its containers have none. So if the pod reaches its limit, the
/// kernel may kill any process of the pod.
pub fn a_sidecar_is_not_the_first_when_its_pods_memory_runs_out(case: &Case) {
    let resources = json!({ "limits": { "memory": "1300Mi" } });
    case.create(&pod(500, EATS_ONCE).spec("resources", resources));
    case.await_event("app", "start");
    let of_app = scores(case, "app");
    assert_eq!(of_app.len(), 1, "{of_app:?}");
    assert!(of_app.iter().all(|score| *score < 800), "{of_app:?}");
    assert_eq!(scores(case, "proxy"), of_app);
    case.touch("go");
    assert_only_the_app_was_killed(case);
    // kubelet tells the kernel to kill all processes of a container together (`memory.oom.group`).
    assert!(!case.record().has("app", "survives"), "{}", case.record());
}

/// The kernel's sysrq interface makes the kernel choose a process of the whole node to kill, as
/// when the node runs out of memory.
pub fn a_sidecar_is_not_the_first_when_the_nodes_memory_runs_out(case: &Case) {
    let app = format!(
        "witness mark app start; test -e /shared/eats && exec sleep 100000; touch /shared/eats
        {}",
        taking(600, "witness mark app full")
    );
    case.create(&pod(400, &app));
    case.await_event("app", "full");
    assert_eq!(scores(case, "proxy"), scores(case, "app"));
    let choose = ["bash", "-c", "echo f >/proc/sysrq-trigger"];
    let finished = run(case.cluster.on_node(&choose), PATIENCE);
    assert!(finished.ok(), "{}", finished.err());
    assert_only_the_app_was_killed(case);
}

/// kubelet gives a Guaranteed pod an OOM score below zero. The sidecar and its execs have this
/// score.
pub fn scores_of_a_guaranteed_pod_are_below_zero(case: &Case) {
    let limits = json!({ "cpu": "500m", "memory": "64Mi" });
    let limited = |container| with(container, json!({ "resources": { "limits": limits } }));
    let pod = Pod::new("pod")
        .annotation("usher/sidecars", "proxy")
        .annotation("usher/apps", "app")
        .probed("proxy")
        .container(limited(witness("proxy", &["--ready-after", "500ms"])))
        .container(limited(script("app", EATS_ONCE)))
        .spec("terminationGracePeriodSeconds", 2);
    case.create(&pod);
    case.await_event("app", "start");
    let pod = case.await_ready("pod");
    assert_eq!(pod["status"]["qosClass"], "Guaranteed");
    for container in ["proxy", "app"] {
        assert_eq!(scores(case, container), BTreeSet::from([-997]));
    }
    case.touch("go");
    assert_only_the_app_was_killed(case);
    assert_eq!(scores(case, "proxy"), BTreeSet::from([-997]));
}

/// Swap on the node. Removed on drop.
struct Swap<'a>(&'a Case<'a>);

const SWAP: &str = "/var/swap";

impl<'a> Swap<'a> {
    fn on(case: &'a Case<'a>) -> Self {
        let swap = Self(case);
        let make =
            "dd if=/dev/zero of=$0 bs=1M count=256 && chmod 600 $0 && mkswap $0 && swapon $0";
        let finished = swap.run(make);
        assert!(finished.ok(), "{}", finished.err());
        swap
    }

    fn run(&self, script: &str) -> Finished {
        let words = ["bash", "-c", script, SWAP];
        run(self.0.cluster.on_node(&words), PATIENCE)
    }
}

impl Drop for Swap<'_> {
    fn drop(&mut self) {
        let finished = self.run("swapoff $0 && rm $0");
        if !finished.ok() {
            eprintln!("the node keeps its swap: {}", finished.err());
        }
    }
}

/// Tests three features that do nothing by default: MemoryQoS (KEP-2570), LimitedSwap (KEP-2400)
/// and `singleProcessOOMKill`. kubelet's values in cgroups must remain when usher restarts a
/// container in place, and when usher changes the limits of the pod's cgroup.
pub fn the_memory_values_reported_by_kubelet_are_right(case: &Case) {
    let _swap = Swap::on(case);
    let _kubelet = case.cluster.with_kubelet(&json!({
        "featureGates": { "MemoryQoS": true },
        // Since 1.37, kubelet sets memory.high only with this setting. Before, 0.9 was the default.
        "memoryThrottlingFactor": 0.9,
        "memoryReservationPolicy": "TieredReservation",
        "memorySwap": { "swapBehavior": "LimitedSwap" },
        "singleProcessOOMKill": true,
    }));
    let amounts = |mebibytes: u64| json!({ "cpu": "500m", "memory": format!("{mebibytes}Mi") });
    let resources = json!({ "requests": amounts(64), "limits": amounts(128) });
    let of = |container| with(container, json!({ "resources": resources }));
    // The sidecar exits when the test makes a file, and usher restarts it in place.
    let proxy = "witness mark proxy start; touch /shared/ready-proxy
        until test -e /shared/ends && ! test -e /shared/ended; do sleep 0.2; done; touch /shared/ended";
    let app = "witness mark app start; until test -e /shared/go; do sleep 0.2; done
        tail /dev/zero; witness mark app survives; exec sleep 100000";
    // The container `clean-up` never runs together with the app. So the pod needs less than all of
    // its containers together, and usher changes the limits of its cgroup.
    let pod = Pod::new("pod")
        .annotation("usher/sidecars", "proxy")
        .annotation("usher/apps", "app")
        .annotation("usher/post-exit", "clean-up")
        .annotation("usher/restart-policy", "Never")
        .probed("proxy")
        .container(of(script("proxy", proxy)))
        .container(of(script("app", app)))
        .container(of(witness("clean-up", &["--run-for", "100ms"])))
        .spec("restartPolicy", "Never")
        .spec("terminationGracePeriodSeconds", 2);
    case.create(&pod);
    case.await_event("app", "start");
    let pod = case.await_ready("pod");
    let files = [
        "memory.min",
        "memory.low",
        "memory.high",
        "memory.max",
        "memory.swap.max",
        "memory.oom.group",
    ];
    let of_proxy = || files.map(|file| read_of_container(case, &pod, "proxy", file));
    let of_pod =
        || ["memory.min", "memory.low", "memory.high"].map(|file| read(case, &pod, "", file));
    let (first, pods) = (of_proxy(), of_pod());
    let number = |text: &str| text.parse::<u64>().unwrap_or_default();
    let [min, low, high, max, swap, group] = &first;
    // kubelet writes the memory request to memory.min or memory.low. The value in memory.high lies
    // between the request and the limit.
    assert!(number(min).max(number(low)) == 64 << 20, "{first:?}");
    assert!((64 << 20..128 << 20).contains(&number(high)), "{first:?}");
    assert_eq!(number(max), 128 << 20, "{first:?}");
    assert!(number(swap) > 0, "{first:?}");
    assert_eq!(group, "0", "{first:?}");
    case.touch("ends");
    case.await_record("proxy has started twice", |record| {
        record.all("proxy", "start").count() == 2
    });
    assert_eq!(of_proxy(), first);
    reload_systemd(case);
    assert_eq!((of_proxy(), of_pod()), (first, pods));
    // Only the process that allocated too much memory is killed.
    case.touch("go");
    case.await_event("app", "survives");
}

/// kubelet evicts a pod when memory is short. In this soft eviction the configured grace period
/// applies, so the pod ends in order. A hard eviction would give the pod one second.
pub fn a_pod_that_is_evicted_for_memory_ends_in_order(case: &Case) {
    let _kubelet = case.cluster.with_kubelet(&json!({
        "evictionSoft": { "memory.available": "2200Mi" },
        "evictionSoftGracePeriod": { "memory.available": "1s" },
        "evictionMaxPodGracePeriod": 120,
        "evictionPressureTransitionPeriod": "5s",
    }));
    let app = format!(
        "{} & exec witness app --stop-after 1s",
        taking(1000, "true")
    );
    let pod = Pod::new("pod")
        .annotation("usher/sidecars", "proxy")
        .annotation("usher/apps", "app")
        .container(witness("proxy", &["--stop-after", "300ms"]))
        .container(script("app", &app));
    case.create(&pod);
    let record = case.await_event("proxy", "exit");
    record.assert_before(("app", "exit"), ("proxy", "signal"));
    // All containers exit with 0. So kubelet may report the phase `Failed` or `Succeeded`
    // (https://github.com/kubernetes/kubernetes/issues/137992). In both cases, a condition names
    // the eviction.
    let pod = case.await_pod("pod", "at its end", |pod| {
        let phase = &pod["status"]["phase"];
        phase == "Failed" || phase == "Succeeded"
    });
    let reason = &condition(&pod, "DisruptionTarget")["reason"];
    assert_eq!(reason, "TerminationByKubelet", "{}", pod["status"]);
}
