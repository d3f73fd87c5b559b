//! The machine of a cluster: processes in separate namespaces.
//!
//! In the mount namespace, `/run`, `/var/lib` and `/var/log` are separate, and changes of `/etc`
//! and `/usr/local` remain inside. The network namespace has a loopback interface and a bridge. So
//! the computer is not changed, and any number of clusters can run side by side.
//!
//! Process 1 of the PID namespace stands for the machine. Killing this process ends everything at
//! once, as a power failure does. A program that enters the namespaces of process 1, as usher's
//! installer does, stays on the machine.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::harness::poll;

use super::cluster::PATIENCE;

/// The network device that connects the machine with the virtual machine.
pub const CABLE: &str = "cable";

/// The machine's boot script. `$1` is the cluster's directory. `$2` is the network device of the
/// virtual machine, if there is one.
const BOOT: &str = r#"
set -e
# kubelet leaves these sysctls alone if they have its values; the real ones belong to the whole computer.
fake() { echo "$2" > "$dir/sysctl/$1" && mount --bind "$dir/sysctl/$1" "/proc/sys/$(echo "$1" | tr . /)"; }
dir=$1
mkdir -p "$dir/sysctl" "$dir/var-lib" "$dir/var-log"
# As on Debian's nodes: no file there can be executed.
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
# A complete /proc: without one no user namespace can mount another (mount_namespaces(7), "fully visible").
mkdir /run/proc && mount -t proc proc /run/proc
ip link set lo up
# The API server's service address, so that no proxy has to redirect it.
ip addr add 10.96.0.1/32 dev lo
if [ "${2-}" ]; then
    # To the guest and its pods, which only have a route back to the API server.
    ip tuntap add dev "$2" mode tap
    ip addr add 10.88.0.2/24 dev "$2"
    ip link set "$2" up
    ip route add 10.89.0.0/16 via 10.88.0.1 src 10.96.0.1
else
    ip addr add 10.88.0.1/32 dev lo
fi
echo 1 > /proc/sys/net/ipv4/ip_forward
touch "$dir/booted"
# Collects ended processes: bash also collects inherited children.
while :; do sleep 3600 & wait; done
"#;

pub struct Machine {
    /// `unshare`, a child of the test.
    outer: Child,
    /// Process id of the machine's first process, as seen from outside of the machine. On the
    /// machine, this process has the id 1.
    init: u32,
}

impl Machine {
    /// Starts an empty machine. `dir` is the cluster's directory; errors go to `log`. `cable` is
    /// the network device of the virtual machine, if there is one.
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

    /// Ends everything at once, as when the power fails. Files stay; memory is lost.
    pub fn switch_off(mut self) {
        let init = i32::try_from(self.init).expect("a PID");
        let _ = kill(Pid::from_raw(init), Signal::SIGKILL);
        let _ = self.outer.wait();
    }

    /// True if a process runs on this machine.
    pub fn has(&self, pid: u32) -> bool {
        let namespace = |pid| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        namespace(pid).is_some_and(|own| Some(own) == namespace(self.init))
    }

    /// A command that runs on this machine.
    pub fn command<S: AsRef<OsStr>>(&self, words: &[S]) -> Command {
        let mut command = Command::new("nsenter");
        command.arg("--target").arg(self.init.to_string());
        command.args(["--mount", "--net", "--pid", "--"]);
        command.args(words);
        command.env_remove("NOTIFY_SOCKET");
        command
    }
}

/// Makes the kernel kill the command's process when the test process ends for any reason.
pub fn with_us(command: &mut Command) {
    let end_with_us = || Ok(nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?);
    // SAFETY: the closure makes a single system call.
    unsafe { command.pre_exec(end_with_us) };
}
