//! Read-only clients cannot delay the requests of root, however many requests they send.

use std::time::{Duration, Instant};

use super::stage::attacker;
use crate::control::usher;
use crate::harness::{
    Background, Containerd, PATIENCE, eventually, processor_time, run, scaled, shim_dir,
};
use crate::pod::Pod;

/// An app held for a sidecar that is never ready.
const HELD: Pod = Pod(&[
    ("usher/sidecars", "proxy"),
    ("usher/apps", "web"),
    ("usher/start-mode", "Hold"),
    // A period so long that the probe does not disturb the measurement.
    (
        "startup-probe.usher/proxy",
        r#"{"tcpSocket":{"port":1},"periodSeconds":1000,"failureThreshold":100}"#,
    ),
]);

/// Duration of the measurement of the shim's CPU time.
const WHILE: Duration = Duration::from_secs(4);

/// Share of a CPU that the requests of read-only clients may cost.
const SHARE: f64 = 0.05;

fn cpu_rate(pid: u32) -> f64 {
    let (before, begun) = (processor_time(&pid), Instant::now());
    std::thread::sleep(WHILE);
    let used = processor_time(&pid) - before;
    used / begun.elapsed().as_secs_f64()
}

/// The time until a request by root is answered: the median of twenty requests, because the machine
/// may be busy at times.
#[track_caller]
fn ask_as_root(host: &Containerd) -> Duration {
    let mut took = [0; 20].map(|_| {
        let begun = Instant::now();
        let listed = run(usher(host, &["ps"]), PATIENCE);
        assert!(listed.ok() && listed.out().contains("pod1"), "{listed:?}");
        begun.elapsed()
    });
    took.sort();
    took[took.len() / 2]
}

#[test]
fn read_only_clients_never_block_root_and_cost_at_most_a_twentieth_of_a_core() {
    let host = Containerd::start();
    host.run(&HELD.witness("web", &[]));
    host.run(&HELD.witness("proxy", &[]));
    host.await_event("proxy", "start");
    let shim = host.shim("proxy").pid;
    let usual = ask_as_root(&host);
    let program = shim_dir().join("usher");
    let watching: Vec<_> = (0..8)
        .map(|_| Background::spawn(host.without_rights(&program, &["ps", "--watch"])))
        .collect();
    let count = |of: &dyn Fn(&Background) -> bool| watching.iter().filter(|one| of(one)).count();
    eventually(
        "those watch that may, and the others are told",
        PATIENCE,
        || {
            let watch = count(&|one| one.stdout().contains("pod1"));
            watch > 0 && watch + count(&|one| one.stderr().contains("too many requests")) >= 8
        },
    );
    let socket = host.control_sockets().remove(0);
    let words = ["connect", socket.to_str().expect("a path of ours")];
    let knocking: Vec<_> = (0..2)
        .map(|_| Background::spawn(host.without_rights(attacker(), &words)))
        .collect();
    // Wait until the clients have used up their initial allowance of CPU time.
    std::thread::sleep(Duration::from_secs(1));
    let rate = cpu_rate(shim);
    eprintln!("{rate:.3} of a core");
    let took = ask_as_root(&host);
    eprintln!("root takes {took:?}, usually {usual:?}");
    assert!(rate <= SHARE, "{rate:.3} of a core");
    assert!(
        took < 2 * usual + scaled(Duration::from_millis(300)),
        "{took:?} {usual:?}"
    );

    let roots = Background::spawn(usher(&host, &["ps", "--watch"]));
    eventually("root watches", PATIENCE, || roots.stdout().contains("pod1"));
    let released = run(usher(&host, &["release", "pod1", "web"]), PATIENCE);
    assert!(released.ok(), "{released:?}");
    host.await_event("web", "start");
    let begun = Instant::now();
    let stopped = run(usher(&host, &["stop", "--all"]), PATIENCE);
    assert!(stopped.ok(), "{stopped:?}");
    assert_eq!(stopped.err(), "", "nothing had to be asked again");
    let took = begun.elapsed();
    assert!(took < scaled(Duration::from_secs(3)), "{took:?}");
    eventually("root sees the end", PATIENCE, || {
        roots.stdout().contains("Stopped")
    });
    drop((watching, knocking));
}
