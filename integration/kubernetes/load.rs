//! Load that pods put on a node, under usher and under containerd's own shim. Each pod has one
//! container. The pods are created one after another, or at the same time. The last measurement is
//! that of many idle pods.

use std::fs;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::cluster::Cluster;
use crate::figures::{sandbox_created, summary};
use crate::harness::{Record, processor_time, proportional_memory};
use crate::pod::{Case, Pod, witness};

/// Number of pods under each runtime that are created one after another. The two runtimes take
/// turns.
const IN_A_ROW: usize = 20;

/// Number of pods that are created at the same time.
const AT_ONCE: usize = 20;
/// Number of times that these pods are created.
const ROUNDS: usize = 4;

/// The number of idle pods on the node; kubelet accepts 110.
const MANY: usize = 100;

/// Time for which idle pods are measured. The pods get the same time to become idle.
const REST: Duration = Duration::from_secs(20);

/// Title in the table and runtime class, for each of the two runtimes.
const WAYS: [(&str, Option<&str>); 2] = [("usher", Some("usher")), ("runc.v2", None)];

/// The cost of many pods.
struct ManyPods {
    running: Duration,
    ready: Duration,
    gone: Duration,
    /// Memory of all shims in MB, as the sum of their proportional set sizes (PSS).
    memory: f64,
    /// CPU time of all shims, in ms per second.
    at_rest: f64,
}

/// Measures everything, and prints it as Markdown.
pub fn print(cluster: &Cluster) {
    println!(
        "\n| pods of one container | {} | {} |",
        WAYS[0].0, WAYS[1].0
    );
    println!("|---|---|---|");
    let (mut starts, mut readies) = ([vec![], vec![]], [vec![], vec![]]);
    let cases = WAYS.map(|(title, _)| Case::new(cluster, &format!("row-{}", name(title))));
    for n in 0..IN_A_ROW {
        for (way, case) in cases.iter().enumerate() {
            let (started, ready) = one(case, n, WAYS[way].1);
            starts[way].push(started);
            readies[way].push(ready);
        }
    }
    let of_ways = |what: &str, times: [Vec<Duration>; 2]| {
        let [ours, theirs] = times.map(summary);
        println!("| {what} | {ours} | {theirs} |");
    };
    of_ways(
        &format!("{IN_A_ROW} in a row, sandbox to the program's first line"),
        starts,
    );
    of_ways("the same, created to Ready", readies);

    let (mut starts, mut readies) = ([vec![], vec![]], [vec![], vec![]]);
    let mut ends = [vec![], vec![]];
    for round in 0..ROUNDS {
        for (way, (title, class)) in WAYS.into_iter().enumerate() {
            let case = Case::new(cluster, &format!("once-{}-{round}", name(title)));
            let Burst { running, ready } = burst(&case, AT_ONCE, class);
            starts[way].push(running);
            readies[way].push(ready);
            ends[way].push(all_gone(&case));
        }
    }
    of_ways(
        &format!("{AT_ONCE} at once, created to the last program's first line"),
        starts,
    );
    of_ways("the same, created to all Ready", readies);
    of_ways("the same, deleted to all gone", ends);

    let many = WAYS.map(|(title, class)| many_pods(cluster, title, class));
    let of_many = |what: &str, unit: &str, figure: fn(&ManyPods) -> f64| {
        let [ours, theirs] = [0, 1].map(|way| format!("{:.2} {unit}", figure(&many[way])));
        println!("| {MANY} on the node, {what} | {ours} | {theirs} |");
    };
    of_many("created to the last program's first line", "s", |pods| {
        pods.running.as_secs_f64()
    });
    of_many("created to all Ready", "s", |pods| pods.ready.as_secs_f64());
    of_many("deleted to all gone", "s", |pods| pods.gone.as_secs_f64());
    of_many("memory of a pod's shim", "MB", |pods| {
        pods.memory / MANY as f64
    });
    of_many(
        "processor time of all shims in a second at rest",
        "ms",
        |pods| pods.at_rest,
    );
}

fn name(title: &str) -> String {
    title.replace('.', "-")
}

fn pod(n: usize, class: Option<&str>) -> Pod {
    let class = class.map_or(Value::Null, Value::from);
    Pod::new(&format!("pod-{n}"))
        .spec("runtimeClassName", class)
        .container(witness(&format!("app-{n}"), &[]))
}

/// Creates a pod and returns two durations. The first is measured from the creation of the sandbox
/// in containerd to the first record of the pod's program. The second is measured from the request
/// for the pod until the API reports the pod as ready.
fn one(case: &Case, n: usize, class: Option<&str>) -> (Duration, Duration) {
    let (pod, app) = (format!("pod-{n}"), format!("app-{n}"));
    let created = Instant::now();
    case.create(&self::pod(n, class));
    case.kubectl_waits(&["wait", "--for=condition=Ready", "pod", &pod]);
    let ready = created.elapsed();
    let began = case.await_event(&app, "start").at(&app, "start");
    let started = began.saturating_sub(sandbox_created(case, &pod));
    case.kubectl(&["delete", "pod", &pod]);
    (Duration::from_nanos(started), ready)
}

/// Times of several pods that are created at the same time, counted from their creation.
struct Burst {
    /// Time until the last pod's program has started.
    running: Duration,
    /// Time until the API reports every pod as ready. kubelet updates the pods' states in the API
    /// about once a second.
    ready: Duration,
}

fn burst(case: &Case, count: usize, class: Option<&str>) -> Burst {
    let pods: Vec<Pod> = (0..count).map(|n| pod(n, class)).collect();
    let since_1970 = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a date");
    let created = Instant::now();
    case.create_all(&pods);
    case.kubectl_waits(&["wait", "--for=condition=Ready", "pod", "--all"]);
    let ready = created.elapsed();
    let record: Record = case.record();
    let begun = (0..count).map(|n| record.at(&format!("app-{n}"), "start"));
    let last = Duration::from_nanos(begun.max().unwrap_or_default());
    Burst {
        running: last.saturating_sub(since_1970),
        ready,
    }
}

fn all_gone(case: &Case) -> Duration {
    let deleted = Instant::now();
    // The command returns when the pods are deleted.
    case.kubectl_waits(&["delete", "pod", "--all"]);
    deleted.elapsed()
}

fn many_pods(cluster: &Cluster, title: &str, class: Option<&str>) -> ManyPods {
    let case = Case::new(cluster, &format!("many-{}", name(title)));
    let Burst { running, ready } = burst(&case, MANY, class);
    // After this pause the shims are idle.
    std::thread::sleep(REST);
    let shims = shims(cluster);
    assert_eq!(shims.len(), MANY, "one shim a pod");
    let memory = proportional_memory(&shims);
    let before: f64 = shims.iter().map(processor_time).sum();
    std::thread::sleep(REST);
    let after: f64 = shims.iter().map(processor_time).sum();
    ManyPods {
        running,
        ready,
        gone: all_gone(&case),
        memory,
        at_rest: (after - before) / REST.as_secs_f64() * 1e3,
    }
}

/// Process ids of the shims on the node. The node's processes are also processes of this computer.
fn shims(cluster: &Cluster) -> Vec<u32> {
    let is_shim = |pid: &u32| {
        let program = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let program = program.split('\0').next().unwrap_or_default();
        program.contains("containerd-shim-") && cluster.has_process(*pid)
    };
    let processes = fs::read_dir("/proc").expect("processes").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(is_shim).collect()
}
