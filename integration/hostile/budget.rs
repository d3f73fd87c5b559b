//! The CPU time that a shim spends for a pod is bounded, even with the most frequent probes. Probe
//! attempts that hang do not delay the pod's termination.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::harness::{Containerd, PATIENCE, PodCgroup, annotate, eventually, on_v2};
use crate::pod::Pod;

const NAMES: [&str; 3] = ["one", "two", "three"];

const UID: &str = "7c0f-14";
const POD: &str = "pod7c0f-14";

/// Duration of a measurement.
const WHILE: Duration = Duration::from_secs(20);

/// Three sidecars that are never ready, with an exec probe each millisecond.
const GREEDY: &[(&str, &str)] = &[
    ("usher/sidecars", "one two three"),
    ("usher/start-mode", "Hold"),
    (
        "startup-probe.usher/one",
        r#"{"exec":{"command":["/bin/sh","-c","echo x >> /shared/asked-one; false"]},"periodMilliseconds":1,"failureThreshold":1000000}"#,
    ),
    (
        "startup-probe.usher/two",
        r#"{"exec":{"command":["/bin/sh","-c","echo x >> /shared/asked-two; false"]},"periodMilliseconds":1,"failureThreshold":1000000}"#,
    ),
    (
        "startup-probe.usher/three",
        r#"{"exec":{"command":["/bin/sh","-c","echo x >> /shared/asked-three; false"]},"periodMilliseconds":1,"failureThreshold":1000000}"#,
    ),
];

/// The same sidecars, but each probe connects to a closed port.
const KNOCKING: &[(&str, &str)] = &[
    ("usher/sidecars", "one two three"),
    ("usher/start-mode", "Hold"),
    ("startup-probe.usher/one", CONNECT),
    ("startup-probe.usher/two", CONNECT),
    ("startup-probe.usher/three", CONNECT),
];

const CONNECT: &str =
    r#"{"tcpSocket":{"port":1},"periodMilliseconds":1,"failureThreshold":1000000}"#;

/// CPU time of a cgroup and of all cgroups below it.
fn cpu_time(directory: &Path) -> Duration {
    let read = |file| fs::read_to_string(directory.join(file)).expect("the cgroup's CPU time");
    match on_v2() {
        true => {
            let text = read("cpu.stat");
            let usage = text
                .lines()
                .find_map(|line| line.strip_prefix("usage_usec "));
            Duration::from_micros(usage.expect("the CPU usage").parse().expect("a number"))
        }
        false => Duration::from_nanos(read("cpuacct.usage").trim().parse().expect("a number")),
    }
}

/// A cgroup that contains containerd, its shims, and everything that they start outside of the
/// containers.
struct Outside(PathBuf);

impl Outside {
    fn of(host: &Containerd) -> Outside {
        let root = match on_v2() {
            true => "/sys/fs/cgroup",
            false => "/sys/fs/cgroup/cpuacct",
        };
        let directory = Path::new(root).join(format!("{}-outside", host.namespace));
        fs::create_dir(&directory).expect("a cgroup");
        let pid = host.pid().expect("a containerd").to_string();
        fs::write(directory.join("cgroup.procs"), pid).expect("containerd in it");
        Outside(directory)
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        eventually("nothing is left in the cgroup", PATIENCE, || {
            fs::remove_dir(&self.0).is_ok()
        });
    }
}

/// The number of times that each container's probe has run.
fn asked(host: &Containerd) -> [usize; 3] {
    NAMES.map(|name| {
        let file = host.shared_dir().join(format!("asked-{name}"));
        fs::read_to_string(file).unwrap_or_default().lines().count()
    })
}

fn run(pod: &PodCgroup<'_>, annotations: &[(&str, &str)]) {
    for name in NAMES {
        pod.run(name, &["/bin/sleep", "1000"], |config| {
            annotate(config, annotations);
            annotate(config, &[("io.kubernetes.cri.sandbox-uid", UID)]);
        });
    }
}

fn run_greedy(pod: &PodCgroup<'_>, host: &Containerd) {
    run(pod, GREEDY);
    eventually("every sidecar has been probed", PATIENCE, || {
        asked(host).iter().all(|times| *times > 0)
    });
    // Wait until the probes have used up their initial allowance of CPU time.
    std::thread::sleep(Duration::from_secs(3));
}

/// CPU time used outside of the pod, in seconds per second, and the number of probes of each
/// container.
fn measure(outside: &Outside, host: &Containerd) -> (f64, [usize; 3]) {
    let (before, asked_before, begun) = (cpu_time(&outside.0), asked(host), Instant::now());
    std::thread::sleep(WHILE);
    let used = cpu_time(&outside.0) - before;
    let share = used.as_secs_f64() / begun.elapsed().as_secs_f64();
    let mut times = asked(host);
    for (times, before) in times.iter_mut().zip(asked_before) {
        *times -= before;
    }
    eprintln!("outside of the pod: {share:.3} of a core, asked {times:?} times");
    (share, times)
}

