//! The kernel does not kill a sidecar's processes first when memory runs out, however little memory
//! the sidecar requested.

use std::fs;

use serde_json::{Value, json};

use crate::harness::{
    Containerd, CtrEvent, PATIENCE, PodCgroup, Status, annotate, await_value, eventually,
    write_program,
};

/// A large OOM score, so that the kernel kills the container first. kubelet gives such a score to a
/// container that requests little memory.
const SMALL: i32 = 900;

const SLEEPER: &[&str] = &["/bin/sleep", "1000"];

/// A command that fills memory until the kernel kills a process: `tail` reads a line that never
/// ends. A file in `/dev/shm` takes a third of the memory. The kernel counts this file for no
/// process, so it may prefer to kill a process of another container.
const EATER: &[&str] = &[
    "/bin/sh",
    "-c",
    "head -c 16777216 /dev/zero > /dev/shm/file; exec tail /dev/zero",
];

/// Annotations of all containers of the pod. One of them switches off the sizing of the pod's
/// cgroup.
const POD: &[(&str, &str)] = &[("usher/sidecars", "proxy"), ("usher/cgroup-sizing", "Off")];

fn with_score(score: i32) -> impl FnOnce(&mut Value) {
    move |config| {
        annotate(config, POD);
        config["process"]["oomScoreAdj"] = json!(score);
    }
}

/// The distinct scores of all processes of a container.
fn scores(host: &Containerd, id: &str) -> Vec<i32> {
    let pids = host.pids(id).into_iter().map(|(pid, _)| pid);
    let read = |pid| fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).ok();
    let scores = pids.filter_map(read);
    let mut scores: Vec<i32> = scores.map(|text| text.trim().parse().unwrap()).collect();
    scores.sort_unstable();
    scores.dedup();
    scores
}

#[test]
fn a_sidecar_created_before_its_app_gets_the_apps_lower_score_while_the_app_runs() {
    let host = Containerd::start();
    let pod = PodCgroup::new(&host, "pod");
    pod.run("proxy", SLEEPER, with_score(SMALL));
    let exec = host.spawn_exec("proxy", "before", SLEEPER);
    eventually("both run", PATIENCE, || host.pids("proxy").len() == 2);
    assert_eq!(scores(&host, "proxy"), [SMALL]);
    pod.run("web", SLEEPER, with_score(300));
    await_value("the score", &vec![300], || scores(&host, "proxy"));
    // A process that starts after the score was lowered gets the lower score too.
    let later = host.spawn_exec("proxy", "later", SLEEPER);
    eventually("all run", PATIENCE, || host.pids("proxy").len() == 3);
    await_value("the score", &vec![300], || scores(&host, "proxy"));
    assert_eq!(scores(&host, "web"), [300]);
    host.kill("web", "SIGKILL");
    host.wait_exit("web");
    await_value("the score", &vec![SMALL], || scores(&host, "proxy"));
    host.kill("proxy", "SIGKILL");
    exec.finish(PATIENCE);
    later.finish(PATIENCE);
}

#[test]
fn a_sidecar_created_after_its_app_starts_with_the_lower_score() {
    let host = Containerd::start();
    let pod = PodCgroup::new(&host, "pod");
    pod.run("web", SLEEPER, with_score(300));
    pod.run("proxy", SLEEPER, with_score(SMALL));
    assert_eq!(scores(&host, "proxy"), [300]);
    // The shim has written the score into the bundle, so the container's processes never had
    // another score.
    let bundle = host
        .task_api("proxy")
        .state("proxy", "")
        .expect("State")
        .bundle;
    let config = fs::read_to_string(format!("{bundle}/config.json")).expect("its configuration");
    let config: Value = serde_json::from_str(&config).expect("JSON");
    assert_eq!(config["process"]["oomScoreAdj"], json!(300));
    assert_eq!(config["process"]["args"], json!(SLEEPER));
}

