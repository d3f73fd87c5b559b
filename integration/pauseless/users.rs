//! Pods in a user namespace: root in the pod is an unprivileged user on the node.

use std::process::Command;

use super::{with_each, with_each_in_a_network};
use crate::harness::{PodSpec, Version, oci_runtime};
use usher_api::cri::{IDMapping, NamespaceMode, UserNamespace};

/// The user id on the node to which the pod's root is mapped.
const ROOT: u32 = 100_000;
const USERS: u32 = 65_536;

/// True if the OCI runtime supports pods in user namespaces. containerd then needs mounts with
/// mapped ids, which runc supports since 1.2.
fn is_known() -> bool {
    let said = Command::new(oci_runtime()).arg("--version").output();
    let said = said.expect("the OCI runtime").stdout;
    let said = String::from_utf8_lossy(&said).into_owned();
    let version = said.lines().next().and_then(|line| line.split(' ').nth(2));
    let mut numbers = version
        .unwrap_or_default()
        .split('.')
        .map(str::parse::<u32>);
    let found = numbers.next().zip(numbers.next());
    let is_known =
        matches!(found, Some((Ok(major), Ok(minor))) if Version(major, minor) >= Version(1, 2));
    if !is_known {
        eprintln!("left out: user namespaces want runc 1.2, not {said}");
    }
    is_known && oci_runtime().ends_with("runc")
}

fn with_users(spec: PodSpec) -> PodSpec {
    let mut map = IDMapping::new();
    map.host_id = ROOT;
    map.length = USERS;
    let mut users = UserNamespace::new();
    users.mode = NamespaceMode::POD.into();
    users.uids.push(map.clone());
    users.gids.push(map);
    spec.namespaces(|options| *options.userns_options.mut_or_insert_default() = users)
}

#[test]
fn an_impossible_user_namespace_mode_is_refused() {
    with_each(|node, handler| {
        for mode in [NamespaceMode::CONTAINER, NamespaceMode::TARGET] {
            let spec = PodSpec::new("wrong", handler).namespaces(|options| {
                options.userns_options.mut_or_insert_default().mode = mode.into();
            });
            let refused = node.try_run_pod(&spec).map(|pod| pod.id);
            let error = refused.expect_err("no pod");
            assert!(error.contains("user namespace mode"), "{mode:?}: {error}");
            node.clear();
        }
    });
}

#[test]
fn root_in_the_pod_is_unprivileged_on_the_node() {
    if !is_known() {
        return;
    }
    with_each_in_a_network(|node, spec| {
        let pod = node.run_pod(&with_users(spec));
        let app = pod.run("app", &["/bin/sleep", "1000"]);
        assert_eq!(app.sh("id -u"), "0");
        let map = app.sh("cat /proc/self/uid_map");
        let map: Vec<&str> = map.split_whitespace().collect();
        assert_eq!(map, ["0", "100000", "65536"]);
        // The user namespace of the pod owns all other namespaces of the pod. The following files
        // belong to the root user of the pod.
        for file in ["/etc/hostname", "/etc/hosts", "/etc/resolv.conf"] {
            assert_eq!(app.sh(&format!("stat -c %u {file}")), "0", "{file}");
        }
        assert_eq!(app.sh("hostname"), "web");
        assert_eq!(app.sh("stat -c %a /dev/shm"), "1777");
        app.sh("echo x > /dev/shm/x");
        let users = |pid: u32| {
            let link = std::fs::read_link(format!("/proc/{pid}/ns/user"));
            link.expect("a namespace")
        };
        assert_eq!(users(app.pid()), users(pod.pid()));
    });
}
