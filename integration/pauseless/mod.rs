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

const BOTH: [Handler; 1] = [Handler::Usher];

/// Can a pod be without a pause container, as far as containerd is concerned?
fn is_known() -> bool {
    false
}

/// Tries the same with a pause container and without, and sees to it that nothing is left of either.
#[track_caller]
fn with_each(test: impl Fn(&Cri, Handler)) {
    if Version::of_containerd() < Version(2, 0) {
        return;
    }
    let node = Cri::start();
    for handler in BOTH {
        test(&node, handler);
        node.clear();
    }
}

/// The same for what needs the plugins that make a pod's network.
#[track_caller]
fn with_each_in_a_network(test: impl Fn(&Cri, PodSpec)) {
    if !Cri::has_networks() {
        eprintln!(
            "left out, for there are no network plugins: apt-get install containernetworking-plugins"
        );
        return;
    }
    with_each(|node, handler| test(node, PodSpec::new("web", handler).with_network()));
}
