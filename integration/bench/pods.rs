//! What a pod costs as kubelet makes it: with a pause container under containerd's own shim and ours, and
//! without one. All pods are in the node's network, for what a network costs is the network's.

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::crowd::each_pod;
use super::figures::{FigureOf, Figures};
use super::harness::{Cri, CriSettings, Handler, Pod, PodSpec, proportional_memory};
use super::report::machine;
use super::{Effort, LASTING, progress};

/// Beside each other, in this order.
const HANDLERS: [Handler; 3] = [Handler::Runc, Handler::Usher, Handler::Pauseless];

/// Milliseconds of one pod's life.
struct Life {
    sandbox: f64,
    /// From the request for the sandbox to the first line of its container's program.
    first_line: f64,
    end: f64,
}

/// What many pods of a runtime take.
struct Crowd {
    /// Seconds until all of them run.
    started: f64,
    /// Proportional memory of all but the containers' programs, for each pod, in MB.
    memory: f64,
    /// So many processes a pod has beside its containers'.
    processes: f64,
}

pub fn print(effort: &Effort) {
    progress("pods, one after another");
    let lives = lives(effort.releases);
    let crowds = HANDLERS.map(|handler| {
        progress(&format!("{} pods of {}", effort.crowd, handler.name()));
        crowd(handler, effort.crowd)
    });
    println!("{}\n", machine());
    println!("| | runc.v2 | usher | usher, no pause container | to runc.v2 | to usher |");
    println!("|---|---|---|---|---|---|");
    let times: [(&str, FigureOf<Life>); 3] = [
        ("RunPodSandbox", |life| life.sandbox),
        ("RunPodSandbox to the first line of its container", |life| {
            life.first_line
        }),
        (
            "StopPodSandbox and RemovePodSandbox, its container runs",
            |life| life.end,
        ),
    ];
    for (what, time) in times {
        let of = |lives: &Vec<Life>| lives.iter().map(time).collect::<Figures>();
        let figures = [of(&lives[0]), of(&lives[1]), of(&lives[2])];
        let count = figures[0].count();
        row(
            &format!("{what}, {count} times, median (p10 … p90)"),
            [0, 1, 2].map(|n| figures[n].text("ms")),
            [0, 1, 2].map(|n| figures[n].median()),
        );
    }
    let rows: [(String, &str, FigureOf<Crowd>); 3] = [
        (
            format!("{} pods of one container, started at once", effort.crowd),
            "s",
            |crowd| crowd.started,
        ),
        (
            "memory of all that is not the pod's own program, a pod".to_owned(),
            "MB",
            |crowd| crowd.memory,
        ),
        (
            "processes beside the pod's own, a pod".to_owned(),
            "",
            |crowd| crowd.processes,
        ),
    ];
    for (what, unit, value) in rows {
        let values = [0, 1, 2].map(|n| value(&crowds[n]));
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
    // Where containerd's own shim leaves sockets of containers that join a pod.
    node.tolerate("/run/s/");
    node
}

/// Of each runtime, in turns on one containerd, so that a noise of the machine is everybody's.
fn lives(repetitions: usize) -> [Vec<Life>; 3] {
    let node = node();
    let mut lives = HANDLERS.map(|_| Vec::new());
    // The first of each warms up.
    for n in 0..=repetitions {
        for (handler, lives) in HANDLERS.into_iter().zip(&mut lives) {
            let life = live(&node, handler, n);
            if n > 0 {
                lives.push(life);
            }
        }
    }
    lives
}

fn live(node: &Cri, handler: Handler, n: usize) -> Life {
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
    Life {
        sandbox,
        first_line,
        end: milliseconds(begin.elapsed()),
    }
}

fn crowd(handler: Handler, pods: usize) -> Crowd {
    let node = node();
    let started = each_pod(pods, |pod| {
        let spec = PodSpec::new(&format!("pod-{pod}"), handler);
        let pod: Pod = node.run_pod(&spec);
        pod.run("app", LASTING);
    });
    // What they do upon a start is over then.
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
    Crowd {
        started,
        memory: proportional_memory(&others) / pods as f64,
        processes: others.len() as f64 / pods as f64,
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
