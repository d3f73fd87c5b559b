//! A private containerd: its directory, configuration, processes and cleanup.

use std::fs::{self, OpenOptions};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::cri::{self, CriSettings};
use super::environment::{Shims, Version, oci_runtime, search_path};
use super::events::Recorder;
use super::leaks::{self, Leftovers};
use super::mount_ns::{Isolation, MountNs, SHARED_STATE};
use super::{PATIENCE, poll, rootfs};

/// A running containerd with its directory, processes and containers. The comment at the top of
/// `harness/mod.rs` has an example.
pub struct Containerd {
    /// The name of the directory and cgroups of this containerd.
    pub name: String,
    /// The test's containerd namespace: equal to `name`, or `k8s.io` in tests that act as kubelet.
    pub namespace: String,
    pub(super) mount_ns: MountNs,
    pub(super) events: Recorder,
    pub(super) leftovers: Leftovers,
    /// The `PATH` of containerd and its shims.
    pub path: String,
    shims: Shims,
    dir: TempDir,
    daemon: Mutex<Option<Child>>,
}

pub struct Settings {
    /// containerd's log level. With `debug`, containerd passes `-debug` to shims, so that they log
    /// too.
    pub log_level: &'static str,
    pub shims: Shims,
    /// Enables the CRI plugin, by which kubelet calls containerd, and makes a network namespace for
    /// the pods.
    pub cri: Option<CriSettings>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            log_level: "debug",
            shims: Shims::Ours,
            cri: None,
        }
    }
}

impl Containerd {
    #[track_caller]
    pub fn start() -> Self {
        Self::start_with(&Settings::default())
    }

    #[track_caller]
    pub fn start_with(settings: &Settings) -> Self {
        let root = nix::unistd::geteuid().is_root();
        assert!(root, "containers are made by root: run this test as root");
        let prefix = std::env::var("USHER_TEST_PREFIX").unwrap_or_else(|_| "usher-it-".into());
        let dir = tempfile::Builder::new()
            .prefix(&prefix)
            .tempdir()
            .expect("a directory");
        let name = dir
            .path()
            .file_name()
            .expect("a name")
            .to_str()
            .expect("plain text");
        let name = name.to_owned();
        let namespace = match settings.cri {
            Some(_) => cri::NAMESPACE.to_owned(),
            None => name.clone(),
        };
        // The longest path in the directory is that of a socket, which ends with "run/s/" and 64
        // digits. The kernel allows 107 bytes for the whole path.
        let length = dir.path().as_os_str().len();
        assert!(
            length <= 35,
            "{:?} is too long for the path of a socket",
            dir.path()
        );

        for name in ["fifo", "rootfs", "run", "shared", "tmp"] {
            fs::create_dir(dir.path().join(name)).expect("a directory of the test");
        }
        fs::create_dir_all(SHARED_STATE).expect("the directory that shims share");
        rootfs::populate(&dir.path().join("rootfs"));
        fs::write(usher_config(dir.path()), "").expect("usher's configuration");
        fs::write(dir.path().join("config.toml"), config(dir.path(), settings)).expect("config");
        if settings.cri.is_some() {
            cri::write_network(dir.path());
        }
        let path = search_path(dir.path(), settings.shims);

        let mut command = daemon_command(dir.path(), &path);
        // crun fails on a machine with cgroup v1 and v2, so v2 is hidden from it.
        let hides_unified = oci_runtime() == "crun";
        let isolation = Isolation {
            state: dir.path().join("run"),
            hides_unified,
            own_network: settings.cri.is_some(),
        };
        isolation.create_in(&mut command);
        let mut daemon = spawn(command);
        let mount_ns = MountNs::of(daemon.id()).expect("the daemon's mount namespace");
        let listening = await_socket(dir.path(), &mut daemon);
        let host = Self {
            leftovers: Leftovers::new(daemon.id()),
            daemon: Mutex::new(Some(daemon)),
            events: Recorder::default(),
            mount_ns,
            name,
            namespace,
            path,
            shims: settings.shims,
            dir,
        };
        assert!(
            listening,
            "containerd does not listen; its log:\n{}",
            host.log_tail(20)
        );
        if settings.shims == Shims::Reference && Version::of_containerd() >= Version(2, 0) {
            // containerd's own shim leaves debug sockets behind if a pod has several containers.
            host.tolerate("/run/s/");
        }
        if settings.cri.is_none() {
            host.must(&["namespaces", "create", &host.namespace]);
        }
        host.events.follow(&host);
        host
    }