#[test]
fn exec_probes_every_millisecond_take_at_most_a_tenth_of_a_core_in_turns() {
    let outside;
    let host = Containerd::start();
    outside = Outside::of(&host);
    // The name of this cgroup is not the name of a pod's cgroup. So the commands of probes run in
    // the shim's cgroup, outside of the pod.
    let pod = PodCgroup::new(&host, "some");
    run_greedy(&pod, &host);
    let (share, times) = measure(&outside, &host);
    assert!(share <= 0.11, "{share}");
    let (least, most) = (times.iter().min(), times.iter().max());
    let (least, most) = (*least.expect("one"), *most.expect("one"));
    assert!(least > 0 && most <= 2 * least + 2, "{times:?}");
    let log = host.log_tail(usize::MAX / 2);
    let said = log
        .matches("the pod's probes need more CPU time than they may use")
        .count();
    assert_eq!(said, 1, "the log says it once");
    drop(pod);
}

#[test]
fn tcp_probes_every_millisecond_take_at_most_a_tenth_of_a_core() {
    let outside;
    let host = Containerd::start();
    outside = Outside::of(&host);
    let pod = PodCgroup::new(&host, "some");
    run(&pod, KNOCKING);
    std::thread::sleep(Duration::from_secs(4));
    let (share, _) = measure(&outside, &host);
    assert!(share <= 0.11, "{share}");
    drop(pod);
}

#[test]
fn probe_commands_run_in_the_pods_cgroup_if_it_has_the_pods_name() {
    let outside;
    let host = Containerd::start();
    outside = Outside::of(&host);
    let pod = PodCgroup::new(&host, POD);
    run_greedy(&pod, &host);
    let inside = || {
        let directory = pod.directory("cpuacct");
        let containers: Duration = NAMES
            .map(|name| cpu_time(&directory.join(name)))
            .iter()
            .sum();
        cpu_time(&directory).saturating_sub(containers)
    };
    let before = inside();
    let (share, times) = measure(&outside, &host);
    let more = (inside() - before).as_secs_f64() / WHILE.as_secs_f64();
    eprintln!("in the pod, beside its containers: {more:.3} of a core");
    // The shim's share of the CPU time depends on the OCI runtime. With crun it is small, because
    // crun's commands are short.
    assert!(share <= 0.07, "{share}");
    assert!(more >= share / 2.0 && more <= 0.11, "{more} {share}");
    assert!(times.iter().all(|times| *times > 0), "{times:?}");
    let place = match on_v2() {
        true => pod.directory("").join("usher-commands"),
        false => pod.directory("cpu"),
    };
    for problem in host.delete_all() {
        eprintln!("{problem}");
    }
    eventually("no command is left in it", PATIENCE, || {
        fs::read_to_string(place.join("cgroup.procs")).unwrap_or_default() == ""
    });
    assert_eq!(on_v2(), !place.exists(), "{}", place.display());
    drop(pod);
}

#[test]
fn a_probe_attempt_that_hangs_extends_no_termination_beyond_its_bound() {
    let pod = Pod(&[
        ("usher/sidecars", "proxy"),
        ("usher/pre-exit", "before"),
        ("usher/essential", "lease"),
        ("usher/restart-policy", "Never"),
        ("usher/grace-period", "3s"),
        ("usher/grace-extension", r#"{"probe":true,"maxSeconds":1}"#),
        (
            "liveness-probe.usher/before",
            r#"{"exec":{"command":["/bin/sleep","100"]},"periodSeconds":1,"timeoutSeconds":60}"#,
        ),
    ]);
    let host = Containerd::start();
    host.run(&pod.witness("proxy", &[]));
    host.run(&pod.witness("before", &["--ignore-term"]));
    host.run(&pod.witness("lease", &["--run-for", "500ms", "--exit", "9"]));
    host.await_event("before", "start");
    // The sidecar gets its signal after six seconds: a grace period of 3 s, an extension of 1 s,
    // and 2 s until SIGKILL. If the shim waited for the timeout of the probe attempt, the signal
    // would come after a minute.
    host.await_record("the sidecar is told", |record| {
        record.has("proxy", "signal")
    });
    let record = host.record();
    assert!(record.has("before", "signal"), "{record}");
    let went_on = record.between(("before", "start"), ("proxy", "signal"));
    assert!(went_on >= Duration::from_secs(4), "{went_on:?}\n{record}");
    assert!(went_on <= Duration::from_secs(15), "{went_on:?}\n{record}");
}
