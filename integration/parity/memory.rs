//! OOM events: for which container and at what time the shim publishes them.

use std::fs;
use std::path::{Path, PathBuf};

use super::{both, script};
use crate::harness::{ContainerSpec, Containerd, PATIENCE, Status, eventually, runtime_under_test};

const LIMIT: &str = "33554432";

/// A command that fills memory until the kernel kills it: `tail` reads a line that never ends.
const EATER: &str = "tail /dev/zero";

/// Limits the container's memory to twice as much as the programs of the tests need. A program that
/// fills memory soon reaches the limit.
fn limited(spec: ContainerSpec) -> ContainerSpec {
    spec.option(&["--memory-limit", LIMIT])
}

fn count(host: &Containerd, id: &str, topic: &str) -> usize {
    let topics = host.topics(id);
    topics.iter().filter(|seen| *seen == topic).count()
}

#[track_caller]
fn await_oom(host: &Containerd, id: &str) {
    host.await_events("memory ran out", |events| {
        events
            .iter()
            .any(|e| e.topic == "/tasks/oom" && e.container() == id)
    });
}

#[test]
fn an_oom_event_precedes_the_exit() {
    let seen = both(|host, runtime| {
        let eater = script(runtime, "a", &format!("exec {EATER}"));
        host.run(&limited(eater));
        host.wait_exit("a");
        host.topics("a")
    });
    let expected = [
        "/containers/create",
        "/tasks/create",
        "/tasks/start",
        "/tasks/oom",
        "/tasks/exit 137",
    ];
    assert_eq!(seen, expected);
}

#[test]
fn an_oom_event_comes_at_once_if_the_container_survives() {
    let seen = both(|host, runtime| {
        let eater = format!("{EATER}; echo $? > /shared/code; exec sleep 1000");
        host.run(&limited(script(runtime, "a", &eater)));
        await_oom(host, "a");
        let status = host.status("a");
        let code = host.shared_dir().join("code");
        let read = || fs::read_to_string(&code).unwrap_or_default();
        eventually("the parent has printed the exit code", PATIENCE, || {
            read() == "137\n"
        });
        host.kill("a", "SIGKILL");
        host.wait_exit("a");
        // The kernel's OOM kill causes one event. The SIGKILL from the caller causes no event.
        (status, count(host, "a", "/tasks/oom"))
    });
    assert_eq!(seen, (Some(Status::Running), 1));
}

#[test]
fn a_sigkill_or_its_exit_code_causes_no_oom_event() {
    let seen = both(|host, runtime| {
        let code = limited(script(runtime, "a", "exit 137"));
        host.run(&code);
        let killed = limited(script(runtime, "b", "exec sleep 1000"));
        host.run(&killed);
        host.kill("b", "SIGKILL");
        ["a", "b"].map(|id| (host.wait_exit(id), count(host, id, "/tasks/oom")))
    });
    assert_eq!(seen, [(137, 0), (137, 0)]);
}

#[test]
fn an_oom_event_of_an_exec_precedes_its_exit() {
    let host = Containerd::start();
    let runtime = runtime_under_test();
    host.run(&limited(script(&runtime, "a", "exec sleep 1000")));
    let exec = host.exec("a", &["/bin/sh", "-c", &format!("exec {EATER}")]);
    assert_eq!(exec.code, Some(137));
    host.await_events("the exec has ended", |events| {
        events.iter().any(|e| e.topic == "/tasks/exit")
    });
    let topics = host.topics("a");
    assert_eq!(
        topics[topics.len() - 2..],
        ["/tasks/oom", "/tasks/exit 137"]
    );
    assert_eq!(host.status("a"), Some(Status::Running));
}

