//! A node that is a virtual machine with a Debian kernel, cgroup v2 and systemd. kubelet and
//! containerd are services of systemd. The processor is emulated, so everything on this node takes
//! ten times as long. The rest of the cluster runs on the [machine](super::machine).
//!
//! The virtual machine sees the cluster's directory at the same path, so that tests can read logs
//! and the records of containers. Commands reach the virtual machine through a socket of systemd
//! (`agent` in `integration/guest/root`). A virtual cable connects the machine with the node and
//! its pods.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use crate::harness::{poll, run, shim_dir};

use super::cluster::{Cluster, PATIENCE, held};
use super::machine::{CABLE, Machine, with_us};
use super::settings;

const SERVICES: [&str; 2] = ["containerd", "kubelet"];

/// Debian's package installs this program in a directory that is not on the `PATH`.
const VIRTIOFSD: &str = "/usr/lib/qemu/virtiofsd";

/// Memory of the virtual machine. kubelet, containerd and some pods have to fit into it.
const MEMORY: &str = "3072M";

/// Time limit for a boot.
const START: Duration = Duration::from_secs(60);
/// Number of attempts to boot.
const STARTS: usize = 4;

const TOP: &str = env!("CARGO_MANIFEST_DIR");

/// Sends a command to the agent in the virtual machine, prints the command's output, and exits with
/// its status. `$1` is the cluster's directory.
const ASK: &str = r#"
directory=$(mktemp --directory "$1/agent/XXXXXX") && shift || exit
printf '%s\0' "$@" >"$directory/words"
exec 3<>/dev/tcp/10.88.0.1/2222 && echo "$directory" >&3 && read -r _ <&3
cat "$directory/out" 2>/dev/null
cat "$directory/err" >&2
status=$(cat "$directory/status" 2>/dev/null)
rm --recursive "$directory"
exit "${status:-255}"
"#;

pub struct Guest {
    /// The directory with the kernel and disk made by `integration/guest/build`.
    image: PathBuf,
    /// QEMU, and the file server of the shared directory.
    processes: Mutex<Vec<Child>>,
}

impl Guest {
    pub fn of(image: &Path) -> Self {
        Self {
            image: image.to_owned(),
            processes: Mutex::default(),
        }
    }

    pub fn is_there(name: &str) -> bool {
        SERVICES.contains(&name)
    }

    /// Prepares the disk and the programs of the virtual machine.
    pub fn prepare(&self, cluster: &Cluster) {
        for name in [
            "agent",
            "guest/bin",
            "guest/cni",
            "guest/etc",
            "guest/usher",
        ] {
            fs::create_dir_all(cluster.path(name)).expect("a directory of the node");
        }
        let programs = &cluster.programs;
        let put = |from: PathBuf, to: &str| {
            let name = from.file_name().expect("a program");
            let to = cluster.path(to).join(name);
            fs::copy(&from, to).unwrap_or_else(|e| panic!("{}: {e}", from.display()));
        };
        for name in ["containerd", "ctr", "containerd-shim-runc-v2"] {
            put(programs.containerd.join(name), "guest/bin");
        }
        put(programs.kubernetes.join("bin/kubelet"), "guest/bin");
        let runc = programs.runc.clone().expect("the runc of the node");
        put(runc, "guest/bin");
        for name in ["bridge", "host-local", "loopback"] {
            put(programs.parts.join("usr/lib/cni").join(name), "guest/cni");
        }
        for name in ["containerd-shim-usher-v2", "usher"] {
            let mut strip = Command::new("strip");
            strip.arg("--strip-debug").arg("-o");
            strip.arg(cluster.path("guest/usher").join(name));
            strip.arg(shim_dir().join(name));
            must(strip);
        }
        for name in SERVICES {
            let unit = cluster.path(&format!("guest/{name}.service"));
            fs::write(unit, settings::unit(cluster, name)).expect("a unit");
        }
        let disk = cluster.path("disk");
        let mut copy = Command::new("cp");
        copy.arg("--sparse=always");
        copy.arg(self.image.join("root.ext4")).arg(&disk);
        must(copy);
        // Data on the disk must survive when the power fails.
        let mut tune = Command::new("tune2fs");
        tune.args(["-O", "has_journal"]).arg(&disk);
        must(tune);
    }

    /// Installs usher by `usher install`, as users do.
    pub fn install_usher(&self, cluster: &Cluster) {
        let usher = cluster.path("guest/usher/usher").display().to_string();
        let words = [&*usher, "install"]
            .into_iter()
            .chain(super::cluster::pauseless());
        let words: Vec<&str> = words.collect();
        let finished = run(self.command(cluster, &words), PATIENCE);
        assert!(finished.ok(), "usher install: {}", finished.err());
    }

