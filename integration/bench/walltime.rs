//! How long `ctr run --rm` of a program takes that ends at once.

use std::process::Stdio;
use std::time::Instant;

use super::figures::Figures;
use super::harness::{ContainerSpec, Containerd, Settings};

/// Milliseconds, of each runtime.
pub fn measure(runtimes: [&str; 2], pairs: usize) -> [Figures; 2] {
    // Neither logs more than on a node.
    let host = Containerd::start_with(&Settings { log_level: "info" });
    for runtime in runtimes {
        // The first run fills the page cache.
        once(&host, runtime, "warm-up");
    }
    let mut times = [Vec::new(), Vec::new()];
    for pair in 0..pairs {
        // Who comes first changes, so that neither always runs in the other's wake.
        for turn in 0..2 {
            let which = (pair + turn) % 2;
            times[which].push(once(
                &host,
                runtimes[which],
                &format!("pair-{pair}-{which}"),
            ));
        }
    }
    times.map(Figures::from_iter)
}

fn once(host: &Containerd, runtime: &str, id: &str) -> f64 {
    let spec = ContainerSpec::new(id).runtime(runtime).args(&["/bin/true"]);
    let fifo_dir = host.dir().join("fifo").display().to_string();
    let mut command = spec.ctr_command(host, &["run", "--rm", "--fifo-dir", &fifo_dir]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let begin = Instant::now();
    let status = command.status().expect("ctr");
    let milliseconds = begin.elapsed().as_secs_f64() * 1e3;
    assert!(status.success(), "ctr run under {runtime}: {status}");
    milliseconds
}
