//! Delays in the start of a pod whose containers run one after another. All are created first, and
//! the shim holds each of them until its predecessor has exited, started or become ready. Also the
//! time to start a whole pod under our shim, compared with the same containers under containerd's
//! own shim.

use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::figures::Figures;
use super::harness::{ContainerSpec, Containerd, REFERENCE};
use super::walltime::quiet_host;

/// The measured pod's containers, each with its successor and the event that lets the successor
/// run. A sidecar without a probe has started once its program runs.
const CHAIN: [Link; 4] = [
    Link("the exit of an init container", "the next one", "exit"),
    Link("the exit of an init container", "a sidecar", "exit"),
    Link(
        "the first line of a sidecar without probe",
        "the next one",
        "start",
    ),
    Link(
        "a sidecar that gets ready, probed each 100 ms",
        "an app",
        "ready",
    ),
];
const NAMES: [&str; 5] = ["setup", "migrate", "net", "mesh", "app"];
const PROBE: &str =
    r#"{"tcpSocket":{"port":8080},"periodMilliseconds":100,"failureThreshold":1000}"#;

/// A container, its successor, and the container's event that lets the successor run.
pub struct Link(pub &'static str, pub &'static str, pub &'static str);

/// Milliseconds between the two containers of each [`Link`]: from the first container's event to
/// the first line of code of the second container's program.
pub fn stages(runtime: &str, repetitions: usize) -> Vec<(Link, Figures)> {
    let host = quiet_host();
    let runs: Vec<[f64; 4]> = (0..repetitions).map(|n| run(&host, runtime, n)).collect();
    let figures = |position: usize| runs.iter().map(|run| run[position]).collect();
    let stages = CHAIN.into_iter().enumerate();
    stages
        .map(|(position, link)| (link, figures(position)))
        .collect()
}

/// Creates the containers in reverse order, so that the shim already holds all others when the
/// first one runs.
fn run(host: &Containerd, runtime: &str, n: usize) -> [f64; 4] {
    let names = NAMES.map(|name| format!("{name}-{n}"));
    let [setup, migrate, net, mesh, app] = &names;
    let options: [&[&str]; 5] = [
        // The first init container runs for longer than the last `ctr run` takes.
        &["--run-for", "300ms"],
        &["--run-for", "50ms"],
        &[],
        &["--listen", "8080", "--ready-after", "150ms"],
        &[],
    ];
    for (name, options) in names.iter().zip(options).rev() {
        let spec = ContainerSpec::new(name).runtime(runtime);
        let spec = spec.in_pod(&format!("pod-{n}"), name);
        let spec = spec
            .annotation("usher/init", &format!("{setup} {migrate}"))
            .annotation("usher/sidecars", &format!("{net} {mesh}"))
            .annotation("usher/startup-order", &names[..4].join(" "))
            .annotation(&format!("startup-probe.usher/{mesh}"), PROBE)
            .annotation("usher/start-mode", "Hold");
        host.run(&spec.witness(options));
    }
    let record = host.await_event(app, "start");
    end(host, &names);
    let mut took = [0.0; 4];
    for (position, Link(_, _, over)) in CHAIN.iter().enumerate() {
        let (from, to) = (&names[position], &names[position + 1]);
        // Without a probe both programs start at the same time. The second program may be the first
        // to record its start, so the result may be negative.
        took[position] = (record.at(to, "start") as f64 - record.at(from, over) as f64) / 1e6;
    }
    took
}

/// Milliseconds from the first command to the last app's first line of code, in a pod of two init
/// containers, three sidecars and two apps. The containers are created one after another.
///
/// Our shim orders the containers itself. Under containerd's own shim, the bench waits for the exit
/// of each init container before it creates the next container.
pub fn whole_pods(runtime: &str, pairs: usize) -> [Figures; 2] {
    let host = quiet_host();
    let mut times = [Vec::new(), Vec::new()];
    for pair in 0..=pairs {
        for turn in 0..2 {
            // The runtimes take turns at being first, so that neither always follows the other.
            let which = (pair + turn) % 2;
            let took = match which {
                0 => whole_pod(&host, runtime, &format!("pod-{pair}")),
                _ => whole_pod(&host, REFERENCE, &format!("by-hand-{pair}")),
            };
            // The first pair only fills the page cache.
            if pair > 0 {
                times[which].push(took);
            }
        }
    }
    times.map(Figures::from_iter)
}

fn whole_pod(host: &Containerd, runtime: &str, pod: &str) -> f64 {
    let names = ["setup", "migrate", "net", "mesh", "logs", "web", "api"]
        .map(|name| format!("{pod}-{name}"));
    let (inits, others) = names.split_at(2);
    let by_hand = runtime == REFERENCE;
    let spec = |name: &str| {
        let spec = ContainerSpec::new(name).runtime(runtime).in_pod(pod, name);
        match by_hand {
            true => spec,
            false => spec
                .annotation("usher/init", &inits.join(" "))
                .annotation("usher/sidecars", &others[..3].join(" ")),
        }
    };
    let begin = SystemTime::now().duration_since(UNIX_EPOCH);
    let begin = begin.expect("a clock after 1970").as_nanos() as u64;
    for name in inits {
        host.run(&spec(name).witness(&["--run-for", "20ms"]));
        while by_hand && !host.record().has(name, "exit") {
            sleep(Duration::from_millis(1));
        }
    }
    for name in others {
        host.run(&spec(name).witness(&[]));
    }
    let record = host.await_record("both apps run", |record| {
        others[3..].iter().all(|app| record.has(app, "start"))
    });
    let last = others[3..].iter().map(|app| record.at(app, "start")).max();
    end(host, &names);
    (last.unwrap_or(begin) - begin) as f64 / 1e6
}

fn end(host: &Containerd, names: &[String]) {
    host.delete_all();
    let record = host.record();
    assert!(
        names.iter().all(|name| record.has(name, "start")),
        "{record}"
    );
}