/// The kernel may kill a whole container when one process exceeds the limit (`memory.oom.group`).
/// So the processes of execs need the container's OOM score, too.
#[test]
fn exec_probes_of_a_sidecar_get_the_lower_score() {
    let host = Containerd::start();
    let pod = PodCgroup::new(&host, "pod");
    // The shim sets the score once the OCI runtime has finished. That takes a moment, and ten times
    // as long in the virtual machine.
    let script = "sleep 2; cat /proc/self/oom_score_adj >> /dev/shm/scores";
    let probe = json!({
        "exec": { "command": ["/bin/sh", "-c", script] }, "periodMilliseconds": 100,
        "timeoutSeconds": 20,
    });
    let key = "liveness-probe.usher/proxy";
    let probed = |config: &mut Value| {
        with_score(SMALL)(config);
        annotate(config, &[(key, &probe.to_string())]);
    };
    pod.run("proxy", SLEEPER, probed);
    let of_probes = || {
        let said = host.exec("proxy", &["/bin/cat", "/dev/shm/scores"]);
        said.out().lines().map(str::to_owned).collect::<Vec<_>>()
    };
    eventually("a probe runs", PATIENCE, || !of_probes().is_empty());
    assert_eq!(of_probes()[0], SMALL.to_string());
    pod.run("web", SLEEPER, |config| {
        with_score(300)(config);
        annotate(config, &[(key, &probe.to_string())]);
    });
    await_value("the score", &vec![300], || scores(&host, "proxy"));
    let before = of_probes().len();
    // Skip one probe: it may have started before the score changed.
    let later = || of_probes().into_iter().skip(before + 1).collect::<Vec<_>>();
    eventually("later probes run", PATIENCE, || later().len() > 2);
    assert!(later().iter().all(|score| score == "300"), "{:?}", later());
}

#[test]
fn all_processes_of_a_forking_sidecar_get_the_lower_score() {
    let host = Containerd::start();
    let pod = PodCgroup::new(&host, "pod");
    // Each of four processes starts a child and exits, and each child does the same. The limit of a
    // fifth of a CPU leaves CPU time for other programs.
    let chains = "f() { f & }; f; f; f; f; while :; do sleep 0.1; done";
    let bomb = ["/bin/sh", "-c", chains];
    pod.run("proxy", &bomb, |config| {
        with_score(SMALL)(config);
        config["linux"]["resources"]["pids"] = json!({ "limit": 2000 });
        config["linux"]["resources"]["cpu"] = json!({ "quota": 20_000, "period": 100_000 });
    });
    let first = host.pids("proxy");
    eventually("the proxy forks", PATIENCE, || host.pids("proxy") != first);
    // A single list of the container's processes misses some of them, so read several lists.
    let looks = || {
        let looks = (0..5).flat_map(|_| scores(&host, "proxy"));
        looks.collect::<std::collections::BTreeSet<_>>()
    };
    // One pass of the shim over the processes misses those that fork during the pass, but sometimes
    // reaches all by chance. So start three apps.
    for _ in 0..3 {
        pod.run("web", SLEEPER, with_score(300));
        await_value("the score", &[300].into(), looks);
        host.kill("web", "SIGKILL");
        host.wait_exit("web");
        host.delete("web");
        await_value("the score", &[SMALL].into(), looks);
    }
}

#[test]
fn scores_are_unchanged_if_the_setting_is_off() {
    let host = Containerd::start();
    let pod = PodCgroup::new(&host, "pod");
    let off = |score| {
        move |config: &mut Value| {
            with_score(score)(config);
            annotate(config, &[("usher/oom-score", "Off")]);
        }
    };
    pod.run("proxy", SLEEPER, off(SMALL));
    pod.run("web", SLEEPER, off(300));
    let exec = host.exec("proxy", &["/bin/cat", "/proc/self/oom_score_adj"]);
    assert_eq!(exec.out().trim(), SMALL.to_string());
    assert_eq!(scores(&host, "proxy"), [SMALL]);
}

