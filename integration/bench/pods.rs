//! Costs of a pod that is made as kubelet makes it. The pod has a pause container under
//! containerd's own shim, a pause container under our shim, or no pause container under our shim.
//! All pods use the node's network, so that the cost of networks is left out.

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::burst::each_pod;
use super::figures::{FigureOf, Figures};
use super::harness::{
    Cri, CriSettings, Handler, Pod, PodSpec, has_controllers, proportional_memory,
};
use super::report::machine;
use super::{Effort, LASTING, progress};

/// The columns of the table, in this order.
const HANDLERS: [Handler; 3] = [Handler::Runc, Handler::Usher, Handler::Pauseless];

/// Times of one pod in milliseconds.
struct PodTimes {
    sandbox: f64,
    /// Time from the request for the sandbox until the program of the pod's container runs its
    /// first line.
    first_line: f64,
    end: f64,
}

/// Costs of many pods under one handler.
struct ManyPods {
    /// Seconds until all pods run.
    started: f64,
    /// Proportional memory per pod in MB, without the containers' programs.
    memory: f64,
    /// Processes per pod, not counting the containers' own processes.
    processes: f64,
}

pub fn print(effort: &Effort) {
    progress("pods, one after another");
    let all = times_in_turns(effort.releases);
    let many = HANDLERS.map(|handler| {
        progress(&format!("{} pods of {}", effort.small_pods, handler.name()));
        many_pods(handler, effort.small_pods)
    });
    println!("{}\n", machine());
    if !has_controllers() {
        println!(
            "Each pause container is made without its CPU shares: a small program takes them out of its bundle and \
             executes the OCI runtime, in all columns alike. The memory charged to cgroups is left out.\n"
        );
    }
    println!("| | runc.v2 | usher | usher, no pause container | to runc.v2 | to usher |");
    println!("|---|---|---|---|---|---|");
    let times: [(&str, FigureOf<PodTimes>); 3] = [
        ("RunPodSandbox", |pod| pod.sandbox),
        ("RunPodSandbox to the first line of its container", |pod| {
            pod.first_line
        }),
        (
            "StopPodSandbox and RemovePodSandbox, its container runs",
            |pod| pod.end,
        ),
    ];
    for (what, time) in times {
        let of = |pods: &Vec<PodTimes>| pods.iter().map(time).collect::<Figures>();
        let figures = [of(&all[0]), of(&all[1]), of(&all[2])];
        let count = figures[0].count();
        row(
            &format!("{what}, {count} times, median (p10 … p90)"),
            [0, 1, 2].map(|n| figures[n].text("ms")),
            [0, 1, 2].map(|n| figures[n].median()),
        );
    }
    let rows: [(String, &str, FigureOf<ManyPods>); 3] = [
        (
            format!(
                "{} pods of one container, started at once",
                effort.small_pods
            ),
            "s",
            |pods| pods.started,
        ),
        (
            "memory of all that is not the pod's own program, a pod".to_owned(),
            "MB",
            |pods| pods.memory,
        ),
        (
            "processes beside the pod's own, a pod".to_owned(),
            "",
            |pods| pods.processes,
        ),
    ];
    for (what, unit, value) in rows {
        let values = [0, 1, 2].map(|n| value(&many[n]));
        row(
            &what,
            values.map(|value| format!("{value:.2} {unit}")),
            values,
        );
    }
}

fn row(what: &str, texts: [String; 3], values: [f64; 3]) {
    let [runc, usher, ours] = values;
    println!(
        "| {what} | {} | {:.2} | {:.2} |",
        texts.map(|text| text.trim().to_owned()).join(" | "),
        ours / runc,
        ours / usher
    );
}

fn node() -> Cri {
    let node = Cri::start_with(CriSettings {
        log_level: "info",
        ..CriSettings::default()
    });
    // containerd's own shim leaves sockets behind if a pod has several containers.
    node.tolerate("/run/s/");
    node
}

/// Times under each handler. The handlers take turns on one containerd, so that other load of the
/// machine affects all of them.
fn times_in_turns(repetitions: usize) -> [Vec<PodTimes>; 3] {
    let node = node();
    let mut all = HANDLERS.map(|_| Vec::new());
    // The first pod of each runtime handler is a warm-up.
    for n in 0..=repetitions {
        for (handler, times) in HANDLERS.into_iter().zip(&mut all) {
            let pod = times_of_one(&node, handler, n);
            if n > 0 {
                times.push(pod);
            }
        }
    }
    all
}

fn times_of_one(node: &Cri, handler: Handler, n: usize) -> PodTimes {
    let name = format!("{}-{n}", handler.name());
    let spec = PodSpec::new(&name, handler);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let begin_ns = now.expect("a clock after 1970").as_nanos() as u64;
    let begin = Instant::now();
    let pod = node.run_pod(&spec);
    let sandbox = milliseconds(begin.elapsed());
    pod.witness(&name, &[]);
    let first_line = node.record().at(&name, "start").saturating_sub(begin_ns) as f64 / 1e6;
    let begin = Instant::now();
    pod.stop();
    pod.remove();
    PodTimes {
        sandbox,
        first_line,
        end: milliseconds(begin.elapsed()),
    }
}

fn many_pods(handler: Handler, pods: usize) -> ManyPods {
    let node = node();
    let started = each_pod(pods, |pod| {
        let spec = PodSpec::new(&format!("pod-{pod}"), handler);
        let pod: Pod = node.run_pod(&spec);
        pod.run("app", LASTING);
    });
    // Two seconds after the starts the shims are idle.
    thread::sleep(Duration::from_secs(2));
    let containers = node.containers();
    let is_container = |id: &String| containers.iter().any(|container| container.id == *id);
    let tasks = node.tasks().into_iter();
    let programs: Vec<u32> = tasks
        .filter(|task| is_container(&task.id))
        .map(|task| task.pid)
        .collect();
    let all = node.commands().into_iter().map(|(pid, _)| pid);
    let others: Vec<u32> = all.filter(|pid| !programs.contains(pid)).collect();
    ManyPods {
        started,
        memory: proportional_memory(&others) / pods as f64,
        processes: others.len() as f64 / pods as f64,
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
