//! Many pods at once: how long until all of them run, as fast as containerd takes them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use super::harness::{ContainerSpec, Containerd, Settings};
use super::idle::CONTAINERS;

/// So many clients at once leave no core of a small machine without work.
const CLIENTS: usize = 8;

/// Seconds until `pods` pods of [`CONTAINERS`] containers run, of each runtime.
pub fn measure(runtimes: [&str; 2], pods: usize) -> [f64; 2] {
    runtimes.map(|runtime| {
        let host = Containerd::start_with(&Settings {
            log_level: "info",
            ..Settings::default()
        });
        let next = AtomicUsize::new(0);
        let begin = Instant::now();
        thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| {
                    loop {
                        // As kubelet does: a pod's containers one after another, pods side by side.
                        let pod = next.fetch_add(1, Ordering::Relaxed);
                        if pod >= pods {
                            return;
                        }
                        (0..CONTAINERS).for_each(|container| start(&host, runtime, pod, container));
                    }
                });
            }
        });
        begin.elapsed().as_secs_f64()
    })
}

fn start(host: &Containerd, runtime: &str, pod: usize, container: usize) {
    let id = format!("pod-{pod}-{container}");
    let spec = ContainerSpec::new(&id).runtime(runtime);
    host.run(
        &spec
            .args(&["/bin/sleep", "100000"])
            .in_pod(&format!("pod-{pod}"), &id),
    );
}
