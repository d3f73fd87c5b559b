//! The shim sets the size of the pod's cgroup to what the pod needs in its current phase.

use std::fs;
use std::ops::Range;
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{
    Containerd, PATIENCE, PodCgroup, annotate, await_value, eventually, on_v2, run,
};
use crate::pod::resources;

const MI: u64 = 1 << 20;

const UID: &str = "7c0f-11";
const POD: &str = "pod7c0f-11";

/// Limits that kubelet gave the pod: memory in bytes, and thousandths of a CPU.
const CEILING: (u64, u64) = (512 * MI, 2000);

/// Sum of the containers' CPU requests, in thousandths of a CPU.
const ASKED: u64 = 500;

/// Tolerance for memory that remains charged to the pod after its containers have exited.
const SOME: u64 = 24 * MI;

const LISTS: &[(&str, &str)] = &[
    ("usher/init", "setup"),
    ("usher/sidecars", "proxy"),
    ("usher/apps", "web"),
    ("usher/start-mode", "Hold"),
    ("usher/cgroup-sizing", "Phase"),
    ("usher/oom-score", "Off"),
    ("usher/termination-window", "100ms"),
    ("io.kubernetes.cri.sandbox-uid", UID),
];

/// Sets a container's memory limit in MiB, and its CPU quota and request in thousandths of a CPU.
fn limited(mebibytes: u64, millis: u64) -> impl FnOnce(&mut Value) {
    move |config| {
        annotate(config, LISTS);
        config["linux"]["resources"]["memory"] = json!({ "limit": mebibytes * MI });
        config["linux"]["resources"]["cpu"] = json!({
            "quota": millis * 100, "period": 100_000, "shares": millis * 1024 / 1000,
        });
    }
}

fn given<'host>(host: &'host Containerd, name: &str) -> PodCgroup<'host> {
    let pod = PodCgroup::new(host, name);
    pod.limit_memory(CEILING.0);
    pod.limit_cpu(CEILING.1);
    pod.write("cpu.shares", "cpu.weight", &weight(ASKED));
    pod
}

/// A pod with a sidecar and an app that run. Its init container has exited.
#[track_caller]
fn running(host: &Containerd) -> PodCgroup<'_> {
    let pod = given(host, POD);
    make(host, "go");
    pod.run("setup", &["/bin/sh", "-c", &until("go")], limited(96, 100));
    pod.run("proxy", &witness("proxy"), limited(64, 250));
    pod.run("web", &["/bin/witness", "web"], limited(48, 150));
    host.await_event("web", "start");
    pod
}

/// A shell command that waits until the test makes a file.
fn until(file: &str) -> String {
    format!("until test -e /shared/{file}; do sleep 0.05; done")
}

fn make(host: &Containerd, file: &str) {
    fs::write(host.shared_dir().join(file), "").expect("the sign");
}

fn witness(name: &'static str) -> [&'static str; 3] {
    ["/bin/witness", name, "--ignore-term"]
}

#[track_caller]
fn await_memory(pod: &PodCgroup<'_>, mebibytes: u64) {
    let expected: Range<u64> = mebibytes * MI..mebibytes * MI + SOME;
    let is_in = || {
        pod.memory_limit()
            .is_some_and(|limit| expected.contains(&limit))
    };
    let reached = crate::harness::poll(PATIENCE, || is_in().then_some(()));
    assert!(
        reached.is_some(),
        "memory is {:?}, not in {expected:?}",
        pod.memory_limit()
    );
}

fn shares(pod: &PodCgroup<'_>) -> String {
    pod.read("cpu.shares", "cpu.weight")
}

/// The weight (v2) or shares (v1) that kubelet computes from a CPU request.
fn weight(millis: u64) -> String {
    let shares = millis * 1024 / 1000;
    let weight = 1 + (shares - 2) * 9999 / 262_142;
    if on_v2() { weight } else { shares }.to_string()
}

