//! The node of a hostile pod. It has a containerd whose CPU time is measured, a cgroup with the
//! name of a pod's cgroup, and an OCI runtime that can be made to hang.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::pods::{Container, Stdio};
use crate::harness::{
    Containerd, PodCgroup, Settings, Shims, build, copy_program, default_config, installed_program,
    oci_runtime, on_v2, populate, process_state, write_program,
};

const ATTACKER: &str = include_str!("attacker.rs");

/// The pod's UID, in kubelet's form.
const UID: &str = "0dd00c0d-7a1e-4b0b-9c1e-bad0bad0bad0";

const MEMORY: u64 = 256 << 20;
const PROCESSES: u64 = 64;

/// A hostile pod and the node on which it runs.
pub struct Stage {
    pub host: Containerd,
    pod_cgroup: String,
    // This field must be dropped last, because dropping `host` ends the processes of the cgroup.
    node: NodeCgroup,
}

impl Stage {
    #[track_caller]
    pub fn new(shims: Shims) -> Self {
        let host = Containerd::start_with(&Settings {
            // Debug logs would cost CPU time.
            log_level: "info",
            shims,
            ..Settings::default()
        });
        copy_program(attacker(), &host.dir().join("rootfs/bin/attacker"));
        let daemon = host.pid().expect("containerd runs");
        let node = NodeCgroup::around(&format!("{}-node", host.namespace), daemon);
        Self {
            pod_cgroup: format!("/{}/pod{UID}", host.namespace),
            host,
            node,
        }
    }

    /// Makes the pod's cgroup with its limits.
    pub fn make_pod_cgroup(&self, cpu_millis: u64) {
        let cgroup = PodCgroup::new(&self.host, &format!("pod{UID}"));
        cgroup.limit_cpu(cpu_millis);
        cgroup.limit_memory(MEMORY);
        // The destructor of the cgroup would delete the pod's containers through containerd, which
        // may not answer. So it must not run.
        std::mem::forget(cgroup);
    }

    /// Removes the pod's cgroup as kubelet does. If the cgroup of a container is still in it, both
    /// remain, and the leak check reports them.
    pub fn remove_pod_cgroup(&self) {
        for entry in fs::read_dir("/sys/fs/cgroup")
            .into_iter()
            .flatten()
            .flatten()
        {
            let cgroup = entry.path().join(self.pod_cgroup.trim_start_matches('/'));
            let _ = fs::remove_dir(cgroup);
        }
        let _ = fs::remove_dir(cgroup_dir("", &self.pod_cgroup));
    }

    /// Creates and starts a container of the pod.
    #[track_caller]
    pub fn run(&self, runtime: &str, container: &Container, annotations: &[(String, String)]) {
        let Container { name, .. } = *container;
        let mut config = default_config(&self.host, name, container.args);
        config["linux"]["cgroupsPath"] = format!("{}/{name}", self.pod_cgroup).into();
        config["linux"]["resources"]["pids"] = json!({ "limit": PROCESSES });
        config["annotations"] = json!({
            "io.kubernetes.cri.sandbox-id": "pod1",
            "io.kubernetes.cri.container-name": name,
        });
        for (key, value) in annotations {
            config["annotations"][key] = value.as_str().into();
        }
        (container.edit)(self, &mut config);
        let file = self.host.dir().join(format!("{name}.json"));
        fs::write(&file, config.to_string()).expect("a configuration");
        let file = file.display().to_string();
        let fifos = self.host.dir().join("fifo").display().to_string();
        let logger;
        let mut line = vec!["run", "--detach", "--runtime", runtime, "--config", &file];
        match container.stdio {
            Stdio::Unread => line.extend(["--fifo-dir", &fifos]),
            Stdio::Logger(script) => {
                logger = format!("binary://{}", self.program("logger", script).display());
                line.extend(["--log-uri", &logger]);
            }
        }
        line.push(name);
        let finished = self.host.ctr(&line);
        assert!(finished.ok(), "{name} did not start: {}", finished.err());
    }

    fn program(&self, name: &str, text: &str) -> PathBuf {
        let program = self.host.dir().join("bin").join(name);
        // Remove the file first: if it is a link, writing would change the file to which it points.
        let _ = fs::remove_file(&program);
        write_program(&program, text);
        program
    }

    /// Replaces the OCI runtime by a script that can be made to hang.
    pub fn prepare_to_hang(&self) {
        let gates = self.gates();
        fs::create_dir(&gates).expect("a directory");
        let script = format!(
            "#!/bin/sh\n\
             for word; do case $word in\n\
             create | start | exec | kill | delete)\n\
             if [ -e {gates}/$word ]; then trap '' TERM INT; exec sleep 100000; fi\n\
             break ;;\n\
             esac; done\n\
             exec {real} \"$@\"\n",
            gates = gates.display(),
            real = installed_program(&oci_runtime()).display(),
        );
        self.program("runc", &script);
    }

    /// Makes the runtime hang at these commands from now on.
    pub fn hang(&self, verbs: &[&str]) {
        for verb in verbs {
            fs::write(self.gates().join(verb), "").expect("a gate");
        }
    }

    /// Makes the OCI runtime, containerd and frozen containers continue, so that everything can be
    /// removed.
    pub fn unblock(&self) {
        let _ = fs::remove_dir_all(self.gates());
        self.signal_containerd(Signal::SIGCONT);
        self.freeze(false);
    }

    fn gates(&self) -> PathBuf {
        self.host.dir().join("gates")
    }

    pub fn signal_containerd(&self, signal: Signal) {
        if let Some(pid) = self.host.pid() {
            let _ = kill(Pid::from_raw(pid as i32), signal);
        }
    }

    pub fn kill_shims(&self) {
        for pid in self.host.shims() {
            let _ = kill(Pid::from_raw(pid as i32), Signal::SIGKILL);
        }
    }

