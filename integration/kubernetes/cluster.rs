//! A cluster of one node, in separate namespaces: etcd, the API server, the controller manager, the
//! scheduler, kubelet and containerd. All of them are real.
//!
//! Everything runs on a [machine](super::machine) that is made of namespaces. Alternatively,
//! kubelet, containerd and the pods run on a separate node, a [virtual machine](super::guest).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Finished, poll, run, scaled, write_program};

use super::guest::Guest;
use super::hierarchies;
use super::images;
use super::machine::{CABLE, Machine};
use super::settings::{self, Programs};

/// Timeout for anything that the cluster does on two busy cores: a pod that starts, a Job that
/// completes.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// The cluster's programs, in the order of their start.
const PARTS: [&str; 6] = [
    "etcd",
    "kube-apiserver",
    "containerd",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
];

/// The name of the only node.
pub const NODE: &str = "node";

/// The state of the node before it joins the cluster.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Node {
    /// A node on which `usher install` has installed usher, with usher's node label.
    WithUsher,
    /// A node without usher. If the machine has no systemd, it has a replacement for `systemctl`
    /// that can restart containerd.
    Bare,
}

/// A replacement of systemctl for machines without systemd. It knows only `restart containerd`.
///
/// As with containerd's own unit, containers survive the restart, and the command returns when the
/// new containerd is ready. The script requests the restart through a FIFO, because the caller of
/// the script may not see containerd's processes.
const SYSTEMCTL: &str = r#"#!/bin/sh
if [ "$*" != "restart containerd" ]; then
    echo "systemctl $*: expected restart containerd" >&2
    exit 1
fi
old=$(cat /run/containerd.service)
echo restart >/run/containerd.restart
while [ "$(cat /run/containerd.service)" = "$old" ]; do sleep 0.1; done
for _ in $(seq 300); do
    ! ctr version >/dev/null 2>&1 || exit 0
    sleep 0.3
done
echo "systemctl: containerd does not answer" >&2
exit 1
"#;

pub struct Cluster {
    pub programs: Programs,
    pub node: Node,
    dir: TempDir,
    /// The virtual machine that is the node; `None` if the machine itself is the node.
    guest: Option<Guest>,
    machine: Mutex<Option<Machine>>,
    parts: Mutex<BTreeMap<&'static str, Child>>,
}