#[test]
fn each_phase_has_its_size_and_the_end_restores_the_original() {
    let host = Containerd::start();
    let pod = given(&host, POD);
    let weight_before = shares(&pod);
    pod.run("setup", &["/bin/sh", "-c", &until("go")], limited(96, 100));
    await_value("the quota", &Some(100), || pod.cpu_limit());
    await_memory(&pod, 96);
    // The quota of each of these containers is larger than the pod's current quota. With cgroup v1
    // the kernel would refuse such a container.
    pod.run("proxy", &witness("proxy"), limited(64, 250));
    pod.run("web", &["/bin/witness", "web"], limited(48, 150));
    // With cgroup v1 the kernel refuses a quota of the pod that is smaller than a container's
    // quota.
    let quota = if on_v2() { 100 } else { 250 };
    await_value("the quota", &Some(quota), || pod.cpu_limit());
    // The shim counts 8 MiB for each of the two held containers.
    await_memory(&pod, 96 + 16);
    await_value("the weight", &weight(100), || shares(&pod));
    make(&host, "go");
    host.await_event("web", "start");
    await_value("the quota", &Some(400), || pod.cpu_limit());
    await_memory(&pod, 64 + 48);
    await_value("the weight", &weight(400), || shares(&pod));
    host.kill("proxy", "SIGTERM");
    host.kill("web", "SIGTERM");
    host.wait_exit("web");
    await_value("the quota", &Some(250), || pod.cpu_limit());
    await_memory(&pod, 64);
    host.kill("proxy", "SIGKILL");
    host.wait_exit("proxy");
    await_value(
        "all",
        &(Some(CEILING.0), Some(CEILING.1), weight_before),
        || (pod.memory_limit(), pod.cpu_limit(), shares(&pod)),
    );
}

#[test]
fn a_cgroup_not_named_after_the_pod_is_left_alone() {
    let host = Containerd::start();
    let pod = given(&host, "pod7c0f-12");
    let before = shares(&pod);
    pod.run("proxy", &witness("proxy"), limited(64, 250));
    make(&host, "go");
    pod.run("setup", &["/bin/sh", "-c", &until("go")], limited(96, 100));
    pod.run("web", &["/bin/witness", "web"], limited(48, 150));
    host.await_event("web", "start");
    let found = (pod.memory_limit(), pod.cpu_limit(), shares(&pod));
    assert_eq!(found, (Some(CEILING.0), Some(CEILING.1), before));
}

#[test]
fn a_limit_written_by_another_process_becomes_the_new_ceiling() {
    let host = Containerd::start();
    let pod = running(&host);
    await_memory(&pod, 64 + 48);
    await_value("the quota", &Some(400), || pod.cpu_limit());
    // The pod gets more memory and less CPU than before.
    pod.limit_memory(700 * MI);
    pod.limit_cpu(300);
    // When a container gets an Update, the shim reads the pod's limits again. The Update sets the
    // container's memory limit higher than the pod's current limit.
    let more = json!({ "memory": { "limit": 100 * MI } }).to_string();
    host.task_api("web")
        .update(&resources("web", &more))
        .expect("Update");
    await_memory(&pod, 64 + 100);
    assert_eq!(pod.cpu_limit(), Some(300));
    for id in ["proxy", "web"] {
        host.kill(id, "SIGKILL");
        host.wait_exit(id);
    }
    await_value("all", &(Some(700 * MI), Some(300)), || {
        (pod.memory_limit(), pod.cpu_limit())
    });
}

#[test]
fn an_update_of_a_container_resizes_its_pod() {
    let host = Containerd::start();
    let pod = running(&host);
    await_value("the quota", &Some(400), || pod.cpu_limit());
    // One container gets a larger quota than its pod has now.
    let update = |millis: u64| {
        let cpu = json!({ "quota": millis * 100, "period": 100_000, "shares": millis });
        let json = json!({ "cpu": cpu }).to_string();
        let updated = host.task_api("web").update(&resources("web", &json));
        updated.expect("Update");
    };
    update(600);
    await_value("the quota", &Some(850), || pod.cpu_limit());
    update(50);
    await_value("the quota", &Some(300), || pod.cpu_limit());
}

