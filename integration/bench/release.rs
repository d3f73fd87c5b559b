//! Time from the start of the last sidecar to the first line of code of an app that had to wait for
//! it, compared with a minimum. The minimum is measured without a shim: the time from the opening
//! of runc's exec FIFO to the program's first line of code.

use std::fs::{self, File};
use std::io::Read;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::sys::prctl::set_child_subreaper;
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use super::figures::Figures;
use super::harness::{ContainerSpec, Containerd, OciRuntime, Settings, default_config};

const PROBE: &str =
    r#"{"tcpSocket":{"port":8080},"periodMilliseconds":100,"failureThreshold":1000}"#;

/// The sidecar for which the app waits.
#[derive(Clone, Copy)]
enum Sidecar {
    /// A sidecar without a probe.
    Plain,
    /// A sidecar that passes its first startup probe while containerd and its client still handle
    /// the answer to the sidecar's Start.
    Probed,
    /// A sidecar that fails its first startup probes. When a later probe succeeds, containerd and
    /// its client are idle.
    ProbedLater,
}

/// Times in milliseconds.
pub struct Releases {
    /// Time from the startup probe's connection, as the sidecar records it, until the app's first
    /// line of code. The first probe succeeds.
    pub after_probe: Figures,
    /// Time as in `after_probe`, but the first probes fail and a later probe succeeds.
    pub after_later_probe: Figures,
    /// From the first line of code of a sidecar without a probe to the app's first line of code.
    pub after_start: Figures,
    /// From the opening of runc's exec FIFO, without a shim, to the program's first line of code.
    pub bare: Figures,
}

pub fn measure(runtime: &str, repetitions: usize) -> Releases {
    let host = Containerd::start_with(&Settings {
        log_level: "info",
        ..Settings::default()
    });
    let (mut after_probe, mut after_later_probe) = (Vec::new(), Vec::new());
    let (mut after_start, mut bare) = (Vec::new(), Vec::new());
    let by_shim = |pod: &str, sidecar| by_shim(&host, runtime, pod, sidecar);
    for n in 0..repetitions {
        after_probe.push(by_shim(&format!("probed-{n}"), Sidecar::Probed));
        bare.push(by_hand(&host, n));
        after_later_probe.push(by_shim(&format!("later-{n}"), Sidecar::ProbedLater));
        after_start.push(by_shim(&format!("plain-{n}"), Sidecar::Plain));
    }
    Releases {
        after_probe: after_probe.into_iter().collect(),
        after_later_probe: after_later_probe.into_iter().collect(),
        after_start: after_start.into_iter().collect(),
        bare: bare.into_iter().collect(),
    }
}

/// Measures a pod whose app is created first, and is held until the sidecar has started.
fn by_shim(host: &Containerd, runtime: &str, pod: &str, kind: Sidecar) -> f64 {
    let names = ["sidecar", "app"].map(|role| format!("{pod}-{role}"));
    let [sidecar, app] = &names;
    let spec = |name: &str| {
        let spec = ContainerSpec::new(name).runtime(runtime).in_pod(pod, name);
        let spec = spec.annotation("usher/sidecars", sidecar);
        match kind {
            Sidecar::Plain => spec,
            _ => spec.annotation(&format!("startup-probe.usher/{sidecar}"), PROBE),
        }
    };
    host.run(&spec(app));
    assert!(!host.record().has(app, "start"), "{app} was not held");
    let (options, is_started): (&[&str], _) = match kind {
        Sidecar::Plain => (&[], "start"),
        Sidecar::Probed => (&["--listen", "8080"], "accepted"),
        Sidecar::ProbedLater => (&["--listen", "8080", "--ready-after", "300ms"], "accepted"),
    };
    host.run(&spec(sidecar).witness(options));
    let record = host.await_record("both run", |r| {
        r.has(app, "start") && r.has(sidecar, is_started)
    });
    host.kill_all(&[app, sidecar], "SIGKILL");
    for name in &names {
        host.wait_exit(name);
        host.delete(name);
    }
    // Without a probe both programs start at the same time. The app's program may be the first, so
    // the result may be negative.
    (record.at(app, "start") as f64 - record.at(sidecar, is_started) as f64) / 1e6
}

/// Milliseconds from the opening of runc's exec FIFO to the first line of code of the container's
/// program. No shim takes part.
fn by_hand(host: &Containerd, n: usize) -> f64 {
    let id = format!("bare-{n}");
    let runc = OciRuntime::new(host, "runc");
    create(host, &runc, &id, &[]);
    let begin = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a clock after 1970");
    open_gate(&runc, &id);
    let started = host.await_event(&id, "start").at(&id, "start");
    delete(&runc, &id);
    (started - begin.as_nanos() as u64) as f64 / 1e6
}

/// Milliseconds from the exit of a container's program, as the program records it, to the first
/// line of code of the next container's program. No shim takes part: this process itself waits for
/// runc's containers. So the result is a minimum.
pub fn by_hand_after_exits(repetitions: usize) -> Figures {
    let host = Containerd::start();
    set_child_subreaper(true).expect("to adopt runc's children");
    let runc = OciRuntime::new(&host, "runc");
    let once = |n: usize| {
        let [first, second] = [format!("first-{n}"), format!("second-{n}")];
        create(&host, &runc, &first, &["--run-for", "50ms"]);
        create(&host, &runc, &second, &[]);
        open_gate(&runc, &first);
        waitpid(pid(&host, &first), None).expect("its exit");
        open_gate(&runc, &second);
        let record = host.await_event(&second, "start");
        delete(&runc, &first);
        delete(&runc, &second);
        (record.at(&second, "start") - record.at(&first, "exit")) as f64 / 1e6
    };
    let figures = (0..repetitions).map(once).collect();
    set_child_subreaper(false).expect("to adopt no more");
    figures
}

/// Creates a container by runc alone. The container's program runs when the exec FIFO is opened.
fn create(host: &Containerd, runc: &OciRuntime, id: &str, options: &[&str]) {
    let args = [&["/bin/witness", id], options].concat();
    let bundle = runc.bundle(id, &default_config(host, id, &args));
    runc.create(id, &bundle).expect("a container");
}

fn pid(host: &Containerd, id: &str) -> Pid {
    let pid = fs::read_to_string(host.dir().join(id).join("pid")).expect("its pid");
    Pid::from_raw(pid.parse().expect("a number"))
}

fn open_gate(runc: &OciRuntime, id: &str) {
    let mut fifo = File::open(runc.root.join(id).join("exec.fifo")).expect("the exec FIFO");
    fifo.read_exact(&mut [0])
        .expect("the byte that runc writes");
}

fn delete(runc: &OciRuntime, id: &str) {
    runc.must(&["delete", "--force", id]);
}
