//! The machine of a cluster: processes in namespaces of their own.
//!
//! Their mount namespace has `/run`, `/var/lib` and `/var/log` of its own, and what is written to `/etc`
//! and `/usr/local` stays in it; their network namespace has a loopback and a bridge, so that nothing of
//! what they run on is touched and any number of clusters can run beside each other. The first process of
//! their PID namespace is the machine: when it is killed, everything is gone at once, as when the power
//! fails; and who enters the namespaces of process 1 there is on that machine.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::harness::poll;

use super::cluster::PATIENCE;

/// The device that leads to a node of its own.
pub const CABLE: &str = "cable";

/// What the machine does when it is switched on: `$1` is the cluster's directory, and `$2`
/// what leads to its node, if that is another.
const BOOT: &str = r#"
set -e
# Not changed by kubelet if they are as it wants them; they are the whole machine's.
fake() { echo "$2" > "$dir/sysctl/$1" && mount --bind "$dir/sysctl/$1" "/proc/sys/$(echo "$1" | tr . /)"; }
dir=$1
mkdir -p "$dir/sysctl" "$dir/var-lib" "$dir/var-log"
# As on Debian's nodes: nothing that lies there can be executed.
mount -t tmpfs -o nosuid,nodev,noexec run /run
for name in etc usr-local; do
    mkdir -p "$dir/over/$name" "$dir/over/work-$name"
    of=/$(echo "$name" | tr - /)
    mount -t overlay -o "lowerdir=$of,upperdir=$dir/over/$name,workdir=$dir/over/work-$name" over "$of"
done
mkdir -p /run/lock /run/netns
basename "$dir" >/run/node
mount --bind "$dir/var-lib" /var/lib
mount --bind "$dir/var-log" /var/log
fake vm.overcommit_memory 1
fake vm.panic_on_oom 0
fake kernel.panic 10
fake kernel.panic_on_oops 1
fake kernel.keys.root_maxkeys 1000000
fake kernel.keys.root_maxbytes 25000000
# One that shows all: without it no user namespace may mount another (mount_namespaces(7), "fully visible").
mkdir /run/proc && mount -t proc proc /run/proc
ip link set lo up
# What all know the API server by: nobody has to lead them from there to where it is.
ip addr add 10.96.0.1/32 dev lo
if [ "${2-}" ]; then
    # To a node of its own, and to its pods, who know the way back to the API server alone.
    ip tuntap add dev "$2" mode tap
    ip addr add 10.88.0.2/24 dev "$2"
    ip link set "$2" up
    ip route add 10.89.0.0/16 via 10.88.0.1 src 10.96.0.1
else
    ip addr add 10.88.0.1/32 dev lo
fi
echo 1 > /proc/sys/net/ipv4/ip_forward
touch "$dir/booted"
# Fetches whatever has ended: bash does so with children that it has inherited, too.
while :; do sleep 3600 & wait; done
"#;

pub struct Machine {
    /// `unshare`, our child.
    outer: Child,
    /// Its child, the first process of the namespaces, as seen from here.
    init: u32,
}

impl Machine {
    /// Starts one with nothing on it. `dir` is the cluster's directory; what goes wrong goes to `log`. A
    /// `cable` leads to its node, if that is another.
    pub fn switch_on(dir: &Path, cable: Option<&str>, log: impl Fn() -> File) -> Self {
        let booted = dir.join("booted");
        let _ = fs::remove_file(&booted);
        let mut command = Command::new("unshare");
        command.args(["--mount", "--net", "--pid", "--fork", "--kill-child"]);
        command.args(["--mount-proc", "--propagation", "private", "--"]);
        command.args(["bash", "-c", BOOT, "machine"]).arg(dir);
        command.args(cable);
        command.stdin(Stdio::null()).stdout(log()).stderr(log());
        with_us(&mut command);
        let outer = command.spawn().expect("unshare");
        let ready = poll(PATIENCE, || booted.exists().then_some(()));
        assert!(ready.is_some(), "the machine is not there; see its log");
        let children = format!("/proc/{0}/task/{0}/children", outer.id());
        let children = fs::read_to_string(children).expect("the machine's first process");
        let init = children.trim().parse().expect("one process");
        Self { outer, init }
    }

    /// Ends everything at once, as when the power fails. Files are kept, but what lay in memory.
    pub fn switch_off(mut self) {
        let init = i32::try_from(self.init).expect("a PID");
        let _ = kill(Pid::from_raw(init), Signal::SIGKILL);
        let _ = self.outer.wait();
    }

    /// Whether a process runs there.
    pub fn has(&self, pid: u32) -> bool {
        let namespace = |pid| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        namespace(pid).is_some_and(|own| Some(own) == namespace(self.init))
    }

    /// A command that runs there.
    pub fn command<S: AsRef<OsStr>>(&self, words: &[S]) -> Command {
        let mut command = Command::new("nsenter");
        command.arg("--target").arg(self.init.to_string());
        command.args(["--mount", "--net", "--pid", "--"]);
        command.args(words);
        command.env_remove("NOTIFY_SOCKET");
        command
    }
}

/// A process that ends with this one, whatever becomes of this one.
pub fn with_us(command: &mut Command) {
    let end_with_us = || Ok(nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?);
    // SAFETY: one system call.
    unsafe { command.pre_exec(end_with_us) };
}
