//! Resources of a pod: those that Kubernetes adds to the pod's spec, and the limits of the pod's
//! cgroup, which usher sets.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::cgroups::{properties, read, reload_systemd};
use crate::cluster::{Cluster, PATIENCE, pauseless};
use crate::harness::poll;
use crate::pod::{Case, Pod, ready_probe, restarts, status_of, with, witness};

const MI: u64 = 1 << 20;

/// Tolerance for memory that the shim adds to the limit of the pod's cgroup. One part is for memory
/// that the kernel charges to no container. Another part is for runc's processes in containers
/// whose programs do not run yet.
const SOME: u64 = 24 * MI;

/// Amounts of CPU and memory. `millis` is in thousandths of a CPU, `mebibytes` in MiB.
fn amounts(millis: u64, mebibytes: u64) -> Value {
    json!({ "cpu": format!("{millis}m"), "memory": format!("{mebibytes}Mi") })
}

fn limited(container: Value, millis: u64, mebibytes: u64) -> Value {
    let resources = json!({ "resources": { "limits": amounts(millis, mebibytes) } });
    with(container, resources)
}

fn memory(case: &Case, pod: &Value) -> u64 {
    let text = read(case, pod, "memory.limit_in_bytes", "memory.max");
    text.parse().unwrap_or(u64::MAX)
}

/// The pod's CPU limit, in thousandths of a CPU. The usual period of 100 ms is assumed.
fn millis(case: &Case, pod: &Value) -> u64 {
    let text = read(case, pod, "cpu.cfs_quota_us", "cpu.max");
    let quota = text.split(' ').next().and_then(|quota| quota.parse().ok());
    quota.map_or(u64::MAX, |quota: u64| quota / 100)
}

/// Waits until a pod's cgroup has these limits.
#[track_caller]
fn await_size(case: &Case, pod: &Value, cpu: u64, mebibytes: u64) {
    let is_so = || {
        let memory = memory(case, pod);
        let bytes = mebibytes * MI;
        (millis(case, pod) == cpu && (bytes..bytes + SOME).contains(&memory)).then_some(())
    };
    assert!(
        poll(PATIENCE, is_so).is_some(),
        "{} thousandths and {} bytes, not {cpu} and {mebibytes} MiB\n{}",
        millis(case, pod),
        memory(case, pod),
        case.diagnosis()
    );
}

/// KEP-753: "Validate that the pod overhead will be accounted for when scheduling a Pod with
/// sidecar container". The scheduler does this. In each phase of the pod, the limits of the pod's
/// cgroup must also include the overhead.
pub fn a_pods_overhead_is_kept(case: &Case) {
    runtime_class(case.cluster);
    let pod = Pod::new("pod")
        .annotation("usher/init", "init")
        .annotation("usher/sidecars", "proxy")
        .annotation("usher/apps", "app")
        .probed("proxy")
        .spec("runtimeClassName", CLASS);
    let init = crate::pod::script("init", "until test -e /shared/done; do sleep 0.1; done");
    let pod = pod
        .container(limited(init, 400, 96))
        .container(limited(witness("proxy", &[]), 150, 64))
        .container(limited(witness("app", &[]), 350, 48));
    case.create(&pod);
    let phase = |pod: &Value| pod["status"]["phase"] == "Running";
    let pod = case.await_pod("pod", "running", phase);
    assert_eq!(pod["spec"]["overhead"], amounts(OVERHEAD.0, OVERHEAD.1));
    // The pod needs the most CPU and memory while the proxy and the app run. From the start, the
    // cgroup has the limits for this phase.
    let cpu = 150 + 350 + OVERHEAD.0;
    await_size(case, &pod, cpu, 64 + 48 + OVERHEAD.1);
    case.touch("done");
    case.touch("ready-proxy");
    case.await_event("app", "start");
    await_size(case, &pod, cpu, 64 + 48 + OVERHEAD.1);
    case.await_ready("pod");
}