impl Cluster {
    pub fn start(programs: Programs, node: Node) -> Self {
        let prefix = std::env::var("USHER_TEST_PREFIX").unwrap_or_else(|_| "usher-it-".into());
        let dir = tempfile::Builder::new().prefix(&prefix).tempdir();
        let dir = dir.expect("a directory");
        let cluster = Self {
            guest: programs.node_image.as_deref().map(Guest::of),
            programs,
            node,
            dir,
            machine: Mutex::default(),
            parts: Mutex::default(),
        };
        for name in ["log", "tmp", "shared", "var-lib/kubelet", "etc"] {
            fs::create_dir_all(cluster.path(name)).expect("a directory of the cluster");
        }
        if let Some(guest) = &cluster.guest {
            guest.prepare(&cluster);
        } else {
            cluster.place_programs();
            hierarchies::make(&cluster.name());
        }
        settings::write(&cluster);
        cluster.switch_on();
        cluster.start_part("etcd");
        cluster.start_part("kube-apiserver");
        if node == Node::WithUsher {
            cluster.install_usher();
        }
        cluster.start_part("containerd");
        cluster.await_containerd();
        images::import(&cluster);
        cluster.await_api();
        cluster.start_part("kube-controller-manager");
        cluster.start_part("kube-scheduler");
        cluster.start_part("kubelet");
        cluster.await_node();
        if node == Node::WithUsher {
            cluster.must(&["apply", "--filename", &settings::runtime_class()]);
        }
        cluster
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn directory(&self) -> &str {
        self.dir.path().to_str().expect("plain text")
    }

    /// The path of a file in the machine's `/etc` or `/usr/local`, as seen from outside of the
    /// machine.
    pub fn path_on_machine(&self, path: &str) -> PathBuf {
        let path = path
            .trim_start_matches('/')
            .replacen("usr/local", "usr-local", 1);
        self.path("over").join(path)
    }

    /// The cluster's name. No other cluster on this computer has the same name.
    pub fn name(&self) -> String {
        let name = self.dir.path().file_name().expect("a name");
        name.to_string_lossy().into_owned()
    }

    // --- methods for the machine ---

    /// Starts the machine, without the cluster's programs. If the node is a virtual machine, also
    /// starts the virtual machine.
    pub fn switch_on(&self) {
        let cable = self.guest.as_ref().map(|_| CABLE);
        let machine = Machine::switch_on(self.dir.path(), cable, || self.log("machine"));
        if let Some(guest) = &self.guest {
            guest.switch_on(self, &machine);
        }
        *held(&self.machine) = Some(machine);
    }

    /// Ends everything at once, as when the power fails. Files stay; memory is lost.
    pub fn switch_off(&self) {
        let machine = held(&self.machine).take();
        if let Some(machine) = machine {
            machine.switch_off();
        }
        let parts = std::mem::take(&mut *held(&self.parts));
        for (_, mut child) in parts {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// A command that runs on the machine, where the API server runs.
    pub fn on_machine(&self, words: &[&str]) -> Command {
        let machine = held(&self.machine);
        let mut command = machine.as_ref().expect("the machine is on").command(words);
        command.env("KUBECONFIG", self.path("etc/kubeconfig"));
        command.env("PATH", self.search_path());
        command.env("TMPDIR", self.path("tmp"));
        command.env("HOME", self.path("tmp"));
        command
    }

    /// True if a process belongs to the cluster. Processes of the tests and of a virtual machine do
    /// not belong to it.
    pub fn has_process(&self, pid: u32) -> bool {
        let machine = self.machine.lock().unwrap();
        machine.as_ref().is_some_and(|machine| machine.has(pid))
    }

    /// A command that runs on the node.
    pub fn on_node(&self, words: &[&str]) -> Command {
        match &self.guest {
            Some(guest) => guest.command(self, words),
            None => self.on_machine(words),
        }
    }

    /// The content of a file on the node; `None` if it does not exist.
    pub fn read_on_node(&self, path: &str) -> Option<Vec<u8>> {
        let finished = run(self.on_node(&["cat", path]), PATIENCE);
        finished.ok().then_some(finished.stdout)
    }

    /// An identifier of the running containerd process, which differs after a restart.
    pub fn containerd_process(&self) -> String {
        let words: &[&str] = match self.is_in_guest() {
            true => &["systemctl", "show", "--property=MainPID", "containerd"],
            false => &["cat", "/run/containerd.service"],
        };
        run(self.on_node(words), PATIENCE).out()
    }

    fn search_path(&self) -> String {
        format!(
            "/usr/local/bin:{}/bin:{}/usr/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            self.programs.kubernetes.display(),
            self.programs.parts.display(),
        )
    }

    /// Links the containerd under test into a directory that comes first on the machine's `PATH`.
    fn place_programs(&self) {
        let bin = self.path_on_machine("/usr/local/bin");
        fs::create_dir_all(&bin).expect("a directory of programs");
        for name in ["containerd", "ctr", "containerd-shim-runc-v2"] {
            symlink(self.programs.containerd.join(name), bin.join(name)).expect("a link");
        }
        if let Some(runc) = &self.programs.runc {
            symlink(runc, bin.join("runc")).expect("a link");
        }
        if self.node == Node::Bare {
            write_program(&bin.join("systemctl"), SYSTEMCTL);
        }
    }

    // --- methods for the cluster's programs ---

    /// The virtual machine, if the program of this name runs in it.
    fn guest_of(&self, name: &str) -> Option<&Guest> {
        self.guest.as_ref().filter(|_| Guest::is_there(name))
    }

    /// True if the node is a virtual machine, which has cgroup v2 and systemd.
    pub fn is_in_guest(&self) -> bool {
        self.guest.is_some()
    }

    /// Starts one of the cluster's programs.
    pub fn start_part(&self, name: &'static str) {
        if let Some(guest) = self.guest_of(name) {
            return guest.start(self, name);
        }
        let script = "echo $$ > \"$1\"; shift; exec \"$@\"";
        let pid_file = self.path(&format!("{name}.pid")).display().to_string();
        let mut words = vec![
            "sh".to_owned(),
            "-c".into(),
            script.into(),
            "sh".into(),
            pid_file,
        ];
        words.extend(settings::command_line(self, name));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut command = self.on_machine(&words);
        command.stdin(Stdio::null());
        command.stdout(self.log(name)).stderr(self.log(name));
        let child = command.spawn().expect("nsenter");
        held(&self.parts).insert(name, child);
    }

    /// Ends a program. SIGKILL stands for a crash, SIGTERM for an upgrade.
    pub fn stop_part(&self, name: &'static str, signal: &str) {
        if let Some(guest) = self.guest_of(name) {
            return guest.stop(self, name, signal);
        }
        let pid = fs::read_to_string(self.path(&format!("{name}.pid"))).expect("its PID");
        let command = self.on_machine(&["kill", &format!("-{signal}"), pid.trim()]);
        assert!(run(command, PATIENCE).ok(), "{name} does not run");
        let child = held(&self.parts).remove(name);
        let mut child = child.expect("the program was started");
        let ended = poll(PATIENCE, || {
            child.try_wait().expect("a child of this process")
        });
        assert!(ended.is_some(), "{name} does not end");
    }

    /// Stops a program with SIGSTOP, as if it hung. Dropping the returned value lets the program
    /// continue.
    pub fn pause_part(&self, name: &'static str) -> PausedPart<'_> {
        let paused = PausedPart {
            cluster: self,
            name,
        };
        paused.signal("STOP");
        paused
    }

    pub fn restart_part(&self, name: &'static str, signal: &str) {
        self.stop_part(name, signal);
        self.start_part(name);
        self.await_part(name);
    }

    /// Starts the machine and all programs, after the machine was switched off.
    pub fn boot(&self) {
        self.switch_on();
        self.start_stopped_parts();
    }

    /// Repairs the cluster after a failed case. Starts the machine and the programs that the case
    /// has stopped.
    pub fn mend(&self) {
        if held(&self.machine).is_none() {
            return self.boot();
        }
        self.start_stopped_parts();
    }

    fn start_stopped_parts(&self) {
        for name in PARTS {
            let runs = |child: &mut Child| matches!(child.try_wait(), Ok(None));
            if match self.guest_of(name) {
                Some(guest) => guest.runs(self, name),
                None => held(&self.parts).get_mut(name).is_some_and(runs),
            } {
                continue;
            }
            self.start_part(name);
            self.await_part(name);
        }
    }

    fn await_part(&self, name: &str) {
        match name {
            "containerd" => self.await_containerd(),
            "kube-apiserver" => self.await_api(),
            _ => {}
        }
    }

    pub fn log(&self, name: &str) -> File {
        let path = self.path(&format!("log/{name}"));
        let file = File::options().append(true).create(true).open(path);
        file.expect("a log")
    }

    pub fn log_tail(&self, name: &str, lines: usize) -> String {
        let text = fs::read(self.path(&format!("log/{name}"))).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// Installs usher by `usher install`, as users do.
    fn install_usher(&self) {
        if let Some(guest) = &self.guest {
            return guest.install_usher(self);
        }
        let usher = crate::harness::shim_dir().join("usher");
        let mut command = self.on_machine(&[&usher.display().to_string(), "install"]);
        command.arg("--path").arg(self.search_path());
        command.args(pauseless());
        let finished = run(command, PATIENCE);
        assert!(finished.ok(), "usher install: {}", finished.err());
    }

    fn await_containerd(&self) {
        let answers = || {
            let finished = run(self.on_node(&self.ctr(&["version"])), PATIENCE);
            finished.ok().then_some(())
        };
        let tail = || self.log_tail("containerd", 20);
        assert!(poll(PATIENCE, answers).is_some(), "containerd:\n{}", tail());
    }

    pub fn ctr<'a>(&self, words: &[&'a str]) -> Vec<&'a str> {
        // In the machine's `/run`, containerd's socket has the path that `ctr` uses by default.
        let mut all = vec!["ctr", "--namespace", "k8s.io"];
        all.extend(words);
        all
    }

    pub fn await_api(&self) {
        let ready = || {
            let finished = self.kubectl(&["get", "--raw", "/readyz"]);
            (finished.ok() && finished.out().contains("ok")).then_some(())
        };
        let tail = || self.log_tail("kube-apiserver", 20);
        assert!(
            poll(PATIENCE, ready).is_some(),
            "the API server:\n{}",
            tail()
        );
    }

    pub fn await_node(&self) {
        let ready = || {
            let node = self.get("node", NODE)?;
            let conditions = node["status"]["conditions"].as_array()?.clone();
            let ready = |c: &Value| c["type"] == "Ready" && c["status"] == "True";
            conditions.iter().any(ready).then_some(())
        };
        let tail = || self.log_tail("kubelet", 30);
        assert!(poll(PATIENCE, ready).is_some(), "kubelet:\n{}", tail());
    }

    // --- methods for kubelet's configuration ---

    /// Restarts kubelet with other settings. Dropping the returned value restores the original
    /// settings.
    pub fn with_kubelet(&self, words: &Value) -> OtherKubelet<'_> {
        let file = self.path(settings::KUBELET);
        let before = fs::read_to_string(file).expect("kubelet's configuration");
        let other = OtherKubelet {
            cluster: self,
            before,
        };
        let mut config: Value = serde_json::from_str(&other.before).expect("JSON");
        for (key, value) in words.as_object().expect("words") {
            config[key] = value.clone();
        }
        other.restart(&config.to_string());
        other
    }

    // --- methods for the cluster's API ---

    pub fn kubectl(&self, words: &[&str]) -> Finished {
        let mut all = vec!["kubectl"];
        all.extend(words);
        run(self.on_machine(&all), PATIENCE)
    }

    /// Runs a `kubectl` command that waits for a condition. The command has the tests' timeout, and
    /// its error names the condition.
    pub fn kubectl_waits(&self, words: &[&str]) -> Finished {
        let limit = format!("--timeout={}s", scaled(PATIENCE).as_secs());
        let all = [&["kubectl"], words, &[&*limit]].concat();
        run(self.on_machine(&all), PATIENCE * 2)
    }

    /// Runs `kubectl` with kubelet's credentials.
    pub fn kubectl_as_node(&self, words: &[&str]) -> Finished {
        let config = self.path("etc/kubelet.conf").display().to_string();
        self.kubectl(&[&["--kubeconfig", &config], words].concat())
    }

    #[track_caller]
    pub fn must(&self, words: &[&str]) -> String {
        let finished = self.kubectl(words);
        assert!(finished.ok(), "kubectl {words:?}: {}", finished.err());
        finished.out()
    }

    pub fn get(&self, kind: &str, name: &str) -> Option<Value> {
        let finished = self.kubectl(&["get", kind, name, "--output", "json"]);
        serde_json::from_slice(&finished.stdout).ok()
    }

    #[track_caller]
    pub fn apply(&self, objects: &[Value]) {
        let finished = self.try_apply(objects);
        assert!(finished.ok(), "kubectl apply: {}", finished.err());
    }

    pub fn try_apply(&self, objects: &[Value]) -> Finished {
        self.give(&["apply"], objects)
    }

    /// Runs a `kubectl` command to which these objects are passed as a file.
    pub fn give(&self, words: &[&str], objects: &[Value]) -> Finished {
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
        let file = tempfile::NamedTempFile::new_in(self.path("tmp")).expect("a file");
        fs::write(file.path(), list.to_string()).expect("the objects");
        let path = file.path().display().to_string();
        self.kubectl(&[words, &["--filename", &path]].concat())
    }
}

/// A program that SIGSTOP has stopped. Dropping the value lets the program continue.
pub struct PausedPart<'a> {
    cluster: &'a Cluster,
    name: &'static str,
}

