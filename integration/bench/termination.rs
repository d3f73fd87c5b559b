//! Delays between the steps of a pod's termination. A delay begins with the exit of a step's last
//! process, as the process records it. It ends with the signal or the first line of code of the
//! next step's process.

use super::figures::Figures;
use super::harness::{ContainerSpec, Containerd, Settings};

/// The measured transitions from one step of the termination to the next.
const STEPS: [Step; 5] = [
    Step("a defer container", "the next one", "start"),
    Step("a pre-exit container", "the app", "signal"),
    Step("the app", "a post-exit container", "start"),
    Step("a post-exit container", "a sidecar", "signal"),
    Step("a sidecar", "the next one", "signal"),
];
const NAMES: [&str; 6] = ["first", "second", "app", "last", "mesh", "net"];

/// A transition from one step to the next: the container that exits, its successor, and the
/// successor's event that ends the delay.
pub struct Step(pub &'static str, pub &'static str, pub &'static str);

/// Milliseconds from the end of a step to the beginning of the next.
pub fn steps(runtime: &str, repetitions: usize) -> Vec<(Step, Figures)> {
    let host = Containerd::start_with(&Settings {
        log_level: "info",
        ..Settings::default()
    });
    let runs: Vec<[f64; 5]> = (0..repetitions).map(|n| run(&host, runtime, n)).collect();
    let steps = STEPS.into_iter().enumerate();
    steps
        .map(|(position, step)| (step, runs.iter().map(|run| run[position]).collect()))
        .collect()
}

fn run(host: &Containerd, runtime: &str, n: usize) -> [f64; 5] {
    let names = NAMES.map(|name| format!("{name}-{n}"));
    let [first, second, app, last, mesh, net] = &names;
    // A defer container runs for longer than the clients need to send the stop requests.
    let defer: &[&str] = &["--run-for", "300ms"];
    let containers = [net, mesh, app, first, second, last];
    for name in containers {
        let spec = ContainerSpec::new(name).runtime(runtime);
        let spec = spec.in_pod(&format!("ending-{n}"), name);
        let spec = spec
            .annotation("usher/sidecars", &format!("{net} {mesh}"))
            .annotation("usher/startup-order", &format!("{net} {mesh}"))
            .annotation("usher/pre-exit", &format!("{first} {second}"))
            .annotation("usher/post-exit", last);
        let is_defer = [first, second, last].contains(&name);
        host.run(&spec.witness(if is_defer { defer } else { &[] }));
    }
    host.await_event(app, "start");
    host.kill_all(&containers.map(String::as_str), "SIGTERM");
    let record = host.await_event(net, "exit");
    host.delete_all();
    let mut took = [0.0; 5];
    for (position, Step(_, _, begins)) in STEPS.iter().enumerate() {
        let (from, to) = (&names[position], &names[position + 1]);
        took[position] = (record.at(to, begins) as f64 - record.at(from, "exit") as f64) / 1e6;
    }
    took
}
