//! Times of `ctr run --rm` and `ctr task exec` for a program that exits at once.

use std::process::{Command, Stdio};
use std::time::Instant;

use super::LASTING;
use super::figures::Figures;
use super::harness::{ContainerSpec, Containerd, Settings, Version};

/// A program that exits at once.
pub const BRIEF: &[&str] = &["/bin/true"];

/// For each runtime, the milliseconds that `ctr run --rm` takes.
pub fn run(runtimes: [&str; 2], pairs: usize) -> [Figures; 2] {
    let host = quiet_host();
    let times = side_by_side(pairs, |which, id| {
        milliseconds(run_command(&host, runtimes[which], id))
    });
    times.map(Figures::from_iter)
}

/// For each runtime, the milliseconds that `ctr task exec` takes.
pub fn exec(runtimes: [&str; 2], pairs: usize) -> [Figures; 2] {
    let host = quiet_host();
    let containers = ["container-0", "container-1"];
    for (id, runtime) in containers.iter().zip(runtimes) {
        let spec = ContainerSpec::new(id).runtime(runtime);
        host.run(&spec.args(LASTING));
    }
    let times = side_by_side(pairs, |which, id| {
        milliseconds(exec_command(&host, containers[which], id))
    });
    times.map(Figures::from_iter)
}

/// A command that runs a container whose program exits at once, and then deletes the container.
pub fn run_command(host: &Containerd, runtime: &str, id: &str) -> Command {
    let fifo_dir = host.dir().join("fifo").display().to_string();
    let spec = ContainerSpec::new(id).runtime(runtime).args(BRIEF);
    spec.ctr_command(host, &["run", "--rm", "--fifo-dir", &fifo_dir])
}

/// A command that runs a program by an exec in a container. The program exits at once.
pub fn exec_command(host: &Containerd, container: &str, id: &str) -> Command {
    let fifo_dir = host.dir().join("fifo").display().to_string();
    let exec = ["tasks", "exec", "--fifo-dir", &fifo_dir, "--exec-id", id];
    host.ctr_command(&[&exec, &[container][..], BRIEF].concat())
}

/// A containerd whose shims log only as much as on a real node.
pub fn quiet_host() -> Containerd {
    let host = Containerd::start_with(&Settings {
        log_level: "info",
        ..Settings::default()
    });
    if Version::of_containerd() >= Version(2, 0) {
        // containerd's own shim leaves sockets behind if a pod has several containers.
        host.tolerate("/run/s/");
    }
    host
}

/// Measures both runtimes in turns, each time with a new id.
pub fn side_by_side<T>(pairs: usize, mut once: impl FnMut(usize, &str) -> T) -> [Vec<T>; 2] {
    for which in 0..2 {
        // The first run fills the page cache.
        once(which, &format!("warm-up-{which}"));
    }
    let mut measured = [Vec::new(), Vec::new()];
    for pair in 0..pairs {
        // The runtimes take turns at being first, so that neither always follows the other.
        for turn in 0..2 {
            let which = (pair + turn) % 2;
            measured[which].push(once(which, &format!("pair-{pair}-{which}")));
        }
    }
    measured
}

/// The time of a command in milliseconds.
pub fn milliseconds(mut command: Command) -> f64 {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let begin = Instant::now();
    let status = command.status().expect("ctr");
    let milliseconds = begin.elapsed().as_secs_f64() * 1e3;
    assert!(status.success(), "{command:?}: {status}");
    milliseconds
}
