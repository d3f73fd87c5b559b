//! Starts many pods at once, as fast as containerd accepts them, and measures the time until all of
//! them run.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use super::LASTING;
use super::harness::{ContainerSpec, Containerd};
use super::idle::CONTAINERS;
use super::walltime::quiet_host;

/// Concurrent clients: enough to leave no core of a small machine idle.
pub const CLIENTS: usize = 8;

/// Seconds until `pods` pods of [`CONTAINERS`] containers run, for each runtime.
pub fn measure(runtimes: [&str; 2], pods: usize) -> [f64; 2] {
    runtimes.map(|runtime| start(&quiet_host(), runtime, pods))
}

/// Seconds until this many pods run.
pub fn start(host: &Containerd, runtime: &str, pods: usize) -> f64 {
    // kubelet also creates the containers of a pod one after another, and several pods at once.
    each_pod(pods, |pod| {
        for container in 0..CONTAINERS {
            let id = format!("pod-{pod}-{container}");
            let spec = ContainerSpec::new(&id).runtime(runtime);
            let spec = spec.args(LASTING);
            host.run(&spec.in_pod(&format!("pod-{pod}"), &id));
        }
    })
}

/// Seconds until `work` was done with each of `pods` pods, several at a time.
pub fn each_pod(pods: usize, work: impl Fn(usize) + Sync) -> f64 {
    let next = AtomicUsize::new(0);
    let begin = Instant::now();
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                loop {
                    let pod = next.fetch_add(1, Ordering::Relaxed);
                    if pod >= pods {
                        return;
                    }
                    work(pod);
                }
            });
        }
    });
    begin.elapsed().as_secs_f64()
}
