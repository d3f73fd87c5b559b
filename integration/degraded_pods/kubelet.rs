//! Drives one pod as kubelet and containerd do.

use std::fs;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::harness::{ContainerSpec, Containerd, PATIENCE, Stopped, eventually};

/// Time between two consecutive stop requests when a pod is deleted.
const APART: Duration = Duration::from_millis(10);

/// Options of a container that fails soon after its start, as in a crash loop.
pub const CRASHES: &[&str] = &["--run-for", "100ms", "--exit", "1"];

/// Options of a defer that finishes soon.
pub const QUICK: &[&str] = &["--run-for", "300ms"];

/// A termination window of 20 seconds: even on a slow machine the second stop request arrives
/// within the window, and so begins the termination.
pub const WINDOW: (&str, &str) = ("usher/termination-window", "20s");

/// The id of the sandbox container, which is also the pod's name.
pub const SANDBOX: &str = "pod1";

type Annotations = &'static [(&'static str, &'static str)];

/// A pod with a sandbox container. A container's id is its name, or `name.restarts` after a
/// restart.
pub struct Kubelet {
    pub host: Containerd,
    annotations: Annotations,
    grace: Duration,
}

impl Kubelet {
    /// Runs the sandbox of a pod with a grace period of `grace` seconds.
    #[track_caller]
    pub fn run_pod(annotations: Annotations, grace: u64) -> Self {
        let host = Containerd::start();
        let sandbox = ContainerSpec::new(SANDBOX)
            .in_pod(SANDBOX, "")
            .annotation("io.kubernetes.cri.container-type", "sandbox")
            .annotations(annotations)
            .args(&["/bin/sleep", "1000000"]);
        host.run(&sandbox);
        Self {
            host,
            annotations,
            grace: Duration::from_secs(grace),
        }
    }

    /// A witness with the annotations that the CRI plugin gives to a container of this pod.
    pub fn witness(&self, id: &str, options: &[&str]) -> ContainerSpec {
        let (name, restarts) = id.split_once('.').unwrap_or((id, "0"));
        ContainerSpec::new(id)
            .in_pod(SANDBOX, name)
            .annotation("io.kubernetes.cri.container-type", "container")
            .annotation("io.kubernetes.container.restartCount", restarts)
            .annotation(
                "io.kubernetes.pod.terminationGracePeriod",
                &self.grace.as_secs().to_string(),
            )
            .annotations(self.annotations)
            .witness(options)
    }

    #[track_caller]
    pub fn run(&self, id: &str, options: &[&str]) {
        self.host.run(&self.witness(id, options));
    }

    /// Waits for a container to exit, deletes its task as containerd does, and returns the exit
    /// code.
    #[track_caller]
    pub fn ended(&self, id: &str) -> u32 {
        let code = self.host.wait_exit(id);
        self.host.delete(id);
        code
    }

    /// Stops these containers at the same time, as at the end of a pod. Kills a container when the
    /// grace period since the answer to its stop request is over. Deletes each container when it
    /// has exited.
    #[track_caller]
    pub fn stop(&self, ids: &[&str]) -> Vec<Stopped> {
        let stop = |id| {
            let stopped = self.host.end_pod(&[id], self.grace);
            self.host.delete(id);
            stopped
        };
        let stopped = thread::scope(|scope| {
            let mut stops = Vec::new();
            for &id in ids {
                stops.push(scope.spawn(move || stop(id)));
                thread::sleep(APART);
            }
            let joined = stops.into_iter().map(|stop| stop.join());
            joined.collect::<Result<Vec<_>, _>>()
        });
        let stopped = stopped.expect("all containers have been stopped");
        stopped.into_iter().flatten().collect()
    }

    /// Deletes the pod. `ids` names the containers that the pod's status in the API lists as
    /// running. Returns how each of them stopped, in the order of `ids`.
    #[track_caller]
    pub fn delete(&self, ids: &[&str]) -> Vec<Stopped> {
        let stopped = self.stop(ids);
        self.host.kill(SANDBOX, "SIGKILL");
        self.ended(SANDBOX);
        stopped
    }

    pub fn starts(&self, name: &str) -> usize {
        self.host.record().all(name, "start").count()
    }

    #[track_caller]
    pub fn await_starts(&self, name: &str, times: usize) {
        let what = format!("{name} was executed {times} times");
        self.host
            .await_record(&what, |record| record.all(name, "start").count() == times);
    }

    /// Kills a container's process from outside, as the kernel's OOM killer does.
    #[track_caller]
    pub fn crash(&self, id: &str) {
        let pid = self.host.task_api(id).state(id, "").expect("State").pid;
        let process = Pid::from_raw(i32::try_from(pid).expect("a process id"));
        kill(process, Signal::SIGKILL).expect("kill");
        eventually("the process has ended", PATIENCE, || {
            let status = fs::read_to_string(format!("/proc/{pid}/status"));
            status.map_or(true, |status| status.contains("State:\tZ"))
        });
    }

    /// True if the container has an exit event. The exit events of its execs do not count.
    pub fn has_exited(&self, id: &str) -> bool {
        let mut events = self.host.events().into_iter();
        events.any(|e| e.topic == "/tasks/exit" && e.container() == id && e.is_init())
    }

    /// Crashes a sidecar twice. The shim restarts it in place, and its second restart waits ten
    /// seconds.
    #[track_caller]
    pub fn put_into_back_off(&self, id: &str) {
        self.crash(id);
        self.await_starts(id, 2);
        self.crash(id);
    }
}
