//! Start and termination times of the same pod, once with native sidecars on plain runc and once
//! with usher's sidecars.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cluster::{Cluster, PATIENCE};
use crate::harness::run;
use crate::pod::{Case, Pod, with, witness};

/// Number of measurements for each variant of the pod. Each round measures every variant once, so
/// that other load on the machine affects all variants.
const ROUNDS: usize = 7;
/// A pause of more than two sync periods of kubelet.
const SETTLED: Duration = Duration::from_secs(4);
const SIDECARS: [&str; 3] = ["one", "two", "three"];

/// A variant of the pod, with its measured times.
struct Way {
    title: &'static str,
    pod: Pod,
    starts: Vec<Duration>,
    ends: Vec<Duration>,
}

/// Measures every variant of the pod, and prints the times as Markdown.
pub fn print(cluster: &Cluster) {
    assert!(
        cluster.programs.has_native_sidecars(),
        "Kubernetes {:?} has no sidecars of its own, expected 1.29 or later",
        cluster.programs.version
    );
    let way = |title, pod| Way {
        title,
        pod,
        starts: Vec::new(),
        ends: Vec::new(),
    };
    let mut ways = [
        way("native sidecars, runc.v2", native(false)),
        way("the same with startup probes", native(true)),
        way("usher's sidecars", ushers(false)),
        way("the same with startup probes", ushers(true)),
    ];
    for round in 0..ROUNDS {
        for (n, way) in ways.iter_mut().enumerate() {
            let case = Case::new(cluster, &format!("figures-{n}-{round}"));
            measure(&case, way);
        }
    }
    println!("| 3 sidecars and an app | sandbox to app started | deletion to gone |");
    println!("|---|---|---|");
    for way in ways {
        let (starts, ends) = (summary(way.starts), summary(way.ends));
        println!("| {} | {starts} | {ends} |", way.title);
    }
}

fn measure(case: &Case, way: &mut Way) {
    case.create(&way.pod);
    let record = case.await_event("app", "start");
    case.await_ready("pod");
    let sandbox = sandbox_created(case, "pod");
    let begun = record.at("app", "start");
    way.starts
        .push(Duration::from_nanos(begun.saturating_sub(sandbox)));
    // kubelet looks at a pod within a second after the pod's start. An earlier deletion would be
    // delayed until then.
    std::thread::sleep(SETTLED);
    let asked = Instant::now();
    // The command returns when the pod is deleted.
    case.kubectl(&["delete", "pod", "pod"]);
    way.ends.push(asked.elapsed());
    let record = case.record();
    for name in SIDECARS {
        record.assert_before((name, "start"), ("app", "start"));
        record.assert_before(("app", "exit"), (name, "signal"));
    }
}

/// The creation time of a pod's sandbox in containerd, in nanoseconds since 1970.
pub fn sandbox_created(case: &Case, pod: &str) -> u64 {
    let filter = format!(
        "labels.\"io.cri-containerd.kind\"==sandbox,labels.\"io.kubernetes.pod.namespace\"=={},\
         labels.\"io.kubernetes.pod.name\"=={pod}",
        case.namespace
    );
    let ask = |words: &[&str]| {
        let words = case.cluster.ctr(words);
        run(case.cluster.on_node(&words), PATIENCE).out()
    };
    let id = ask(&["containers", "ls", "--quiet", &filter]);
    let info: Value = serde_json::from_str(&ask(&["containers", "info", id.trim()])).expect("JSON");
    let created = info["CreatedAt"].as_str().expect("a time");
    let mut date = Command::new("date");
    date.args(["+%s%N", "--date", created]);
    run(date, PATIENCE)
        .out()
        .trim()
        .parse()
        .expect("nanoseconds")
}

/// A pod with native sidecars. Each sidecar starts after the previous one has started. The sidecars
/// end in reverse order.
fn native(probed: bool) -> Pod {
    let mut pod = Pod::new("pod").spec("runtimeClassName", Value::Null);
    for name in SIDECARS {
        let mut fields = json!({ "restartPolicy": "Always" });
        if probed {
            fields["startupProbe"] = json!({
                "exec": { "command": ["test", "-e", format!("/shared/ready-{name}")] },
                "periodSeconds": 1, "failureThreshold": 100,
            });
        }
        pod = pod.init_container(with(sidecar(name), fields));
    }
    pod.container(witness("app", &[]))
}

fn ushers(probed: bool) -> Pod {
    let order = SIDECARS.join(", ");
    let mut pod = Pod::new("pod")
        .annotation("usher/sidecars", &*order)
        .annotation("usher/startup-order", &*order)
        .annotation("usher/apps", "app");
    for name in SIDECARS {
        if probed {
            pod = pod.probed(name);
        }
        pod = pod.container(sidecar(name));
    }
    pod.container(witness("app", &[]))
}

fn sidecar(name: &str) -> Value {
    witness(name, &["--ready-after", "100ms"])
}

/// Formats times like `0.33 s (0.24 … 0.46)`: the median, the shortest and the longest.
pub fn summary(mut times: Vec<Duration>) -> String {
    times.sort();
    let seconds = |n: usize| times.get(n).copied().unwrap_or_default().as_secs_f64();
    let last = times.len().saturating_sub(1);
    format!(
        "{:.2} s ({:.2} … {:.2})",
        seconds(last / 2),
        seconds(0),
        seconds(last)
    )
}
