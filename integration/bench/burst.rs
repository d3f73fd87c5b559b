//! Starts many pods at once, as fast as containerd accepts them, and measures the time until all of
//! them run.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use super::LASTING;
use super::harness::{ContainerSpec, Containerd};
use super::idle::CONTAINERS;
use super::walltime::quiet_host;

/// Number of concurrent clients: enough to keep all cores of a small machine busy.
pub const CLIENTS: usize = 8;

/// For each runtime, starts `pods` pods of [`CONTAINERS`] containers, and returns the seconds until
/// all of them run.
pub fn measure(runtimes: [&str; 2], pods: usize) -> [f64; 2] {
    runtimes.map(|runtime| start(&quiet_host(), runtime, pods))
}

/// Starts `pods` pods, and returns the seconds until all of them run.
pub fn start(host: &Containerd, runtime: &str, pods: usize) -> f64 {
    // kubelet does the same: it creates several pods at once, and the containers of each pod one
    // after another.
    each_pod(pods, |pod| {
        for container in 0..CONTAINERS {
            let id = format!("pod-{pod}-{container}");
            let spec = ContainerSpec::new(&id).runtime(runtime);
            let spec = spec.args(LASTING);
            host.run(&spec.in_pod(&format!("pod-{pod}"), &id));
        }
    })
}

/// Calls `work` once for each pod, with several calls at the same time. Returns the seconds until
/// all calls have returned.
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
