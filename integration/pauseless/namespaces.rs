//! Pods that use namespaces of the node, and PID namespaces that containers share.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::with_each;
use crate::harness::{Container, Cri, Handler, PATIENCE, PodSpec, eventually};
use usher_api::cri::{ContainerState, NamespaceMode};

fn of_node(node: &Cri, kind: &str) -> String {
    let pid = node.pid().expect("containerd runs");
    let link = fs::read_link(format!("/proc/{pid}/ns/{kind}")).expect("its namespace");
    link.display().to_string()
}

fn of(container: &Container, kind: &str) -> String {
    container.sh(&format!("readlink /proc/self/ns/{kind}"))
}

#[test]
fn a_pod_in_the_nodes_network_has_the_nodes_hostname() {
    with_each(|node, handler| {
        let pod = node.run_pod(&PodSpec::new("host", handler));
        let app = pod.witness("app", &[]);
        assert_eq!(of(&app, "net"), of_node(node, "net"));
        let name = fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
        assert_eq!(app.sh("hostname"), name.trim());
        assert_eq!(app.sh("cat /etc/hostname"), name.trim());
        assert_ne!(of(&app, "ipc"), of_node(node, "ipc"));
        assert_ne!(of(&app, "pid"), of_node(node, "pid"));
        assert_eq!(pod.status().network.ip, "");
    });
}

#[test]
fn a_pod_in_the_nodes_network_cannot_have_its_own_hostname() {
    with_each(|node, handler| {
        let spec = PodSpec::new("host", handler).with(|config| config.hostname = "own".to_owned());
        let refused = node.try_run_pod(&spec).map(|pod| pod.id);
        assert!(refused.is_err(), "{refused:?}");
        node.clear();
    });
}

#[test]
fn a_pod_can_use_the_nodes_pid_and_ipc_namespaces() {
    with_each(|node, handler| {
        let spec = PodSpec::new("host", handler).namespaces(|options| {
            options.pid = NamespaceMode::NODE.into();
            options.ipc = NamespaceMode::NODE.into();
        });
        let pod = node.run_pod(&spec);
        let app = pod.witness("app", &[]);
        for kind in ["pid", "ipc", "net"] {
            assert_eq!(of(&app, kind), of_node(node, kind), "{kind}");
        }
        // A pod in the node's IPC namespace also has the node's shared memory.
        let device = app.sh("stat -c %d /dev/shm");
        let of_node = fs::metadata("/dev/shm").expect("the node's");
        assert_eq!(device, of_node.dev().to_string());
        pod.end();
        assert!(Path::new("/dev/shm").exists());
    });
}

fn sharing_pids(name: &str, handler: Handler) -> PodSpec {
    let spec = PodSpec::new(name, handler);
    spec.namespaces(|options| options.pid = NamespaceMode::POD.into())
}

#[test]
fn process_1_of_shared_pids_collects_orphans() {
    with_each(|node, handler| {
        let pod = node.run_pod(&sharing_pids("pids", handler));
        let (a, b) = (pod.witness("a", &[]), pod.witness("b", &[]));
        assert_eq!(of(&a, "pid"), of(&b, "pid"));
        let first = match handler {
            Handler::Pauseless => "usher-sandbox",
            _ => "pause",
        };
        assert_eq!(a.sh("cat /proc/1/comm"), first);
        let orphan = a.sh("setsid sh -c 'sleep 0.2' >/dev/null 2>&1 & echo $!");
        let gone = format!("test ! -e /proc/{orphan}");
        eventually("the orphan is collected", PATIENCE, || {
            b.exec(&["/bin/sh", "-c", &gone]).ok()
        });
        assert_eq!(b.sh("grep -l '^State:.Z' /proc/[0-9]*/status || true"), "");
    });
}

#[test]
fn a_container_that_dies_in_shared_pids_leaves_the_others_running() {
    with_each(|node, handler| {
        let pod = node.run_pod(&sharing_pids("pids", handler));
        let (a, b) = (pod.witness("a", &[]), pod.witness("b", &[]));
        a.kill("SIGKILL");
        assert_eq!(a.await_exit(), 137);
        assert_eq!(b.state(), ContainerState::CONTAINER_RUNNING);
        assert!(pod.is_ready());
        b.stop(10);
        assert_eq!(b.await_exit(), 0);
    });
}