    /// The directory of this containerd, with all of its files. It is removed when the value is
    /// dropped.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The path of usher's configuration file for this containerd. The file is empty unless a test
    /// writes to it.
    pub fn usher_config(&self) -> PathBuf {
        usher_config(self.dir())
    }

    /// The host's directory that each container sees as `/shared`.
    pub fn shared_dir(&self) -> PathBuf {
        self.dir().join("shared")
    }

    pub fn socket(&self) -> PathBuf {
        socket(self.dir())
    }

    pub fn bundle_dir(&self, id: &str) -> PathBuf {
        let tasks = self.dir().join("state/io.containerd.runtime.v2.task");
        tasks.join(&self.namespace).join(id)
    }

    /// True if this containerd has only containerd's own shims.
    pub fn is_reference(&self) -> bool {
        self.shims == Shims::Reference
    }

    /// Makes `command` run in the mount namespace of this containerd and its shims.
    pub fn enter(&self, command: &mut Command) {
        self.mount_ns.enter(command);
    }

    /// A command that unmounts `path` in that mount namespace, even if the mount is in use.
    pub fn umount(&self, path: &str) -> Command {
        let mut command = Command::new("umount");
        command.args(["--lazy", path]);
        self.enter(&mut command);
        command
    }

    /// A command that runs as root, but with another group and without capabilities, like the
    /// container through which `kubectl usher` queries a node.
    pub fn without_rights(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--regid", "65534", "--clear-groups"]);
        command.args(["--bounding-set", "-all", "--inh-caps", "-all"]);
        command.arg(program).args(arguments);
        self.enter(&mut command);
        command
    }

