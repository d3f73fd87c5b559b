//! What pods of one container take of a node under usher and under containerd's own shim: one after another, at once,
//! and many.

use std::fs;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::cluster::Cluster;
use crate::figures::{sandbox_created, summary};
use crate::harness::{Record, processor_time, proportional_memory};
use crate::pod::{Case, Pod, witness};

/// Pods one after another, of either, in turn.
const IN_A_ROW: usize = 20;

/// Pods at once, and how often.
const AT_ONCE: usize = 20;
const ROUNDS: usize = 4;

/// Pods on the node; kubelet takes 110.
const MANY: usize = 100;

/// For how long they are watched at rest.
const REST: Duration = Duration::from_secs(20);

/// Under what pods run: a title, and their runtime class.
const WAYS: [(&str, Option<&str>); 2] = [("usher", Some("usher")), ("runc.v2", None)];

/// What many pods take.
struct Crowd {
    running: Duration,
    ready: Duration,
    gone: Duration,
    /// Of the shims of all, proportionally, in MB.
    memory: f64,
    /// Processor time of all shims in a second, in ms.
    at_rest: f64,
}

/// Prints it as Markdown.
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

    let crowds = WAYS.map(|(title, class)| crowd(cluster, title, class));
    let of_crowds = |what: &str, unit: &str, figure: fn(&Crowd) -> f64| {
        let [ours, theirs] = [0, 1].map(|way| format!("{:.2} {unit}", figure(&crowds[way])));
        println!("| {MANY} on the node, {what} | {ours} | {theirs} |");
    };
    of_crowds("created to the last program's first line", "s", |crowd| {
        crowd.running.as_secs_f64()
    });
    of_crowds("created to all Ready", "s", |crowd| {
        crowd.ready.as_secs_f64()
    });
    of_crowds("deleted to all gone", "s", |crowd| crowd.gone.as_secs_f64());
    of_crowds("memory of a pod's shim", "MB", |crowd| {
        crowd.memory / MANY as f64
    });
    of_crowds(
        "processor time of all shims in a second at rest",
        "ms",
        |crowd| crowd.at_rest,
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

/// From the pod's sandbox to its program's first line, and from its creation until the API says that it is ready.
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

/// How long pods that are created at once take.
struct Burst {
    /// Until the program of each has begun.
    running: Duration,
    /// Until the API says of each that it is ready: kubelet tells that once a second or so.
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
    // It returns when they are gone.
    case.kubectl_waits(&["delete", "pod", "--all"]);
    deleted.elapsed()
}

fn crowd(cluster: &Cluster, title: &str, class: Option<&str>) -> Crowd {
    let case = Case::new(cluster, &format!("many-{}", name(title)));
    let Burst { running, ready } = burst(&case, MANY, class);
    // What follows a start is over then.
    std::thread::sleep(REST);
    let shims = shims(cluster);
    assert_eq!(shims.len(), MANY, "one shim a pod");
    let memory = proportional_memory(&shims);
    let before: f64 = shims.iter().map(processor_time).sum();
    std::thread::sleep(REST);
    let after: f64 = shims.iter().map(processor_time).sum();
    Crowd {
        running,
        ready,
        gone: all_gone(&case),
        memory,
        at_rest: (after - before) / REST.as_secs_f64() * 1e3,
    }
}

/// The processes of shims on this cluster's node, which is on this machine.
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