#[test]
fn a_pod_resized_as_a_whole_keeps_its_weight() {
    let host = Containerd::start();
    let pod = running(&host);
    await_value("the weight", &weight(400), || shares(&pod));
    // kubelet sets the pod's weight, and then sets the CPU requests of the containers to zero.
    pod.write("cpu.shares", "cpu.weight", &weight(900));
    for name in ["proxy", "web"] {
        let nothing = json!({ "cpu": { "shares": 2 } }).to_string();
        let updated = host.task_api(name).update(&resources(name, &nothing));
        updated.expect("Update");
        assert_eq!(shares(&pod), weight(900), "after the Update of {name}");
    }
}

#[test]
fn the_limit_never_drops_below_used_memory() {
    let host = Containerd::start();
    let pod = given(&host, POD);
    make(&host, "go");
    pod.run("setup", &["/bin/sh", "-c", &until("go")], limited(96, 100));
    // The program writes a file in memory. The file fills nearly the whole memory limit.
    let fill = format!(
        "trap '' TERM; head -c {} /dev/zero > /dev/shm/file; touch /shared/full; {}; \
         rm /dev/shm/file; touch /shared/empty; sleep 1000",
        62 * MI,
        until("free")
    );
    pod.run("proxy", &["/bin/sh", "-c", &fill], |config| {
        limited(66, 250)(config);
        let mounts = config["mounts"].as_array_mut().expect("mounts");
        let shm = mounts
            .iter_mut()
            .find(|mount| mount["destination"] == "/dev/shm");
        shm.expect("/dev/shm")["options"] = json!(["nosuid", "noexec", "mode=1777", "size=70m"]);
    });
    pod.run("web", &["/bin/witness", "web"], limited(48, 150));
    host.await_event("web", "start");
    let shared = host.shared_dir().to_owned();
    eventually("the memory is used", PATIENCE, || {
        shared.join("full").exists()
    });
    assert!(pod.memory_usage() > 62 * MI);
    await_memory(&pod, 66 + 48);
    host.kill("proxy", "SIGTERM");
    host.kill("web", "SIGTERM");
    host.wait_exit("web");
    // Once the CPU quota is 250, the shim has sized the pod for its sidecar alone.
    await_value("the quota", &Some(250), || pod.cpu_limit());
    assert!(pod.memory_limit() >= Some((66 + 48) * MI));
    make(&host, "free");
    eventually("the memory is free again", PATIENCE, || {
        shared.join("empty").exists()
    });
    await_memory(&pod, 66);
    assert!(!host.topics("proxy").contains(&"/tasks/oom".to_owned()));
}

#[test]
fn memory_left_by_ended_containers_is_added_to_the_limit() {
    let host = Containerd::start();
    let pod = given(&host, POD);
    let volume = tempfile::tempdir_in("/dev/shm").expect("a volume in memory");
    let fill = format!("head -c {} /dev/zero > /volume/file", 60 * MI);
    pod.run("setup", &["/bin/sh", "-c", &fill], |config| {
        limited(96, 100)(config);
        let mount = json!({
            "destination": "/volume", "type": "bind", "source": volume.path(),
            "options": ["rbind", "rw"],
        });
        let mounts = config["mounts"].as_array_mut().expect("mounts");
        mounts.push(mount);
    });
    pod.run("proxy", &witness("proxy"), limited(40, 250));
    pod.run("web", &["/bin/witness", "web"], limited(20, 150));
    host.await_event("web", "start");
    // The shim reads how much memory the pod uses, and then how much each container uses. A page
    // that is charged in between may be missing in the sum.
    await_memory(&pod, 40 + 20 + 59);
}