impl PausedPart<'_> {
    fn signal(&self, signal: &str) {
        if let Some(guest) = self.cluster.guest_of(self.name) {
            return guest.signal(self.cluster, self.name, signal);
        }
        let pid = self.cluster.path(&format!("{}.pid", self.name));
        let pid = fs::read_to_string(pid).expect("its PID");
        let signal = format!("-{signal}");
        let command = self.cluster.on_machine(&["kill", &signal, pid.trim()]);
        assert!(run(command, PATIENCE).ok(), "kill {signal} {}", self.name);
    }
}

impl Drop for PausedPart<'_> {
    fn drop(&mut self) {
        self.signal("CONT");
        // nsenter, the parent of the program, stopped itself when the program was stopped. The
        // program runs again now, so make nsenter continue too.
        let parts = held(&self.cluster.parts);
        let Some(nsenter) = parts.get(self.name).map(Child::id) else {
            return;
        };
        let nsenter = Pid::from_raw(i32::try_from(nsenter).expect("a PID"));
        let _ = kill(nsenter, Signal::SIGCONT);
    }
}

/// A kubelet with changed settings. Dropping the value restores the original settings.
pub struct OtherKubelet<'a> {
    cluster: &'a Cluster,
    before: String,
}

impl OtherKubelet<'_> {
    fn restart(&self, config: &str) {
        fs::write(self.cluster.path(settings::KUBELET), config).expect("a setting");
        self.cluster.restart_part("kubelet", "TERM");
    }
}

impl Drop for OtherKubelet<'_> {
    fn drop(&mut self) {
        self.restart(&self.before);
        self.cluster.await_node();
    }
}

/// Locks data that parallel cases share. A case that panics leaves the data consistent, so a
/// poisoned lock is no error.
pub fn held<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.switch_off();
        if self.guest.is_none() {
            hierarchies::remove(&self.name());
        }
        if std::env::var_os("USHER_TEST_KEEP").is_some() {
            self.dir.disable_cleanup(true);
            eprintln!("kept: {}", self.dir.path().display());
        }
    }
}

/// The option of `usher install` for pods without pause containers. `None` if the tests use pods
/// with pause containers.
pub fn pauseless() -> Option<&'static str> {
    std::env::var_os("USHER_TEST_PAUSELESS").map(|_| "--pauseless")
}
