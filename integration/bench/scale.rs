//! Costs of each pod on a node with many pods, and of each container in a pod with many containers.
//! These costs must not grow with the number of pods or containers.

use std::slice;
use std::thread::sleep;
use std::time::Instant;

use super::burst::{self, CLIENTS};
use super::figures::{FigureOf, Figures};
use super::harness::{ContainerSpec, Containerd, processor_time, proportional_memory};
use super::idle::{CONTAINERS, settled_shims};
use super::report::{machine, row};
use super::walltime::quiet_host;
use super::{Effort, LASTING, progress};

/// Costs of many pods under one runtime.
struct Node {
    /// `started`: seconds until all pods run. `ended`: seconds until all of them are deleted.
    started: f64,
    ended: f64,
    /// Memory of the shims per pod, in MB.
    memory: f64,
    /// CPU time of all shims together, while they are idle, in milliseconds per second.
    at_rest: f64,
}

/// Costs of one container of a pod. `started` and `ended` are the milliseconds that a client waits
/// for the container's start and for its end.
struct Containers {
    started: Figures,
    ended: Figures,
    /// CPU time of the shim per container, in milliseconds: for the container's start, and for its
    /// end.
    work: [f64; 2],
}

pub fn print(runtimes: [&str; 2], effort: &Effort) {
    let nodes = runtimes.map(|runtime| {
        progress(&format!(
            "{} pods of {CONTAINERS} of {runtime}",
            effort.many_pods
        ));
        node(runtime, effort)
    });
    let host = quiet_host();
    let pods = runtimes.map(|runtime| {
        [CONTAINERS, effort.many_containers].map(|containers| {
            progress(&format!("a pod of {containers} of {runtime}"));
            pod(&host, runtime, containers)
        })
    });
    println!("{}\n", machine());
    println!("| | {} | {} | ratio |", runtimes[0], runtimes[1]);
    println!("|---|---|---|---|");
    let figures: [(String, &str, FigureOf<Node>); 4] = [
        (
            format!(
                "{} pods of {CONTAINERS}, {CLIENTS} at a time: until all run",
                effort.many_pods
            ),
            "s",
            |node| node.started,
        ),
        ("until all are gone".to_owned(), "s", |node| node.ended),
        ("memory of the shims, a pod".to_owned(), "MB", |node| {
            node.memory
        }),
        (
            "processor time of all shims at rest, in a second".to_owned(),
            "ms",
            |node| node.at_rest,
        ),
    ];
    for (what, unit, figure) in figures {
        let values = [figure(&nodes[0]), figure(&nodes[1])];
        row(
            &what,
            values.map(|value| format!("{value:.2} {unit}")),
            values[0] / values[1],
        );
    }
    for (n, containers) in [CONTAINERS, effort.many_containers].into_iter().enumerate() {
        let [ours, theirs] = [&pods[0][n], &pods[1][n]];
        for (what, ours, theirs) in [
            ("started", &ours.started, &theirs.started),
            ("ended and deleted", &ours.ended, &theirs.ended),
        ] {
            row(
                &format!("a container in a pod of {containers}, {what}, median (p10 … p90)"),
                [ours.text("ms"), theirs.text("ms")],
                ours.median() / theirs.median(),
            );
        }
        for (what, which) in [("started", 0), ("ended and deleted", 1)] {
            let values = [ours.work[which], theirs.work[which]];
            row(
                &format!("the shim's processor time for one in a pod of {containers}, {what}"),
                values.map(|value| format!("{value:.1} ms")),
                values[0] / values[1],
            );
        }
    }
}

fn node(runtime: &str, effort: &Effort) -> Node {
    let host = quiet_host();
    let pods = effort.many_pods;
    let started = burst::start(&host, runtime, pods);
    let shims = settled_shims(&host, pods);
    let memory = proportional_memory(&shims) / pods as f64;
    let before: f64 = shims.iter().map(processor_time).sum();
    sleep(effort.idle);
    let after: f64 = shims.iter().map(processor_time).sum();
    let ended = burst::each_pod(pods, |pod| {
        let ids: Vec<_> = (0..CONTAINERS).map(|n| format!("pod-{pod}-{n}")).collect();
        end(&host, &ids);
    });
    Node {
        started,
        ended,
        memory,
        at_rest: (after - before) / effort.idle.as_secs_f64() * 1e3,
    }
}

/// Starts containers one after another, and ends them in reverse order.
fn pod(host: &Containerd, runtime: &str, containers: usize) -> Containers {
    let ids: Vec<_> = (0..containers).map(|n| format!("one-{n}")).collect();
    let timed = |work: &dyn Fn()| {
        let begin = Instant::now();
        work();
        begin.elapsed().as_secs_f64() * 1e3
    };
    let start = |id: &String| {
        let spec = ContainerSpec::new(id).runtime(runtime).args(LASTING);
        timed(&|| host.run(&spec.clone().in_pod("one", id)))
    };
    let mut started = vec![start(&ids[0])];
    // The first container's start includes the start of the shim. The first container ends last, so
    // its end includes the exit of the shim. Both are left out of the CPU time.
    let shim = settled_shims(host, 1)[0];
    let of_each = |from: f64| (processor_time(&shim) - from) * 1e3 / (containers - 1) as f64;
    let before = processor_time(&shim);
    started.extend(ids[1..].iter().map(start));
    let to_start = of_each(before);
    let ended = |id: &String| timed(&|| end(host, slice::from_ref(id)));
    let before = processor_time(&shim);
    let mut all_ended: Vec<f64> = ids[1..].iter().rev().map(ended).collect();
    let to_end = of_each(before);
    all_ended.push(ended(&ids[0]));
    Containers {
        started: started.into_iter().collect(),
        ended: all_ended.into_iter().collect(),
        work: [to_start, to_end],
    }
}

/// Kills all containers before it waits for their exits, as a caller does when it stops a pod.
fn end(host: &Containerd, ids: &[String]) {
    for id in ids {
        host.must(&["tasks", "kill", "--signal", "KILL", id]);
    }
    for id in ids.iter().rev() {
        host.must(&["tasks", "delete", "--force", id]);
        host.must(&["containers", "delete", id]);
    }
}