/// With cgroup v1 the kernel does not notify the shim of a kill in a cgroup below the container's
/// own. The shim detects the kill when the container ends, at the latest.
#[test]
fn an_oom_event_of_a_cgroup_below_the_containers_precedes_the_exit() {
    let host = Containerd::start();
    let child = format!("until test -e /shared/go; do sleep 0.01; done; exec {EATER}");
    let parent = format!("sh -c '{child}' & echo $! > /shared/up; wait; exit 6");
    let pids = ["--with-ns", "pid:/proc/self/ns/pid"];
    host.run(&script(&runtime_under_test(), "a", &parent).option(&pids));
    let pid = || fs::read_to_string(host.shared_dir().join("up")).unwrap_or_default();
    eventually("both run", PATIENCE, || pid().ends_with('\n'));
    let below = Path::new("/sys/fs/cgroup/memory")
        .join(&host.namespace)
        .join("a/below");
    if !below.parent().is_some_and(Path::exists) {
        // The test is for cgroup v1. In cgroup v2, the kernel itself counts kills in cgroups below,
        // and a cgroup with processes cannot have a child cgroup with a limit.
        return;
    }
    fs::create_dir(&below).expect("a cgroup");
    fs::write(below.join("memory.limit_in_bytes"), LIMIT).expect("a limit");
    fs::write(below.join("cgroup.procs"), pid()).expect("a process moved");
    fs::write(host.shared_dir().join("go"), "").expect("the sign");
    assert_eq!(host.wait_exit("a"), 6);
    let topics = host.topics("a");
    assert_eq!(topics[topics.len() - 2..], ["/tasks/oom", "/tasks/exit 6"]);
}

/// With cgroup v1, the kernel tells the shim of one kill as if it had happened in each container of
/// the pod. containerd's own shim then publishes an event for each container.
#[test]
fn only_the_killed_container_of_a_pod_gets_an_oom_event() {
    let host = Containerd::start();
    let pod = Pod::new(&host);
    for id in ["sandbox", "other"] {
        host.run(&pod.container(id, "exec sleep 1000"));
    }
    pod.limit();
    host.run(&pod.container("eater", &format!("{EATER}; exec sleep 1000")));
    await_oom(&host, "eater");
    host.run(&pod.container("dies", &format!("exec {EATER}")));
    assert_eq!(host.wait_exit("dies"), 137);
    for id in ["sandbox", "other", "eater"] {
        host.kill(id, "SIGKILL");
        host.wait_exit(id);
    }
    let told = ["sandbox", "other", "eater", "dies"].map(|id| count(&host, id, "/tasks/oom"));
    assert_eq!(told, [0, 0, 1, 1]);
    for id in ["sandbox", "other", "eater", "dies"] {
        host.delete(id);
    }
}

#[test]
fn the_oom_watch_ends_with_its_container() {
    let host = Containerd::start();
    let runtime = runtime_under_test();
    let container =
        |id: &str, program: &str| limited(script(&runtime, id, program)).in_pod("pod", id);
    host.run(&container("stays", "exec sleep 1000"));
    let [shim] = host.shims()[..] else {
        panic!("one shim, not {:?}", host.shims())
    };
    let descriptors = || fs::read_dir(format!("/proc/{shim}/fd")).map_or(0, Iterator::count);
    let before = descriptors();
    for n in 0..3 {
        let id = format!("eater-{n}");
        host.run(&container(&id, &format!("exec {EATER}")));
        host.wait_exit(&id);
        host.delete(&id);
    }
    // The number of descriptors may be higher for a moment, because connections also use
    // descriptors.
    eventually("nothing is open any more", PATIENCE, || {
        descriptors() <= before
    });
}

/// A cgroup shared by several containers, like that of a Kubernetes pod.
struct Pod {
    path: String,
}

impl Pod {
    fn new(host: &Containerd) -> Self {
        Self {
            path: format!("/{}/pod", host.namespace),
        }
    }

    fn container(&self, id: &str, program: &str) -> ContainerSpec {
        script(&runtime_under_test(), id, program)
            .in_pod("pod", id)
            .option(&["--cgroup", &format!("{}/{id}", self.path)])
    }

    /// Limits the memory of all containers together. The cgroup exists only after the first
    /// container was created.
    fn limit(&self) {
        let below = self.path.trim_start_matches('/');
        let v1 = Path::new("/sys/fs/cgroup/memory").join(below);
        let file = match v1.exists() {
            true => v1.join("memory.limit_in_bytes"),
            false => Path::new("/sys/fs/cgroup").join(below).join("memory.max"),
        };
        fs::write(&file, LIMIT).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    }
}

impl Drop for Pod {
    /// Removes the cgroup, because neither containerd nor a shim does so.
    fn drop(&mut self) {
        let below = self.path.trim_start_matches('/');
        let root = PathBuf::from("/sys/fs/cgroup");
        let controllers = fs::read_dir(&root).into_iter().flatten().flatten();
        let roots = controllers.map(|entry| entry.path());
        for root in roots.chain([root.clone()]) {
            let _ = fs::remove_dir(root.join(below));
        }
    }
}
