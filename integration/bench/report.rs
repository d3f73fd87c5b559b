//! The table of results.

use std::fs;
use std::process::Command;

use super::Effort;
use super::figures::Figures;
use super::harness::{has_controllers, installed_program, oci_runtime, on_v2};
use super::idle::Pods;
use super::release::Releases;
use super::start_stages::Link;
use super::termination::Step;

/// All measurements. An array of two has one item for each runtime.
pub struct Measured {
    pub runs: [Figures; 2],
    pub execs: [Figures; 2],
    /// Seconds until all pods of a burst run.
    pub burst: [f64; 2],
    pub pods: [Pods; 2],
    pub releases: Releases,
    /// Milliseconds between the stages of a pod's start.
    pub stages: Vec<(Link, Figures)>,
    /// Milliseconds from the exit of one program to the start of the next, with runc alone.
    pub by_hand_after_exits: Figures,
    /// Milliseconds between the steps of a pod's termination.
    pub ending: Vec<(Step, Figures)>,
    pub whole_pods: [Figures; 2],
}

pub fn print(runtimes: [&str; 2], effort: &Effort, measured: &Measured) {
    let Measured { pods, burst, .. } = measured;
    print_commands(runtimes, &measured.runs, &measured.execs);
    row(
        &format!("{} pods of 5 containers started at once", effort.burst),
        burst.map(|seconds| format!("{seconds:.1} s")),
        burst[0] / burst[1],
    );
    let whole_pods = &measured.whole_pods;
    row(
        "2 init containers, 3 sidecars, 2 apps, started one after another, against by hand",
        [0, 1].map(|n| whole_pods[n].text("ms")),
        whole_pods[0].median() / whole_pods[1].median(),
    );
    row(
        "shim's proportional memory, one pod of 5 containers alone",
        [0, 1].map(|n| format!("{:.2} MB", pods[n].alone)),
        pods[0].alone / pods[1].alone,
    );
    row(
        &format!("the same per pod, {} such pods running", effort.pods),
        [0, 1].map(|n| format!("{:.2} MB", pods[n].together)),
        pods[0].together / pods[1].together,
    );
    row(
        "threads of a shim",
        [0, 1].map(|n| pods[n].threads.to_string()),
        pods[0].threads as f64 / pods[1].threads as f64,
    );
    row(
        &format!(
            "wake-ups of an idle pod's shim in {} s",
            effort.idle.as_secs()
        ),
        [0, 1].map(|n| pods[n].switches.to_string()),
        pods[0].switches as f64 / pods[1].switches as f64,
    );
    println!();
    println!("| from | to the next program's first line of code, median (p10 … p90) |");
    println!("|---|---|");
    let Releases {
        after_probe,
        after_later_probe,
        after_start,
        bare,
    } = &measured.releases;
    println!(
        "| bare opening of runc's exec FIFO, {} times | {} |",
        bare.count(),
        bare.text("ms")
    );
    for (probe, times) in [("first", after_probe), ("later", after_later_probe)] {
        let ratio = times.median() / bare.median();
        println!(
            "| the sidecar's {probe} probe, which succeeds | {}, {ratio:.2} of the FIFO |",
            times.text("ms")
        );
    }
    println!(
        "| the first line of code of a sidecar without probe | {} |",
        after_start.text("ms")
    );
    println!(
        "| the exit of a container's program, waited for by hand, then the FIFO | {} |",
        measured.by_hand_after_exits.text("ms")
    );
    for (Link(from, to, over), times) in &measured.stages {
        let (floor, name) = match *over {
            "exit" => (&measured.by_hand_after_exits, "by hand"),
            _ => (bare, "the FIFO"),
        };
        let ratio = times.median() / floor.median();
        let times = times.text("ms");
        println!("| {from}, then {to} | {times}, {ratio:.2} of {name} |");
    }
    println!();
    println!("| from the exit of | to | median (p10 … p90) |");
    println!("|---|---|---|");
    for (Step(from, to, begins), times) in &measured.ending {
        let what = match *begins {
            "start" => "the first line of",
            _ => "the signal for",
        };
        println!("| {from} | {what} {to} | {} |", times.text("ms"));
    }
}

/// Prints the table's head, and the times of `ctr`'s commands under both runtimes.
pub fn print_commands(runtimes: [&str; 2], runs: &[Figures; 2], execs: &[Figures; 2]) {
    println!("{}\n", machine());
    println!("| | {} | {} | ratio |", runtimes[0], runtimes[1]);
    println!("|---|---|---|---|");
    for (command, times) in [("run --rm", runs), ("task exec", execs)] {
        row(
            &format!(
                "`ctr {command} … /bin/true`, {} pairs, median (p10 … p90)",
                times[0].count()
            ),
            [times[0].text("ms"), times[1].text("ms")],
            times[0].median() / times[1].median(),
        );
    }
}

/// Prints a row. If the second value is 0, there is no ratio.
pub fn row(what: &str, [ours, theirs]: [String; 2], ratio: f64) {
    let ratio = match ratio.is_finite() {
        true => format!("{ratio:.2}"),
        false => String::new(),
    };
    println!("| {what} | {ours} | {theirs} | {ratio} |");
}

/// The machine, its programs and the date.
pub fn machine() -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, |n| n.get());
    let containerd = installed_program("containerd").display().to_string();
    let containerd = first_line(&containerd, &["--version"]);
    let containerd = containerd.split_whitespace().nth(2).unwrap_or("?");
    let name = oci_runtime();
    let runtime = first_line(&name, &["--version"]);
    let runtime = runtime.rsplit(' ').next().unwrap_or("?");
    let cgroups = match (on_v2(), has_controllers()) {
        (false, _) => "v1",
        (true, true) => "v2",
        (true, false) => "v2 without controllers, so without limits",
    };
    let date = first_line("date", &["--utc", "+%Y-%m-%d"]);
    let kernel = kernel.trim();
    format!(
        "{date}, Linux {kernel}, {cores} cores, containerd {containerd}, {name} {runtime}, cgroup {cgroups}"
    )
}

fn first_line(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map(|o| o.stdout);
    let text = String::from_utf8(output.unwrap_or_default()).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}