    /// Boots the virtual machine. QEMU runs on `machine`, which must have been switched on just
    /// before. Repeats a failed boot, because with this QEMU about one boot in ten hangs, or
    /// crashes the first programs of a current kernel.
    pub fn switch_on(&self, cluster: &Cluster, machine: &Machine) {
        let mut tries = 0..STARTS;
        while tries.next().is_some() {
            self.end();
            self.start_machine(cluster, machine);
            if poll(START, || self.has_answered(cluster, machine)).is_some_and(|it_has| it_has) {
                return;
            }
        }
        let [qemu, console] = ["qemu", "console"].map(|log| cluster.log_tail(log, 20));
        panic!("the guest does not start:\n{qemu}\n{console}");
    }

    /// True once the virtual machine answers, false if it has exited, `None` while it may still
    /// boot.
    fn has_answered(&self, cluster: &Cluster, machine: &Machine) -> Option<bool> {
        std::thread::sleep(Duration::from_millis(500));
        let is_there = matches!(
            held(&self.processes).last_mut().map(Child::try_wait),
            Some(Ok(None))
        );
        if !is_there {
            return Some(false);
        }
        let command = machine.command(&words_for(cluster, &["true"]));
        run(command, PATIENCE).ok().then_some(true)
    }

    fn end(&self) {
        let processes = std::mem::take(&mut *held(&self.processes));
        for mut child in processes {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn start_machine(&self, cluster: &Cluster, machine: &Machine) {
        let directory = cluster.directory();
        let socket = format!("{directory}/files.sock");
        let _ = fs::remove_file(&socket);
        let start = |words: &[&str], log: &str| {
            let mut command = machine.command(words);
            command.stdin(Stdio::null());
            command.stdout(cluster.log(log)).stderr(cluster.log(log));
            with_us(&mut command);
            let child = command.spawn().expect("nsenter");
            held(&self.processes).push(child);
        };
        start(
            &[
                VIRTIOFSD,
                &format!("--socket-path={socket}"),
                "-o",
                &format!("source={directory},sandbox=chroot,cache=auto"),
            ],
            "virtiofsd",
        );
        let listens = poll(PATIENCE, || Path::new(&socket).exists().then_some(()));
        assert!(listens.is_some(), "{}", cluster.log_tail("virtiofsd", 20));
        let network = format!("tap,id=network,ifname={CABLE},script=no,downscript=no");
        start(
            &[
                &format!("{TOP}/integration/guest/start"),
                &self.image.display().to_string(),
                // Debian's kernel measures pressure only with this parameter.
                &format!("systemd.unit=node.target psi=1 usher.cluster={directory}"),
                "-m",
                MEMORY,
                "-object",
                &format!("memory-backend-memfd,id=memory,size={MEMORY},share=on"),
                "-machine",
                "memory-backend=memory",
                "-drive",
                &format!("file={directory}/disk,format=raw,if=virtio,cache=unsafe"),
                "-netdev",
                &network,
                "-device",
                "virtio-net-pci,netdev=network,romfile=",
                "-chardev",
                &format!("socket,id=files,path={socket}"),
                "-device",
                "vhost-user-fs-pci,chardev=files,tag=cluster",
                "-serial",
                &format!("file:{directory}/log/console"),
            ],
            "qemu",
        );
    }

    pub fn command(&self, cluster: &Cluster, words: &[&str]) -> Command {
        cluster.on_machine(&words_for(cluster, words))
    }

    pub fn start(&self, cluster: &Cluster, service: &str) {
        self.systemctl(cluster, &["start", service]);
    }

    /// Stops a service, and waits until it has ended.
    pub fn stop(&self, cluster: &Cluster, service: &str, signal: &str) {
        if signal == "KILL" {
            self.signal(cluster, service, signal);
            let ended = poll(PATIENCE, || (!self.runs(cluster, service)).then_some(()));
            assert!(ended.is_some(), "{service} does not end");
        } else {
            self.systemctl(cluster, &["stop", service]);
        }
    }

    pub fn signal(&self, cluster: &Cluster, service: &str, signal: &str) {
        let signal = format!("--signal={signal}");
        self.systemctl(cluster, &["kill", "--kill-whom=main", &signal, service]);
    }

    pub fn runs(&self, cluster: &Cluster, service: &str) -> bool {
        let words = ["systemctl", "is-active", service];
        run(self.command(cluster, &words), PATIENCE).ok()
    }

    #[track_caller]
    pub fn systemctl(&self, cluster: &Cluster, words: &[&str]) {
        let finished = run(
            self.command(cluster, &[&["systemctl"], words].concat()),
            PATIENCE,
        );
        assert!(finished.ok(), "systemctl {words:?}: {}", finished.err());
    }
}

/// A command of the host that executes these words in the virtual machine.
fn words_for<'a>(cluster: &'a Cluster, words: &[&'a str]) -> Vec<&'a str> {
    let ask = ["bash", "-c", ASK, "ask", cluster.directory()];
    [&ask, words].concat()
}

#[track_caller]
fn must(command: Command) {
    let title = format!("{command:?}");
    let finished = run(command, PATIENCE);
    assert!(finished.ok(), "{title}: {}", finished.err());
}