#[test]
fn the_size_is_restored_after_the_shim_dies() {
    let host = Containerd::start();
    let pod = given(&host, POD);
    pod.run("setup", &["/bin/sh", "-c", &until("go")], limited(96, 100));
    await_memory(&pod, 96);
    let [shim] = host.shims()[..] else {
        panic!("one shim, not {:?}", host.shims())
    };
    let shim = nix::unistd::Pid::from_raw(i32::try_from(shim).expect("a process id"));
    nix::sys::signal::kill(shim, nix::sys::signal::Signal::SIGKILL).expect("kill");
    await_value("all", &(Some(CEILING.0), Some(CEILING.1)), || {
        (pod.memory_limit(), pod.cpu_limit())
    });
}

fn systemctl(args: &[&str]) -> String {
    let mut systemctl = Command::new("systemctl");
    systemctl.args(args);
    let finished = run(systemctl, PATIENCE);
    assert!(finished.ok(), "systemctl {args:?}: {}", finished.err());
    finished.out()
}

#[test]
#[ignore = "systemd is not the first process: runs in the guest"]
fn systemd_does_not_undo_the_size_of_a_slice() {
    keeps_its_size_under_systemd(|_, _| {}, None);
}

/// systemd keeps a quota in hundredths of a CPU. kubelet writes a pod's exact quota into the cgroup
/// after it has told systemd.
#[test]
#[ignore = "systemd is not the first process: runs in the guest"]
fn a_quota_that_systemd_rounds_is_not_taken_for_a_resize() {
    let limit = |pod: &PodCgroup<'_>, unit: &str| {
        systemctl(&["set-property", "--runtime", unit, "CPUQuota=151%"]);
        pod.limit_cpu(1505);
    };
    keeps_its_size_under_systemd(limit, Some(1510));
}

/// Runs a pod in a slice that systemd has made. `limit` sets the slice's original limits. At the
/// end, the slice's CPU limit must be `original`, in thousandths of a CPU.
#[track_caller]
fn keeps_its_size_under_systemd(limit: impl Fn(&PodCgroup<'_>, &str), original: Option<u64>) {
    let host = Containerd::start();
    let name = host.namespace.replace('-', "_");
    let unit = format!("{name}-pod7c0f_11.slice");
    systemctl(&["start", &unit]);
    let pod = PodCgroup::at(&host, &format!("/{name}.slice/{unit}"));
    limit(&pod, &unit);
    let in_scope = |id: &'static str| {
        let path = format!("{unit}:{name}:{id}");
        move |config: &mut Value| {
            limited(96, 101)(config);
            // The limit of all containers together, in microseconds.
            annotate(
                config,
                &[
                    ("io.kubernetes.cri.sandbox-cpu-quota", "150500"),
                    ("io.kubernetes.cri.sandbox-cpu-period", "100000"),
                ],
            );
            config["linux"]["cgroupsPath"] = json!(path);
        }
    };
    pod.run("setup", &["/bin/sh", "-c", &until("go")], in_scope("setup"));
    await_value("the quota", &Some(110), || pod.cpu_limit());
    await_memory(&pod, 96);
    let known = || systemctl(&["show", "--property=CPUQuotaPerSecUSec", &unit]);
    await_value(
        "systemd's quota",
        &"CPUQuotaPerSecUSec=110ms\n".to_owned(),
        known,
    );
    systemctl(&["daemon-reload"]);
    assert_eq!(pod.cpu_limit(), Some(110));
    await_memory(&pod, 96);
    // When the last container has exited, the pod's slice gets its original size back.
    make(&host, "go");
    await_value("all", &(None, original), || {
        (pod.memory_limit(), pod.cpu_limit())
    });
    let told = match original {
        None => "infinity".to_owned(),
        Some(millis) => format!("{:.6}s", millis as f64 / 1000.0),
    };
    let told = format!("CPUQuotaPerSecUSec={told}\n");
    await_value("systemd's quota", &told, known);
    host.delete_all();
    systemctl(&["stop", &unit]);
}
