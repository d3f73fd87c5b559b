//! Resizing of a whole pod by kubelet while the pod runs.

use crate::harness::{Cri, Handler, PATIENCE, PodSpec, Version, eventually};

const MI: u64 = 1 << 20;

/// containerd 2.4 and later versions report a resized pod to the shim that has made its sandbox.
#[test]
fn a_pod_that_gets_more_memory_is_sized_for_its_containers() {
    if Version::of_containerd() < Version(2, 4) {
        return;
    }
    let node = Cri::start();
    let spec = PodSpec::new("resized", Handler::Pauseless).memory(96 * MI);
    let spec = spec.annotations(&[("usher/cgroup-sizing", "Phase"), ("usher/apps", "web")]);
    let pod = node.run_pod(&spec);
    let web = pod.run_with("web", &["/bin/witness", "web"], |config| {
        let linux = config.linux.mut_or_insert_default();
        let resources = linux.resources.mut_or_insert_default();
        resources.memory_limit_in_bytes = 128 << 20;
    });
    node.await_event("web", "start");
    assert_eq!(pod.cgroup().memory_limit(), Some(96 * MI));
    pod.resize_memory(512 * MI);
    eventually("the pod has what its container needs", PATIENCE, || {
        let limit = pod.cgroup().memory_limit();
        limit.is_some_and(|limit| (128 * MI..192 * MI).contains(&limit))
    });
    web.stop(10);
    pod.end();
    node.clear();
}
