//! SIGKILL for one of three processes: the one that holds a pod's namespaces, the pod's shim, or
//! containerd. Afterwards kubelet must learn of the loss and be able to remove the pod. Nothing may
//! be left.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{is_known, with_each, with_each_known};
use crate::harness::{
    Container, Cri, Handler, PATIENCE, Pod, PodSpec, await_value, eventually, poll, write_program,
};
use usher_api::cri::{ContainerState, NamespaceMode, PodSandboxState};

const STEPS: [Step; 3] = [Step::Empty, Step::Created, Step::Running];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    /// A pod without a container.
    Empty,
    /// A pod with a container that is not started.
    Created,
    /// A pod with two running containers.
    Running,
}

impl Step {
    /// Makes a pod in this state. Returns the pod and its containers.
    fn of<'a>(self, node: &'a Cri, handler: Handler) -> (Pod<'a>, Vec<Container<'a>>) {
        let pod = node.run_pod(&PodSpec::new("mortal", handler));
        let containers = match self {
            Self::Empty => vec![],
            Self::Created => vec![pod.create("a", &["/bin/witness", "a"], |_| {})],
            Self::Running => vec![pod.witness("a", &[]), pod.witness("b", &[])],
        };
        (pod, containers)
    }
}

fn destroy(pid: u32) {
    let pid = Pid::from_raw(i32::try_from(pid).expect("a PID"));
    kill(pid, Signal::SIGKILL).expect("the process exists");
}

#[test]
fn a_pod_whose_holder_dies_is_not_ready_and_can_be_recreated() {
    with_each(|node, handler| {
        for step in STEPS {
            let (pod, containers) = step.of(node, handler);
            destroy(pod.pid());
            pod.await_not_ready();
            // kubelet also stops and removes the containers.
            for container in &containers {
                container.stop(1);
            }
            pod.end();
            assert!(node.containers().is_empty(), "{step:?}");
            let again = node.run_pod(&PodSpec::new("mortal", handler));
            again.run("app", &["/bin/true"]).await_exit();
            again.end();
        }
    });
}

/// If a shim has died, containerd 2.3 runs the `delete` command only for the sandbox. So this
/// command must also end the pod's containers.
#[test]
fn a_pod_whose_shim_dies_is_not_ready_and_its_containers_end() {
    with_each_known(|node, handler| {
        for step in STEPS {
            let (pod, containers) = step.of(node, handler);
            let shims = node.shims();
            assert_eq!(shims.len(), 1, "{step:?}");
            destroy(shims[0]);
            pod.await_not_ready();
            if step == Step::Running {
                for container in &containers {
                    assert_ne!(container.await_exit(), 0, "{step:?}");
                }
            }
            eventually("nothing runs of the pod", PATIENCE, || {
                node.commands().is_empty()
            });
            pod.end();
            assert!(node.containers().is_empty(), "{step:?}");
        }
    });
}

#[test]
fn a_restarted_containerd_finds_its_pods() {
    with_each(|node, handler| {
        for step in STEPS {
            let (pod, containers) = step.of(node, handler);
            let holder = pod.pid();
            node.crash();
            node.restart();
            assert!(pod.is_ready(), "{step:?}");
            assert_eq!(pod.pid(), holder, "{step:?}");
            let runs =
                |container: &Container| container.state() == ContainerState::CONTAINER_RUNNING;
            assert_eq!(
                containers
                    .iter()
                    .filter(|container| runs(container))
                    .count(),
                if step == Step::Running { 2 } else { 0 },
                "{step:?}"
            );
            // The pod's containers and namespaces can still be used.
            pod.witness("late", &[]).sh("true");
            for container in &containers {
                if step == Step::Running {
                    container.sh("true");
                    container.stop(10);
                    assert_eq!(container.await_exit(), 0, "{step:?}");
                }
            }
            pod.end();
        }
    });
}

#[test]
fn deaths_while_containerd_is_down_are_known_afterwards() {
    with_each(|node, handler| {
        for kills_shim in [false, true] {
            let (pod, _) = Step::Running.of(node, handler);
            let victim = match kills_shim {
                true => node.shims()[0],
                false => pod.pid(),
            };
            node.crash();
            destroy(victim);
            node.restart();
            pod.await_not_ready();
            pod.end();
            assert!(node.containers().is_empty());
        }
    });
}

