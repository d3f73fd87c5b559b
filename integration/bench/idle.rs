//! Costs of an idle pod's shim: memory, threads, wake-ups.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use super::harness::{ContainerSpec, Containerd, number_of, proportional_memory};
use super::walltime::quiet_host;
use super::{Effort, LASTING};

pub const CONTAINERS: usize = 5;

/// Costs of idle pods under one runtime.
pub struct Pods {
    /// Proportional memory in MB of a shim whose pod runs alone.
    pub alone: f64,
    /// Proportional memory in MB of all shims, divided by the number of pods, while many pods run.
    pub together: f64,
    pub threads: usize,
    /// Voluntary context switches of the first pod's shim while it is idle.
    pub switches: u64,
}

pub fn measure(runtime: &str, effort: &Effort) -> Pods {
    let host = quiet_host();
    start_pod(&host, runtime, 0);
    let shims = settled_shims(&host, 1);
    let alone = proportional_memory(&shims);
    let threads = tasks(shims[0]).len();
    let before = switches(shims[0]);
    sleep(effort.idle);
    let switches = switches(shims[0]) - before;
    for pod in 1..effort.pods {
        start_pod(&host, runtime, pod);
    }
    let together = proportional_memory(&settled_shims(&host, effort.pods)) / effort.pods as f64;
    Pods {
        alone,
        together,
        threads,
        switches,
    }
}

fn start_pod(host: &Containerd, runtime: &str, pod: usize) {
    for container in 0..CONTAINERS {
        let id = format!("pod-{pod}-{container}");
        let spec = ContainerSpec::new(&id).runtime(runtime).args(LASTING);
        host.run(&spec.in_pod(&format!("pod-{pod}"), &id));
    }
}

/// Waits two seconds, until the shims are idle, and returns their process ids.
pub fn settled_shims(host: &Containerd, pods: usize) -> Vec<u32> {
    sleep(Duration::from_secs(2));
    let shims = host.shims();
    assert_eq!(shims.len(), pods, "one shim a pod");
    shims
}

fn tasks(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("a running shim");
    tasks
        .flatten()
        .map(|task| task.path().display().to_string())
        .collect()
}

fn switches(pid: u32) -> u64 {
    let of_task = |task: &String| {
        let status = fs::read_to_string(format!("{task}/status")).unwrap_or_default();
        number_of(&status, "voluntary_ctxt_switches:")
    };
    tasks(pid).iter().map(of_task).sum()
}
