//! Clients that may only look at a pod: they look as often as they like, and root gets its answers.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::neighbours::{control_socket, usher};
use super::stage::villain;
use crate::harness::{Background, Containerd, PATIENCE, eventually, run, scaled, shim_dir};
use crate::pod::Pod;

/// An app that is held until its sidecar is ready, which it never is.
const HELD: Pod = Pod(&[
    ("usher/sidecars", "proxy"),
    ("usher/apps", "web"),
    ("usher/start-mode", "Hold"),
    // Seldom, so that it costs nothing while the shim is measured.
    (
        "startup-probe.usher/proxy",
        r#"{"tcpSocket":{"port":1},"periodSeconds":1000,"failureThreshold":100}"#,
    ),
]);

/// The CPU time of the shim is measured for so long.
const WHILE: Duration = Duration::from_secs(4);

/// What read-only clients may cost of a core.
const SHARE: f64 = 0.05;

/// A process with root's number and none of its rights, as in the container that `kubectl usher` asks by.
fn without_rights(host: &Containerd, program: &Path, words: &[&str]) -> Background {
    let mut command = Command::new("setpriv");
    command.args(["--regid", "65534", "--clear-groups"]);
    command.args(["--bounding-set", "-all", "--inh-caps", "-all"]);
    command.arg(program).args(words);
    host.enter(&mut command);
    Background::spawn(command)
}

/// The CPU time that a process has taken, in all its threads.
fn cpu_time(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process");
    let (_, fields) = stat.rsplit_once(')').expect("its name");
    // User and system time, in hundredths of a second: fields 14 and 15 of all.
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks = ticks.map(|field| field.parse::<u64>().expect("a number"));
    Duration::from_millis(10 * ticks.sum::<u64>())
}

fn cpu_rate(pid: u32) -> f64 {
    let (before, begun) = (cpu_time(pid), Instant::now());
    std::thread::sleep(WHILE);
    let used = cpu_time(pid) - before;
    used.as_secs_f64() / begun.elapsed().as_secs_f64()
}

/// How long root takes to ask, the median of twenty times: the machine may be busy with something else now
/// and then.
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
fn read_only_clients_keep_root_out_of_nothing_and_cost_a_twentieth_of_a_core() {
    let host = Containerd::start();
    host.run(&HELD.witness("web", &[]));
    host.run(&HELD.witness("proxy", &[]));
    host.await_event("proxy", "start");
    let shim = host.shim("proxy").pid;
    let usual = ask_as_root(&host);
    let program = shim_dir().join("usher");
    let watching: Vec<_> = (0..8)
        .map(|_| without_rights(&host, &program, &["ps", "--watch"]))
        .collect();
    let count = |of: &dyn Fn(&Background) -> bool| watching.iter().filter(|one| of(one)).count();
    eventually(
        "those watch that may, and the others are told",
        PATIENCE,
        || {
            let watch = count(&|one| one.stdout().contains("pod1"));
            watch > 0 && watch + count(&|one| one.stderr().contains("too many ask")) >= 8
        },
    );
    let socket = control_socket(&host);
    let words = ["knock", socket.to_str().expect("a path of ours")];
    let knocking: Vec<_> = (0..2)
        .map(|_| without_rights(&host, villain(), &words))
        .collect();
    // What they may spend ahead is spent.
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
