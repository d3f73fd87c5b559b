//! What a pod costs with our shim, beside containerd's own, in one run with the same runc.
//!
//! `scripts/bench` runs it; `--quick` repeats less. With `--pods` it makes pods as kubelet does, with a pause
//! container and without, which takes containerd 2.3 or later. With `--profile` it says whose the time of a run, an
//! exec and a pod is, and with `--scale` what many pods and a large one cost. All times are taken by this program, by
//! the containers or by the kernel, all other figures are the kernel's. The figures go to standard output as Markdown.

#![allow(clippy::disallowed_methods, reason = "tests may wait")]

#[path = "../harness/mod.rs"]
mod harness;

mod chain;
mod crowd;
mod ending;
mod figures;
mod idle;
mod pods;
mod processes;
mod profile;
mod release;
mod report;
mod scale;
mod walltime;

use harness::{REFERENCE, runtime_under_test};

/// What runs in a container that does nothing.
const LASTING: &[&str] = &["/bin/sleep", "100000"];

/// How often each thing is measured.
pub struct Effort {
    /// Pairs of `ctr run --rm`, and of `ctr task exec`.
    pairs: usize,
    /// Pods that are started at once.
    crowd: usize,
    /// Pods that run at once.
    pods: usize,
    /// For how long an idle pod is watched.
    idle: std::time::Duration,
    /// Releases of a held container, starts of a whole pod.
    releases: usize,
    /// Pods on one node, containers in one pod, of `--scale`.
    many_pods: usize,
    many_containers: usize,
}

impl Effort {
    fn from_arguments() -> Self {
        let quick = std::env::args().any(|argument| argument == "--quick");
        let (pairs, crowd, pods, idle, releases) = if quick {
            (8, 6, 5, 3, 10)
        } else {
            (40, 50, 30, 10, 25)
        };
        let (many_pods, many_containers) = if quick { (20, 40) } else { (200, 250) };
        Self {
            pairs,
            crowd,
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
    progress(&format!("{} pods at once", effort.crowd));
    let crowd = crowd::measure(runtimes, effort.crowd);
    let pods = runtimes.map(|runtime| {
        progress(&format!("{} pods of {runtime}", effort.pods));
        idle::measure(runtime, &effort)
    });
    progress("release of a held container");
    let releases = release::measure(runtimes[0], effort.releases);
    progress("the stages of a start");
    let stages = chain::stages(runtimes[0], effort.releases);
    let by_hand_after_exits = release::by_hand_after_exits(effort.releases);
    progress("the steps of an end");
    let ending = ending::steps(runtimes[0], effort.releases);
    progress("whole pods, and by hand");
    let whole_pods = chain::whole_pods(runtimes[0], effort.releases);
    let measured = report::Measured {
        runs,
        execs,
        crowd,
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