/// Any process can give itself the name of the process that holds a pod's namespaces. So the shim
/// identifies the holder by facts from the kernel.
#[test]
fn a_process_with_the_holders_name_is_not_killed_with_the_pod() {
    if !is_known() {
        return;
    }
    let node = Cri::start();
    let pod = node.run_pod(&PodSpec::new("mortal", Handler::Pauseless));
    let bundle = node
        .dir()
        .join("state/io.containerd.sandbox.controller.v1.shim/k8s.io")
        .join(&pod.id);
    assert!(bundle.is_dir(), "{}", bundle.display());
    let mut forger = Command::new("sh");
    forger.arg0("usher-sandbox").args(["-c", "read line"]);
    forger.arg(&bundle).stdin(Stdio::piped());
    let mut forger = forger.spawn().expect("a shell");
    let holder = pod.pid();
    // The holder is stopped by SIGSTOP. So it cannot notice that its shim has exited, and `delete`
    // has to kill it.
    let number = Pid::from_raw(i32::try_from(holder).expect("a PID"));
    kill(number, Signal::SIGSTOP).expect("the process exists");
    destroy(node.shims()[0]);
    pod.await_not_ready();
    pod.end();
    // The link to the executable of an exited process cannot be read.
    assert!(fs::read_link(format!("/proc/{holder}/exe")).is_err());
    assert_eq!(forger.try_wait().expect("a child"), None);
    drop(forger.stdin.take());
    forger.wait().expect("a child");
}

/// The process that holds the pod's namespaces exits when its shim dies. containerd need not make a
/// call for this.
#[test]
fn a_holder_ends_with_its_shim() {
    if !is_known() {
        return;
    }
    let node = Cri::start();
    for mode in [NamespaceMode::CONTAINER, NamespaceMode::POD] {
        let spec = PodSpec::new("mortal", Handler::Pauseless);
        let pod = node.run_pod(&spec.namespaces(|options| options.pid = mode.into()));
        let holder = format!("/proc/{}/exe", pod.pid());
        node.crash();
        destroy(node.shims()[0]);
        eventually("the holder is gone", PATIENCE, || {
            fs::read_link(&holder).is_err()
        });
        node.restart();
        pod.await_not_ready();
        pod.end();
    }
}

const MI: u64 = 1 << 20;

/// The memory limit that kubelet gave the pod.
const CEILING: u64 = 512 * MI;

/// A pod with several containers. The shim has lowered the memory limit that kubelet set for the
/// pod's cgroup.
///
/// The shim must record the original limit in the bundles of all containers. If it recorded the
/// limit in one bundle only, the test would fail.
fn sized(node: &Cri, handler: Handler) -> (Pod<'_>, Vec<Container<'_>>) {
    let spec = PodSpec::new("sized", handler)
        .memory(CEILING)
        .annotations(&[
            ("usher/cgroup-sizing", "Phase"),
            ("usher/apps", "web one two three"),
        ]);
    let pod = node.run_pod(&spec);
    let containers = ["web", "one", "two", "three"].map(|name| {
        pod.run_with(name, &["/bin/witness", name, "--ignore-term"], |config| {
            let linux = config.linux.mut_or_insert_default();
            linux
                .resources
                .mut_or_insert_default()
                .memory_limit_in_bytes = 48 << 20;
        })
    });
    eventually("the pod's cgroup is smaller", PATIENCE, || {
        pod.cgroup().memory_limit() < Some(CEILING)
    });
    (pod, containers.into())
}

/// kubelet uses the same cgroup for the pod's next sandbox. If the shim's lower limit stayed, the
/// next sandbox would get only what the old one needed.
#[test]
fn the_size_of_a_pods_cgroup_is_restored_after_its_shim_dies() {
    with_each(|node, handler| {
        for restarts in [false, true] {
            let (pod, containers) = sized(node, handler);
            if restarts {
                node.crash();
                node.restart();
            }
            destroy(node.shims()[0]);
            await_value("the memory", &Some(CEILING), || pod.cgroup().memory_limit());
            pod.await_not_ready();
            for container in &containers {
                assert_ne!(container.await_exit(), 0);
            }
            pod.end();
        }
    });
}