/// True if this process may lower OOM scores (CAP_SYS_RESOURCE).
fn may_lower() -> bool {
    let status = fs::read_to_string("/proc/self/status").expect("status");
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = u64::from_str_radix(set.expect("capabilities").trim(), 16).expect("a set");
    set >> 24 & 1 == 1
}

/// On a node that is itself a container, CAP_SYS_RESOURCE may be missing. Then the kernel refuses
/// to lower OOM scores.
#[test]
fn a_score_refused_by_the_kernel_is_logged_once_and_is_no_error() {
    if may_lower() {
        return;
    }
    let host = Containerd::start();
    // This OCI runtime stands in for one that may not lower OOM scores: the app gets the score 600
    // instead of the -600 in its bundle.
    let runtime = host.dir().join("bin/runc");
    let _ = fs::remove_file(&runtime);
    let script = "#!/bin/sh\nsed -i s/-600/600/ config.json\n\
                  PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin exec runc \"$@\"\n";
    write_program(&runtime, script);
    let pod = PodCgroup::new(&host, "pod");
    let lists = |config: &mut Value| annotate(config, &[("usher/sidecars", "proxy logs")]);
    pod.run("proxy", SLEEPER, |config| {
        with_score(SMALL)(config);
        lists(config);
    });
    pod.run("web", SLEEPER, |config| {
        with_score(-600)(config);
        lists(config);
    });
    let refusals = || {
        let log = host.log_tail(usize::MAX);
        log.matches("the kernel requires CAP_SYS_RESOURCE").count()
    };
    eventually("the shim logs the refusal", PATIENCE, || refusals() == 1);
    // A new sidecar and an exec start without an error, although the kernel refuses their scores
    // too. The log line is not repeated.
    pod.run("logs", SLEEPER, |config| {
        with_score(SMALL)(config);
        lists(config);
    });
    assert_eq!(host.exec("proxy", &["/bin/echo", "hello"]).out(), "hello\n");
    assert_eq!(host.exec("logs", &["/bin/echo", "hello"]).out(), "hello\n");
    host.kill("web", "SIGKILL");
    host.wait_exit("web");
    assert_eq!(refusals(), 1);
    assert_eq!(host.status("proxy"), Some(Status::Running));
}

/// Containers with an OOM event, in the order of the events.
fn killed(host: &Containerd) -> Vec<String> {
    let is_oom = |event: &&CtrEvent| event.topic == "/tasks/oom";
    let events = host.events();
    let told = events.iter().filter(is_oom);
    told.map(|event| event.container().to_owned()).collect()
}

/// A pod with little memory. Its app soon needs all of the memory, its sidecar needs little.
fn run_out_of_memory<'host>(host: &'host Containerd, oom_score: &str) -> PodCgroup<'host> {
    let pod = PodCgroup::new(host, "pod");
    pod.limit_memory(48 << 20);
    let with_score = |score| {
        move |config: &mut Value| {
            with_score(score)(config);
            annotate(config, &[("usher/oom-score", oom_score)]);
        }
    };
    pod.run("proxy", SLEEPER, with_score(990));
    pod.run("web", EATER, with_score(0));
    pod
}

#[test]
fn out_of_memory_kills_the_app_before_its_sidecar() {
    let host = Containerd::start();
    let _pod = run_out_of_memory(&host, "Match");
    assert_eq!(host.wait_exit("web"), 137);
    assert_eq!(killed(&host), ["web"]);
    assert_eq!(host.status("proxy"), Some(Status::Running));
}

/// Reproduces the complaint of KEP-753: "sidecar containers typically have smaller request, making
/// them the first target".
#[test]
fn out_of_memory_kills_the_small_sidecar_first_if_the_setting_is_off() {
    let host = Containerd::start();
    let _pod = run_out_of_memory(&host, "Off");
    assert_eq!(host.wait_exit("proxy"), 137);
    assert_eq!(killed(&host).first().map(String::as_str), Some("proxy"));
}
