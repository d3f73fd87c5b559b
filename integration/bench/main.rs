//! Costs of a pod under our shim and under containerd's own shim, measured in one run with the same
//! runc.
//!
//! `scripts/bench` runs this program. `--quick` repeats each measurement less often. `--pods` makes
//! pods as kubelet does, with and without a pause container, and needs containerd 2.3 or later.
//! `--commands` measures only `ctr run` and `ctr task exec`, with any OCI runtime. `--profile`
//! tells which programs take the time of a run, an exec and a pod. `--scale` measures many pods and
//! a pod of many containers.
//!
//! Times are measured by this program, the containers and the kernel. All other numbers come from
//! the kernel. The program prints Markdown to standard output.

#![allow(clippy::disallowed_methods, reason = "tests may wait")]

#[path = "../harness/mod.rs"]
mod harness;

mod burst;
mod figures;
mod idle;
mod pods;
mod processes;
mod profile;
mod release;
mod report;
mod scale;
mod start_stages;
mod termination;
mod walltime;

use harness::{REFERENCE, runtime_under_test};

/// The program of an idle container.
const LASTING: &[&str] = &["/bin/sleep", "100000"];

/// Number of repetitions of each measurement.
pub struct Effort {
    /// Number of command pairs, both for `ctr run --rm` and for `ctr task exec`. A pair is one
    /// command for each runtime.
    pairs: usize,
    /// Number of pods of five containers that are started at once.
    burst: usize,
    /// For `--pods`: number of pods of one container that are started at once.
    small_pods: usize,
    /// Number of pods that run at the same time.
    pods: usize,
    /// Observation time of an idle pod.
    idle: std::time::Duration,
    /// Number of measurements of each delay between two containers of a pod, and of the times of a
    /// whole pod.
    releases: usize,
    /// For `--scale`: the number of pods on one node, and of containers in one pod.
    many_pods: usize,
    many_containers: usize,
}

impl Effort {
    fn from_arguments() -> Self {
        let quick = std::env::args().any(|argument| argument == "--quick");
        let (pairs, burst, small_pods, pods, idle, releases) = if quick {
            (8, 6, 6, 5, 3, 10)
        } else {
            (40, 50, 100, 30, 10, 25)
        };
        let (many_pods, many_containers) = if quick { (20, 40) } else { (200, 250) };
        Self {
            pairs,
            burst,
            small_pods,
            pods,
            idle: std::time::Duration::from_secs(idle),
            releases,
            many_pods,
            many_containers,
        }
    }
}

fn main() {
    let effort = Effort::from_arguments();
    if std::env::args().any(|argument| argument == "--pods") {
        return pods::print(&effort);
    }
    let runtimes = [runtime_under_test(), REFERENCE.to_owned()];
    let runtimes = [runtimes[0].as_str(), runtimes[1].as_str()];
    if std::env::args().any(|argument| argument == "--profile") {
        return profile::print(runtimes, &effort);
    }
    if std::env::args().any(|argument| argument == "--scale") {
        return scale::print(runtimes, &effort);
    }
    progress("wall time of ctr run --rm");
    let runs = walltime::run(runtimes, effort.pairs);
    progress("wall time of ctr task exec");
    let execs = walltime::exec(runtimes, effort.pairs);
    if std::env::args().any(|argument| argument == "--commands") {
        return report::print_commands(runtimes, &runs, &execs);
    }
    progress(&format!("{} pods at once", effort.burst));
    let burst = burst::measure(runtimes, effort.burst);
    let pods = runtimes.map(|runtime| {
        progress(&format!("{} pods of {runtime}", effort.pods));
        idle::measure(runtime, &effort)
    });
    progress("release of a held container");
    let releases = release::measure(runtimes[0], effort.releases);
    progress("the stages of a start");
    let stages = start_stages::stages(runtimes[0], effort.releases);
    let by_hand_after_exits = release::by_hand_after_exits(effort.releases);
    progress("the steps of an end");
    let ending = termination::steps(runtimes[0], effort.releases);
    progress("whole pods, and by hand");
    let whole_pods = start_stages::whole_pods(runtimes[0], effort.releases);
    let measured = report::Measured {
        runs,
        execs,
        burst,
        pods,
        releases,
        stages,
        by_hand_after_exits,
        ending,
        whole_pods,
    };
    report::print(runtimes, &effort, &measured);
}

fn progress(what: &str) {
    eprintln!("measuring: {what}");
}
