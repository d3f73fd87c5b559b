//! Pods that the test creates as kubelet does, with and without a pause container. If both kinds of
//! pods must behave the same, both are tested. Pods without a pause container need containerd 2.3.

use crate::harness::{Cri, Handler, PodSpec, Version};

mod by_path;
mod crashes;
mod isolation;
mod namespaces;
mod order;
mod reports;
mod resizing;
mod sharing;
mod sysctls;
mod users;

const BOTH: [Handler; 2] = [Handler::Usher, Handler::Pauseless];

/// True if the tested containerd supports shims that make sandboxes. In versions before 2.3, a pod
/// without a pause container that uses the node's network ends by itself.
fn is_known() -> bool {
    Version::of_containerd() >= Version(2, 3)
}

/// Runs a test twice, with and without a pause container. Checks after each run that nothing is
/// left.
#[track_caller]
fn with_each(test: impl Fn(&Cri, Handler)) {
    if is_known() {
        with_each_known(test);
    }
}

/// Does the same as `with_each`, but also supports containerd 2.0 to 2.2. With these versions, the
/// test runs only with a pause container. Skips the test with containerd 1, which may be configured
/// without CRI.
#[track_caller]
fn with_each_known(test: impl Fn(&Cri, Handler)) {
    if Version::of_containerd() < Version(2, 0) {
        return;
    }
    let node = Cri::start();
    for handler in BOTH {
        if handler == Handler::Usher || is_known() {
            test(&node, handler);
            node.clear();
        }
    }
}

/// Does the same as `with_each`, for pods that have a separate network.
#[track_caller]
fn with_each_in_a_network(test: impl Fn(&Cri, PodSpec)) {
    if !Cri::has_networks() {
        eprintln!("left out: no network plugins: apt-get install containernetworking-plugins");
        return;
    }
    with_each(|node, handler| test(node, PodSpec::new("web", handler).with_network()));
}