    /// Control sockets of this containerd's shims that are open to all clients. The sockets for
    /// root alone are left out.
    #[track_caller]
    pub fn control_sockets(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.dir().join("run/usher")).expect("the directory");
        let entries = entries.flatten();
        let files = entries.filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_dir()));
        files.map(|entry| entry.path()).collect()
    }

    pub fn pid(&self) -> Option<u32> {
        self.daemon.lock().unwrap().as_ref().map(Child::id)
    }

    /// Stops containerd as an upgrade does; shims and containers continue.
    pub fn stop(&self) {
        self.end_daemon(Signal::SIGTERM);
    }

    /// Kills containerd, as a crash does.
    pub fn crash(&self) {
        self.end_daemon(Signal::SIGKILL);
    }

    /// Starts containerd again after [`stop`](Self::stop) or [`crash`](Self::crash).
    #[track_caller]
    pub fn start_again(&self) {
        let mut command = daemon_command(self.dir(), &self.path);
        self.mount_ns.enter(&mut command);
        let mut daemon = spawn(command);
        let listening = await_socket(self.dir(), &mut daemon);
        *self.daemon.lock().unwrap() = Some(daemon);
        assert!(
            listening,
            "containerd does not listen; its log:\n{}",
            self.log_tail(20)
        );
        self.events.follow(self);
    }

    fn end_daemon(&self, signal: Signal) {
        self.events.stop();
        let Some(mut daemon) = self.daemon.lock().unwrap().take() else {
            return;
        };
        let _ = leaks::signal(daemon.id(), signal);
        let ended = poll(Duration::from_secs(5), || daemon.try_wait().ok().flatten());
        if ended.is_none() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }

    /// The last lines of containerd's log, which includes the shims' logs.
    pub fn log_tail(&self, lines: usize) -> String {
        let log = fs::read(self.dir().join("containerd.log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log).into_owned();
        // Leave out the lines that every start of containerd logs.
        let noise = |line: &&str| !line.contains("loading plugin");
        let all: Vec<&str> = log.lines().filter(noise).collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// A description for the message of a failed test: the containers' record, containerd's events,
    /// the traces that remain, and the end of the log.
    pub fn diagnosis(&self) -> String {
        let record = fs::read_to_string(self.shared_dir().join("record")).unwrap_or_default();
        let events: String = self.events().iter().map(|e| format!("{e}\n")).collect();
        format!(
            "--- recorded by the containers\n{record}--- events\n{events}\
             --- remains\n{}\n--- log of containerd\n{}",
            self.remains().join("\n"),
            self.log_tail(60)
        )
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        let failed = std::thread::panicking();
        if failed {
            eprintln!("{}", self.diagnosis());
        }
        let problems = leaks::clean(self);
        self.end_daemon(Signal::SIGTERM);
        leaks::raze(self);
        if std::env::var_os("USHER_TEST_KEEP").is_some() && (failed || !problems.is_empty()) {
            self.dir.disable_cleanup(true);
            eprintln!("kept: {}", self.dir().display());
        }
        if !failed {
            assert!(problems.is_empty(), "left behind:\n{}", problems.join("\n"));
        }
    }
}

fn socket(dir: &Path) -> PathBuf {
    dir.join("c.sock")
}

fn usher_config(dir: &Path) -> PathBuf {
    dir.join("usher.toml")
}

/// containerd's configuration. All paths are in the directory `dir`. Plugins that would use other
/// paths are disabled.
fn config(dir: &Path, settings: &Settings) -> String {
    let level = settings.log_level;
    let (layout, disabled) = match (Version::of_containerd(), &settings.cri) {
        (Version(..2, _), _) => (2, &["grpc.v1.cri", "snapshotter.v1.aufs"][..]),
        (_, None) => (3, &["grpc.v1.cri", "cri.v1.images", "cri.v1.runtime"][..]),
        (_, Some(_)) => (3, &[][..]),
    };
    let cri = settings.cri.as_ref();
    let cri = cri.map_or_else(String::new, |cri| cri.tables(dir));
    let disabled: String = ALWAYS_DISABLED
        .iter()
        .chain(disabled)
        .map(|plugin| format!("  \"io.containerd.{plugin}\",\n"))
        .collect();
    format!(
        r#"version = {layout}
root = "{dir}/root"
state = "{dir}/state"
imports = []
disabled_plugins = [
{disabled}]
[grpc]
  address = "{socket}"
[ttrpc]
  address = "{socket}.ttrpc"
[debug]
  level = "{level}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{dir}/opt"
{cri}"#,
        socket = socket(dir).display(),
        dir = dir.display(),
    )
}

const ALWAYS_DISABLED: [&str; 6] = [
    "nri.v1.nri",
    "internal.v1.restart",
    "internal.v1.tracing",
    "snapshotter.v1.btrfs",
    "snapshotter.v1.devmapper",
    "snapshotter.v1.zfs",
];

fn daemon_command(dir: &Path, path: &str) -> Command {
    let log = OpenOptions::new()
        .append(true)
        .create(true)
        .open(dir.join("containerd.log"));
    let log = log.expect("containerd's log");
    let mut command = Command::new("containerd");
    command.arg("--config").arg(dir.join("config.toml"));
    command.env("PATH", path).env("TMPDIR", dir.join("tmp"));
    // The machine's own usher configuration must not affect tests.
    command.env("USHER_CONFIG", usher_config(dir));
    // If this variable is set, containerd puts the sockets of consoles into another directory.
    command.env_remove("XDG_RUNTIME_DIR");
    command.env_remove("NOTIFY_SOCKET");
    command.current_dir("/");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    command
}

#[track_caller]
fn spawn(mut command: Command) -> Child {
    match command.spawn() {
        Ok(child) => child,
        Err(e) => panic!("containerd does not start ({e}): apt-get install containerd runc"),
    }
}

fn await_socket(dir: &Path, daemon: &mut Child) -> bool {
    let probe = || match daemon.try_wait() {
        Ok(Some(_)) => Some(false),
        _ => UnixStream::connect(socket(dir)).is_ok().then_some(true),
    };
    poll(PATIENCE, probe).unwrap_or(false)
}
