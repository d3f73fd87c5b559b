//! Pods as kubelet makes them, with a pause container and without: what is promised of both is tried with
//! both. Only containerd 2.3 and later has pods without one.

use crate::harness::{Cri, Handler, PodSpec, Version};

mod by_path;
mod crashes;
mod isolation;
mod namespaces;
mod order;
mod resized;
mod seen;
mod sharing;
mod sysctls;
mod users;

const BOTH: [Handler; 2] = [Handler::Usher, Handler::Pauseless];

/// Does the containerd that is tested with let a shim make sandboxes? Before 2.3 it ends by itself when such a pod
/// is in the node's network.
fn is_known() -> bool {
    Version::of_containerd() >= Version(2, 3)
}

/// Tries the same with a pause container and without, and sees to it that nothing is left of either.
#[track_caller]
fn with_each(test: impl Fn(&Cri, Handler)) {
    if !is_known() {
        return;
    }
    let node = Cri::start();
    for handler in BOTH {
        test(&node, handler);
        node.clear();
    }
}

/// The same for what needs a network of the pod's own.
#[track_caller]
fn with_each_in_a_network(test: impl Fn(&Cri, PodSpec)) {
    if !Cri::has_networks() {
        eprintln!("left out: no network plugins: apt-get install containernetworking-plugins");
        return;
    }
    with_each(|node, handler| test(node, PodSpec::new("web", handler).with_network()));
}