    /// Freezes or thaws all containers, without the shim's knowledge.
    pub fn freeze(&self, frozen: bool) {
        let (file, values) = match on_v2() {
            true => ("cgroup.freeze", ["0", "1"]),
            false => ("freezer.state", ["THAWED", "FROZEN"]),
        };
        let pod = cgroup_dir("freezer", &self.pod_cgroup);
        for cgroup in below(&pod).into_iter().filter(|dir| *dir != pod) {
            let _ = fs::write(cgroup.join(file), values[usize::from(frozen)]);
        }
    }

    /// Process ids of the pod's live processes.
    pub fn processes(&self) -> Vec<u32> {
        let cgroups = below(&cgroup_dir("pids", &self.pod_cgroup));
        let pids = cgroups.iter().flat_map(|dir| {
            let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
            let pids = text.lines().filter_map(|line| line.parse().ok());
            pids.collect::<Vec<u32>>()
        });
        pids.filter(|pid| is_running(*pid)).collect()
    }

    /// CPU time that the node has used for this pod outside of the pod's cgroup.
    pub fn cpu_outside(&self) -> Duration {
        self.node.usage()
    }
}

/// The program for attacks that a shell cannot do.
pub fn attacker() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build("attacker", ATTACKER))
}

fn is_running(pid: u32) -> bool {
    process_state(pid).is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

fn cgroup_dir(controller: &str, path: &str) -> PathBuf {
    let root = Path::new("/sys/fs/cgroup");
    let root = match on_v2() {
        true => root.to_owned(),
        false => root.join(controller),
    };
    root.join(path.trim_start_matches('/'))
}

/// A cgroup and all below it.
fn below(dir: &Path) -> Vec<PathBuf> {
    let mut found = vec![dir.to_owned()];
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    found.extend(dirs.flat_map(|entry| below(&entry.path())));
    found
}

/// Gives a container its own root file system, which all of the container's users may change.
pub fn own_root(stage: &Stage, config: &mut Value) {
    let name = config["annotations"]["io.kubernetes.cri.container-name"].as_str();
    let root = stage
        .host
        .dir()
        .join(format!("root-of-{}", name.expect("a name")));
    fs::create_dir(&root).expect("a root file system");
    populate(&root);
    copy_program(attacker(), &root.join("bin/attacker"));
    for (name, text) in [
        (
            "passwd",
            "root:x:0:0::/:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n",
        ),
        ("group", "root:x:0:\nuser:x:1000:\n"),
    ] {
        fs::write(root.join("etc").join(name), text).expect("a file of the container");
    }
    fs::set_permissions(root.join("etc"), fs::Permissions::from_mode(0o777)).expect("a mode");
    config["root"]["path"] = root.display().to_string().into();
}

/// Takes all privileges from a container.
pub fn without_rights(config: &mut Value) {
    config["process"]["user"] = json!({ "uid": 1000, "gid": 1000 });
    config["process"]["capabilities"] = json!({});
    config["process"]["noNewPrivileges"] = true.into();
}

pub fn may(capability: &str, config: &mut Value) {
    for set in ["bounding", "effective", "permitted"] {
        let set = config["process"]["capabilities"][set].as_array_mut();
        set.expect("capabilities").push(capability.into());
    }
}

pub fn limit_cpu(percent: u64, config: &mut Value) {
    config["linux"]["resources"]["cpu"] = json!({ "quota": percent * 1000, "period": 100_000 });
}

pub fn limit_memory(bytes: u64, config: &mut Value) {
    config["linux"]["resources"]["memory"] = json!({ "limit": bytes });
}

/// The cgroup of containerd, its shims, and their child processes, except those in the pod's
/// cgroup. Its CPU time shows what a pod costs the node. The CPU time of containerd itself is
/// subtracted, because containerd spends it on events and on the tests' calls.
///
/// Some commands of the shim move to the pod's cgroup. From then on, the kernel charges their CPU
/// time to the pod's cgroup. The shim's `cutime` (the CPU time of its children) would be too high,
/// because it also contains this time.
struct NodeCgroup {
    dir: PathBuf,
    daemon: u32,
}

impl NodeCgroup {
    #[track_caller]
    fn around(name: &str, daemon: u32) -> Self {
        // The cgroup lies beside the test's own cgroup, because the leak check reports all cgroups
        // that remain below the test's own.
        let dir = cgroup_dir("cpuacct", name);
        fs::create_dir(&dir).expect("the node's cgroup");
        fs::write(dir.join("cgroup.procs"), daemon.to_string()).expect("containerd moves");
        Self { dir, daemon }
    }

    fn usage(&self) -> Duration {
        let all = match on_v2() {
            true => {
                let text = fs::read_to_string(self.dir.join("cpu.stat")).unwrap_or_default();
                let usage = text
                    .lines()
                    .find_map(|line| line.strip_prefix("usage_usec "));
                usage
                    .and_then(|text| text.parse().ok())
                    .map(Duration::from_micros)
            }
            false => {
                let text = fs::read_to_string(self.dir.join("cpuacct.usage")).unwrap_or_default();
                text.trim().parse().ok().map(Duration::from_nanos)
            }
        };
        let pid = Pid::from_raw(self.daemon as i32);
        let own = ClockId::pid_cpu_clock_id(pid).and_then(clock_gettime);
        let own = own.map(Duration::from).unwrap_or_default();
        all.expect("the CPU time of a cgroup").saturating_sub(own)
    }
}

impl Drop for NodeCgroup {
    fn drop(&mut self) {
        // containerd has exited by now, but its last processes may still be zombies.
        crate::harness::poll(Duration::from_secs(5), || fs::remove_dir(&self.dir).ok());
    }
}
