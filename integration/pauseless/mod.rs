//! Pods as kubelet makes them, with a pause container and without: what is promised of both is tried with
//! both. Only containerd 2.x knows pods without one.

use crate::harness::{Cri, Handler, PodSpec, Version};

mod crashes;
mod isolation;
mod namespaces;
mod order;
mod seen;
mod sharing;
mod sysctls;

const BOTH: [Handler; 2] = [Handler::Usher, Handler::Pauseless];

/// Does the containerd that is tested with know sandboxes that a shim makes, and can it make their networks?
fn is_known() -> bool {
    let is_known = Version::of_containerd() >= Version(2, 0);
    is_known && (Handler::Pauseless.has_host_network() || has_networks())
}

fn has_networks() -> bool {
    let has = Cri::has_networks();
    if !has {
        eprintln!("left out: no network plugins: apt-get install containernetworking-plugins");
    }
    has
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
    if is_known() && has_networks() {
        with_each(|node, handler| test(node, PodSpec::new("web", handler).with_network()));
    }
}

/// The same for what needs the node's.
#[track_caller]
fn with_each_in_the_nodes_network(test: impl Fn(&Cri, PodSpec)) {
    with_each(|node, handler| {
        if handler.has_host_network() {
            test(node, PodSpec::in_the_nodes_network("host", handler));
        }
    });
}