/// Installs a fake containerd-shim-runc-v2, which records its arguments and fails. Returns the file
/// with the arguments.
fn install_fake_shim(node: &Cri) -> PathBuf {
    let note = node.dir().join("another-shim");
    let script = format!(
        "#!/bin/busybox sh\necho \"$*\" >> {}\nexit 1\n",
        note.display()
    );
    let program = node.dir().join("bin/containerd-shim-runc-v2");
    write_program(&program, &script);
    note
}

/// A restarted containerd knows only the runtime type of a container, and could call the wrong
/// shim's `delete`.
#[test]
fn a_dead_pod_is_cleaned_up_by_its_own_kind_of_shim() {
    with_each(|node, handler| {
        let note = install_fake_shim(node);
        let (pod, containers) = Step::Running.of(node, handler);
        node.crash();
        node.restart();
        destroy(node.shims()[0]);
        pod.await_not_ready();
        for container in &containers {
            assert_ne!(container.await_exit(), 0);
        }
        pod.end();
        assert!(node.containers().is_empty());
        let run = fs::read_to_string(note).expect("containerd asks what it is");
        assert!(!run.contains(" -id "), "another shim was run: {run}");
    });
}

/// Times in milliseconds, counted from the start of the shim, at which the shim or containerd is
/// killed.
const MOMENTS: [u64; 5] = [0, 3, 8, 15, 40];

/// Maximum time until a shim exits if containerd dies before it requests a pod from this shim. The
/// shim waits for a while, because the request may still come.
const ORPHANS_END_WITHIN: Duration = Duration::from_secs(45);

/// Requests a pod. Calls `interrupt` when the pod's shim has run for `moment` milliseconds. Returns
/// the outcome of the request.
fn interrupted(
    node: &Cri,
    handler: Handler,
    moment: u64,
    interrupt: impl FnOnce(u32),
) -> Result<String, String> {
    eprintln!("{handler:?}, {moment} ms after its start");
    std::thread::scope(|scope| {
        let made = scope.spawn(|| {
            let made = node.try_run_pod(&PodSpec::new("young", handler));
            made.map(|pod| pod.id)
        });
        let shim = poll(PATIENCE, || serving(node));
        let shim = shim.expect("a shim comes for the pod");
        std::thread::sleep(Duration::from_millis(moment));
        interrupt(shim);
        made.join().expect("no panic")
    })
}

/// The process id of the shim that serves calls. Processes of the shim's `start` and `delete`
/// commands are left out.
fn serving(node: &Cri) -> Option<u32> {
    let mut commands = node.commands().into_iter();
    let serves = |words: &str| {
        words.contains("/containerd-shim-")
            && !["start", "delete", "-info"]
                .iter()
                .any(|word| words.split_whitespace().any(|other| other == *word))
    };
    commands
        .find(|(_, words)| serves(words))
        .map(|(pid, _)| pid)
}

/// Checks that the next pod works, and that nothing is left after it.
#[track_caller]
fn assert_recovered(node: &Cri, handler: Handler) {
    let pod = node.run_pod(&PodSpec::new("young", handler));
    pod.witness("app", &[]);
    pod.stop();
    pod.remove();
    poll(ORPHANS_END_WITHIN, || {
        node.remains().is_empty().then_some(())
    });
    let remains = node.remains();
    assert!(remains.is_empty(), "left behind:\n{}", remains.join("\n"));
}

#[test]
fn a_shim_that_dies_while_it_makes_a_pod_leaves_nothing() {
    with_each(|node, handler| {
        for moment in MOMENTS {
            let made = interrupted(node, handler, moment, |shim| {
                let _ = kill(Pid::from_raw(shim.cast_signed()), Signal::SIGKILL);
            });
            if made.is_ok() {
                eventually("the pod is not ready", PATIENCE, || {
                    let not_ready = PodSandboxState::SANDBOX_NOTREADY.into();
                    node.pods().iter().all(|pod| pod.state == not_ready)
                });
            }
            assert_eq!(node.remove_pods(), [""; 0]);
            eventually("nothing runs of the pod", PATIENCE, || {
                node.commands().is_empty()
            });
        }
        assert_recovered(node, handler);
    });
}

#[test]
fn a_containerd_that_dies_while_it_makes_a_pod_can_remove_it_later() {
    with_each(|node, handler| {
        for moment in MOMENTS {
            let _ = interrupted(node, handler, moment, |_| node.crash());
            node.restart();
            assert_eq!(node.remove_pods(), [""; 0]);
        }
        assert_recovered(node, handler);
    });
}
