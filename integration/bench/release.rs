//! How soon a held app runs once its last sidecar has started, beside the least that it takes:
//! opening runc's exec FIFO and nothing else.

use std::fs::{self, File};
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use nix::sys::prctl::set_child_subreaper;
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use super::figures::Figures;
use super::harness::{ContainerSpec, Containerd, Settings, default_config};

const PROBE: &str = r#"{"tcpSocket":{"port":8080},"periodMilliseconds":100}"#;

/// Milliseconds.
pub struct Releases {
    /// From the connection of the sidecar's startup probe, as the sidecar saw it, to the first
    /// line of the app's code.
    pub after_probe: Figures,
    /// From the first line of the code of a sidecar without a probe to the app's.
    pub after_start: Figures,
    /// From opening the FIFO to the first line of the program's code.
    pub bare: Figures,
}

pub fn measure(runtime: &str, repetitions: usize) -> Releases {
    let host = Containerd::start_with(&Settings {
        log_level: "info",
        ..Settings::default()
    });
    let (mut after_probe, mut after_start, mut bare) = (Vec::new(), Vec::new(), Vec::new());
    for n in 0..repetitions {
        after_probe.push(by_shim(&host, runtime, &format!("probed-{n}"), true));
        bare.push(by_hand(&host, n));
        after_start.push(by_shim(&host, runtime, &format!("plain-{n}"), false));
    }
    Releases {
        after_probe: after_probe.into_iter().collect(),
        after_start: after_start.into_iter().collect(),
        bare: bare.into_iter().collect(),
    }
}

/// A pod whose app is created first, and so is held until the sidecar is started.
fn by_shim(host: &Containerd, runtime: &str, pod: &str, probed: bool) -> f64 {
    let names = ["sidecar", "app"].map(|role| format!("{pod}-{role}"));
    let [sidecar, app] = &names;
    let spec = |name: &str| {
        let spec = ContainerSpec::new(name).runtime(runtime).in_pod(pod, name);
        let spec = spec.annotation("usher/sidecars", sidecar);
        match probed {
            true => spec.annotation(&format!("startup-probe.usher/{sidecar}"), PROBE),
            false => spec,
        }
    };
    host.run(&spec(app));
    assert!(!host.record().has(app, "start"), "{app} was not held");
    let options: &[&str] = if probed { &["--listen", "8080"] } else { &[] };
    host.run(&spec(sidecar).witness(options));
    let is_started = if probed { "accepted" } else { "start" };
    let record = host.await_record("both run", |r| {
        r.has(app, "start") && r.has(sidecar, is_started)
    });
    host.kill_all(&[app, sidecar], "SIGKILL");
    for name in &names {
        host.wait_exit(name);
        host.delete(name);
    }
    // Without a probe the two programs run side by side, and the app's can come first.
    (record.at(app, "start") as f64 - record.at(sidecar, is_started) as f64) / 1e6
}

/// runc alone.
fn by_hand(host: &Containerd, n: usize) -> f64 {
    let id = format!("bare-{n}");
    let runc = BareRunc::new(host);
    runc.create(&id, &[]);
    let begin = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a clock after 1970");
    runc.open_gate(&id);
    let started = host.await_event(&id, "start").at(&id, "start");
    runc.delete(&id);
    (started - begin.as_nanos() as u64) as f64 / 1e6
}

/// Milliseconds from the exit of a container's program, as it saw it itself, to the first line of
/// the next one's code: the least that it takes, with runc alone and this program as their parent.
pub fn by_hand_after_exits(repetitions: usize) -> Figures {
    let host = Containerd::start();
    set_child_subreaper(true).expect("to adopt runc's children");
    let runc = BareRunc::new(&host);
    let once = |n: usize| {
        let [first, second] = [format!("first-{n}"), format!("second-{n}")];
        runc.create(&first, &["--run-for", "50ms"]);
        runc.create(&second, &[]);
        runc.open_gate(&first);
        waitpid(runc.pid(&first), None).expect("its exit");
        runc.open_gate(&second);
        let record = host.await_event(&second, "start");
        runc.delete(&first);
        runc.delete(&second);
        (record.at(&second, "start") - record.at(&first, "exit")) as f64 / 1e6
    };
    let figures = (0..repetitions).map(once).collect();
    set_child_subreaper(false).expect("to adopt no more");
    figures
}

/// runc, with a root of its own.
struct BareRunc<'host> {
    host: &'host Containerd,
    root: PathBuf,
}

impl<'host> BareRunc<'host> {
    fn new(host: &'host Containerd) -> Self {
        let root = host.dir().join("bare-runc");
        Self { host, root }
    }

    /// A container whose witness is parked.
    fn create(&self, id: &str, options: &[&str]) {
        let bundle = self.host.dir().join(id);
        fs::create_dir_all(&bundle).expect("the bundle");
        let args = [&["/bin/witness", id], options].concat();
        let config = default_config(self.host, id, &args);
        fs::write(bundle.join("config.json"), config.to_string()).expect("config.json");
        let [bundle, pid] = [bundle.clone(), bundle.join("pid")].map(|p| p.display().to_string());
        self.run(&["create", "--bundle", &bundle, "--pid-file", &pid, id]);
    }

    fn pid(&self, id: &str) -> Pid {
        let pid = fs::read_to_string(self.host.dir().join(id).join("pid")).expect("its pid");
        Pid::from_raw(pid.parse().expect("a number"))
    }

    fn open_gate(&self, id: &str) {
        let mut fifo = File::open(self.root.join(id).join("exec.fifo")).expect("the exec FIFO");
        fifo.read_exact(&mut [0])
            .expect("the byte that runc writes");
    }

    fn delete(&self, id: &str) {
        self.run(&["delete", "--force", id]);
    }

    fn run(&self, arguments: &[&str]) {
        let mut command = Command::new("runc");
        command.arg("--root").arg(&self.root).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        self.host.enter(&mut command);
        let status = command.status().expect("runc");
        assert!(status.success(), "runc {arguments:?}: {status}");
    }
}