/// KEP-2837: a pod can have requests and limits of its own. The shim sees only those of the
/// containers. So an annotation keeps usher from changing the pod's cgroup. The cgroup must be the
/// same as that of a pod without usher.
pub fn a_pods_own_resources_are_kept(case: &Case) {
    let of_pod = json!({ "requests": amounts(400, 96), "limits": amounts(600, 160) });
    let container = |name| {
        let resources = json!({ "resources": { "requests": amounts(50, 16) } });
        with(witness(name, &[]), resources)
    };
    let pod = |name| {
        let containers = Pod::new(name).container(container("proxy"));
        containers
            .container(container("app"))
            .spec("resources", of_pod.clone())
    };
    case.create(&pod("plain"));
    let plain = case.await_ready("plain");
    let ushered = pod("pod").annotation("usher/sidecars", "proxy");
    case.create(&ushered.annotation("usher/cgroup-sizing", "Off"));
    let ushered = case.await_ready("pod");
    await_size(case, &ushered, 600, 160);
    for (v1, v2) in [
        ("cpu.shares", "cpu.weight"),
        ("cpu.cfs_quota_us", "cpu.max"),
        ("memory.limit_in_bytes", "memory.max"),
    ] {
        assert_eq!(read(case, &ushered, v1, v2), read(case, &plain, v1, v2));
    }
}

/// KEP-5419: kubelet resizes a pod that has resources of its own.
///
/// The pod `kept` has an annotation, so that usher does not change its cgroup. In the pod `sized`,
/// the limits of the containers add up to more than the pod's own limits at first, and to less
/// after the resize. containerd reports a resize only to the shim of a pod without a pause
/// container. Under a pause container, the shim adjusts the cgroup at the next event of the pod.
pub fn a_pods_own_resources_are_resized_in_place(case: &Case) {
    let of_pod = |millis, mebibytes| {
        let limits = amounts(millis, mebibytes);
        json!({ "requests": amounts(200, 96), "limits": limits })
    };
    let container = |name, millis, mebibytes| {
        let limits = amounts(millis, mebibytes);
        let resources = json!({ "requests": amounts(50, 16), "limits": limits });
        with(witness(name, &[]), json!({ "resources": resources }))
    };
    let pod = |name| {
        Pod::new(name)
            .annotation("usher/sidecars", "proxy")
            .annotation("usher/apps", "app")
            .container(container("proxy", 300, 80))
            .container(container("app", 400, 96))
            .spec("resources", of_pod(600, 160))
    };
    case.create(&pod("kept").annotation("usher/cgroup-sizing", "Off"));
    case.create(&pod("sized"));
    let pods = ["kept", "sized"].map(|name| case.await_ready(name));
    for (name, before) in ["kept", "sized"].into_iter().zip(&pods) {
        await_size(case, before, 600, 160);
        case.resize_pod(name, &of_pod(900, 256));
        // kubelet reads the limits in the status from the cgroup, in which usher may already have
        // set lower ones.
        let pod = case.await_pod(name, "resized", |pod| {
            let memory = pod["status"]["resources"]["limits"]["memory"].as_str();
            memory.is_some_and(|memory| memory != "160Mi")
        });
        for container in ["proxy", "app"] {
            assert_eq!(restarts(&pod, container), 0, "{}", case.diagnosis());
        }
    }
    let [kept, sized] = &pods;
    await_size(case, kept, 900, 256);
    if pauseless().is_some() {
        await_size(case, sized, 700, 176);
    }
    let record = case.record();
    assert!(
        !record.has("proxy", "signal") && !record.has("app", "signal"),
        "{record}"
    );
}

/// A pod whose init container exits before the sidecar and the app start. So the pod never needs
/// more than 500 thousandths of a CPU and 112 MiB. The limits of all three containers add up to 900
/// thousandths and 208 MiB.
fn sized() -> Pod {
    Pod::new("pod")
        .annotation("usher/init", "init")
        .annotation("usher/sidecars", "proxy")
        .annotation("usher/apps", "app")
        .container(limited(witness("init", &["--run-for", "500ms"]), 400, 96))
        .container(limited(witness("proxy", &[]), 150, 64))
        .container(limited(witness("app", &[]), 350, 48))
}

