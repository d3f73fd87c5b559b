//! Kernel settings that belong to a pod's namespaces.

use super::{with_each, with_each_in_a_network};
use crate::harness::PodSpec;
use usher_api::cri::NamespaceMode;

#[test]
fn sysctls_of_the_pods_namespaces_apply_in_all_containers() {
    with_each_in_a_network(|node, spec| {
        let spec = spec
            .sysctl("kernel.shm_rmid_forced", "1")
            .sysctl("kernel.msgmax", "12345")
            .sysctl("fs.mqueue.msg_max", "17")
            .sysctl("net.ipv4.ip_unprivileged_port_start", "80");
        let pod = node.run_pod(&spec);
        for name in ["a", "b"] {
            let container = pod.witness(name, &[]);
            let read = |path: &str| container.sh(&format!("cat /proc/sys/{path}"));
            assert_eq!(read("kernel/shm_rmid_forced"), "1");
            assert_eq!(read("kernel/msgmax"), "12345");
            assert_eq!(read("fs/mqueue/msg_max"), "17");
            assert_eq!(read("net/ipv4/ip_unprivileged_port_start"), "80");
        }
        let of_node = std::fs::read_to_string("/proc/sys/kernel/msgmax").expect("the node's");
        assert_ne!(of_node.trim(), "12345");
    });
}

#[test]
fn a_sysctl_of_the_node_is_refused_by_name_and_leaves_nothing() {
    with_each(|node, handler| {
        // The last two settings belong to the network namespace and the IPC namespace. This pod
        // shares both with the node.
        for (name, value) in [
            ("vm.swappiness", "7"),
            ("kernel.nonesuch", "1"),
            ("net.ipv4.ip_unprivileged_port_start", "80"),
            ("kernel.shm_rmid_forced", "1"),
        ] {
            let spec = PodSpec::new("wrong", handler).sysctl(name, value);
            let spec = spec.namespaces(|options| options.ipc = NamespaceMode::NODE.into());
            let refused = node.try_run_pod(&spec).map(|pod| pod.id);
            let error = refused.expect_err(name);
            assert!(error.contains(name), "{name}: {error}");
            assert!(node.pods().is_empty(), "{name}");
            node.clear();
        }
    });
}

#[test]
fn a_sysctl_cannot_name_another_file() {
    with_each(|node, handler| {
        for name in [
            "kernel/../vm/swappiness",
            "kernel.shm_rmid_forced/../msgmax",
            "../x",
            "",
        ] {
            let spec = PodSpec::new("wrong", handler).sysctl(name, "7");
            let refused = node.try_run_pod(&spec).map(|pod| pod.id);
            assert!(refused.is_err(), "{name:?}");
            node.clear();
        }
    });
}
