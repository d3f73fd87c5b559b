//! A sandbox that has died, and another process that has got its process id.

use std::fs;
use std::process::{Child, Command};

use crate::harness::{ContainerSpec, Containerd, PATIENCE, eventually};

const ANNOTATIONS: [(&str, &str); 3] = [
    ("usher/sidecars", "proxy"),
    ("usher/grace-period", "5s"),
    ("restart.usher/proxy", "Always"),
];

/// Starts a process of the host that gets this process id. The id must be free.
fn take_number(pid: u32) -> Option<Other> {
    for _ in 0..100 {
        // The kernel gives the next process the id after the number in this file
        // (`proc_sys_kernel(5)`).
        let last = (pid - 1).to_string();
        fs::write("/proc/sys/kernel/ns_last_pid", last).ok()?;
        let other = Command::new("/bin/sleep").arg("1000").spawn();
        let other = Other(other.expect("a process"));
        if other.0.id() == pid {
            return Some(other);
        }
    }
    None
}

struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The sidecar's program only prints its namespace. If the shim used the namespaces of the wrong
/// process, the program would run in the host's namespaces.
#[test]
fn a_process_with_the_dead_sandboxs_id_lends_no_container_its_namespaces() {
    let host = Containerd::start();
    let pause = ContainerSpec::new("pod1")
        .in_pod("pod1", "")
        .annotation("io.kubernetes.cri.container-type", "sandbox")
        .annotations(&ANNOTATIONS)
        .args(&["/bin/sleep", "1000"]);
    host.run(&pause);
    let sandbox = host.task_api("pod1").state("pod1", "").expect("State").pid;
    let joined = |kind: &str, file: &str| format!("{kind}:/proc/{sandbox}/ns/{file}");
    let script = "readlink /proc/self/ns/uts >> /shared/places; exec sleep 1000";
    let proxy = ContainerSpec::new("proxy")
        .in_pod("pod1", "proxy")
        .annotation("io.kubernetes.cri.container-type", "container")
        .annotations(&ANNOTATIONS)
        .option(&["--with-ns", &joined("network", "net")])
        .option(&["--with-ns", &joined("ipc", "ipc")])
        .option(&["--with-ns", &joined("uts", "uts")])
        .script(script);
    host.run(&proxy);
    let places = || fs::read_to_string(host.shared_dir().join("places")).unwrap_or_default();
    eventually("the proxy runs", PATIENCE, || places().lines().count() == 1);
    let proxys = host
        .task_api("proxy")
        .state("proxy", "")
        .expect("State")
        .pid;
    // This container ignores its stop signal and runs on. So the proxy does not get a stop signal
    // yet.
    let web = ContainerSpec::new("web")
        .in_pod("pod1", "web")
        .annotation("io.kubernetes.cri.container-type", "container")
        .annotations(&ANNOTATIONS)
        .witness(&["--ignore-term"]);
    host.run(&web);
    host.await_event("web", "start");
    // The sandbox dies and is deleted, which frees its process id. Then the proxy dies.
    host.kill("pod1", "SIGKILL");
    host.wait_exit("pod1");
    host.delete("pod1");
    let other = take_number(sandbox).expect("the number is free");
    let pid = nix::unistd::Pid::from_raw(i32::try_from(proxys).expect("a process id"));
    // The proxy may have exited already, together with the sandbox.
    let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
    host.wait_exit("proxy");
    let own = fs::read_link("/proc/self/ns/uts").expect("a namespace");
    let own = own.display().to_string();
    assert!(!places().contains(&own), "{own}: {}", places());
    assert_eq!(places().lines().count(), 1, "{}", places());
    drop(other);
    host.wait_exit("web");
    host.delete("web");
    host.delete("proxy");
}