/// systemd made the pod's cgroup. When systemd reloads its configuration, it writes all values that
/// it knows into the cgroup again. usher's values must remain.
pub fn systemd_does_not_undo_a_pods_size(case: &Case) {
    case.create(&sized());
    let pod = case.await_ready("pod");
    await_size(case, &pod, 500, 112);
    let in_force = || {
        let memory = read(case, &pod, "memory.limit_in_bytes", "memory.max");
        let weight = read(case, &pod, "cpu.shares", "cpu.weight");
        (memory, weight)
    };
    let (memory, weight) = in_force();
    let expected = [
        ("CPUQuotaPerSecUSec", "500ms"),
        ("CPUWeight", &*weight),
        ("MemoryMax", &*memory),
    ];
    let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let said = || properties(case, &pod, "MemoryMax,CPUQuotaPerSecUSec,CPUWeight");
    let knows = || (said() == BTreeMap::from(expected.clone())).then_some(());
    assert!(
        poll(PATIENCE, knows).is_some(),
        "{:?}, not {expected:?}",
        said()
    );
    reload_systemd(case);
    await_size(case, &pod, 500, 112);
    assert_eq!(in_force(), (memory, weight));
}

/// KEP-1287: when a container is resized, the pod's cgroup is resized too.
pub fn a_pod_grows_and_shrinks_with_a_container(case: &Case) {
    case.create(&sized());
    let pod = case.await_ready("pod");
    await_size(case, &pod, 500, 112);
    for (millis, mebibytes) in [(250, 128), (150, 64)] {
        let resources =
            json!({ "limits": amounts(millis, mebibytes), "requests": amounts(millis, mebibytes) });
        case.resize("pod", "proxy", &resources);
        let memory = format!("{mebibytes}Mi");
        case.await_pod("pod", "resized", |pod| {
            status_of(pod, "proxy")["resources"]["limits"]["memory"] == *memory
        });
        await_size(case, &pod, 350 + millis, 48 + mebibytes);
    }
    let record = case.record();
    assert!(
        !record.has("proxy", "signal") && !record.has("app", "signal"),
        "{record}"
    );
}

const CLASS: &str = "usher-with-overhead";
const OVERHEAD: (u64, u64) = (100, 200);

fn runtime_class(cluster: &Cluster) {
    let overhead = json!({ "podFixed": amounts(OVERHEAD.0, OVERHEAD.1) });
    cluster.apply(&[json!({
        "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "usher",
        "metadata": { "name": CLASS }, "overhead": overhead,
    })]);
}

/// KEP-753: "Validate that LimitRanger will apply defaults and consider limits for the Pod with the
/// sidecar containers".
pub fn a_limit_ranges_defaults_apply(case: &Case) {
    case.cluster.apply(&[json!({
        "apiVersion": "v1", "kind": "LimitRange",
        "metadata": { "name": "range", "namespace": case.namespace },
        "spec": { "limits": [
            { "type": "Container", "default": amounts(200, 64), "defaultRequest": amounts(50, 32) },
            { "type": "Pod", "max": amounts(900, 300) },
        ] },
    })]);
    let pod = || {
        Pod::new("pod")
            .annotation("usher/sidecars", "proxy")
            .annotation("usher/apps", "app")
            .annotation("usher/post-exit", "clean-up")
            .annotation("startup-probe.usher/proxy", ready_probe("proxy"))
            .container(witness("proxy", &["--ready-after", "500ms"]))
            .container(witness("clean-up", &["--run-for", "500ms"]))
    };
    // The API server adds up the limits of all containers, even if they never run at the same time.
    let refused = case.try_create(&pod().container(limited(witness("app", &[]), 600, 64)));
    assert!(
        refused.err().contains("maximum cpu usage per Pod is 900m"),
        "{}",
        refused.err()
    );
    case.create(&pod().container(witness("app", &[])));
    let pod = case.await_ready("pod");
    for container in pod["spec"]["containers"].as_array().expect("containers") {
        assert_eq!(container["resources"]["limits"], amounts(200, 64));
        assert_eq!(container["resources"]["requests"], amounts(50, 32));
    }
    let record = case.await_event("app", "start");
    record.assert_before(("proxy", "ready"), ("app", "start"));
    await_size(case, &pod, 400, 128);
    case.delete("pod", &[]);
    let record = case.await_event("proxy", "exit");
    record.assert_before(("app", "exit"), ("clean-up", "start"));
    record.assert_before(("clean-up", "exit"), ("proxy", "signal"));
    case.await_gone("pod");
}
