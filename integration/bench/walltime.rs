//! How long `ctr run --rm` and `ctr task exec` take for a program that ends at once.

use std::process::{Command, Stdio};
use std::time::Instant;

use super::figures::Figures;
use super::harness::{ContainerSpec, Containerd, Settings};

const PROGRAM: &str = "/bin/true";

/// Milliseconds of `ctr run --rm`, of each runtime.
pub fn run(runtimes: [&str; 2], pairs: usize) -> [Figures; 2] {
    let host = quiet_host();
    side_by_side(pairs, |which, id| {
        let spec = ContainerSpec::new(id).runtime(runtimes[which]);
        let fifo_dir = host.dir().join("fifo").display().to_string();
        spec.args(&[PROGRAM])
            .ctr_command(&host, &["run", "--rm", "--fifo-dir", &fifo_dir])
    })
}

/// Milliseconds of `ctr task exec` into a container of each runtime.
pub fn exec(runtimes: [&str; 2], pairs: usize) -> [Figures; 2] {
    let host = quiet_host();
    let containers = ["container-0", "container-1"];
    for (id, runtime) in containers.iter().zip(runtimes) {
        let spec = ContainerSpec::new(id).runtime(runtime);
        host.run(&spec.args(&["/bin/sleep", "100000"]));
    }
    side_by_side(pairs, |which, id| {
        let fifo_dir = host.dir().join("fifo").display().to_string();
        let exec = ["tasks", "exec", "--fifo-dir", &fifo_dir, "--exec-id", id];
        host.ctr_command(&[&exec[..], &[containers[which], PROGRAM]].concat())
    })
}

/// Neither shim logs more than on a node.
fn quiet_host() -> Containerd {
    Containerd::start_with(&Settings {
        log_level: "info",
        ..Settings::default()
    })
}

/// Milliseconds of the commands that are made for either of two runtimes and a new id.
fn side_by_side(pairs: usize, make: impl Fn(usize, &str) -> Command) -> [Figures; 2] {
    let once = |which: usize, id: &str| {
        let mut command = make(which, id);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let begin = Instant::now();
        let status = command.status().expect("ctr");
        let milliseconds = begin.elapsed().as_secs_f64() * 1e3;
        assert!(status.success(), "{command:?}: {status}");
        milliseconds
    };
    for which in 0..2 {
        // The first fills the page cache.
        once(which, &format!("warm-up-{which}"));
    }
    let mut times = [Vec::new(), Vec::new()];
    for pair in 0..pairs {
        // Who comes first changes, so that neither always runs in the other's wake.
        for turn in 0..2 {
            let which = (pair + turn) % 2;
            times[which].push(once(which, &format!("pair-{pair}-{which}")));
        }
    }
    times.map(Figures::from_iter)
}
