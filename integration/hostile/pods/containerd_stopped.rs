//! Nobody takes the pod's events: containerd stands still while it ends.

use nix::sys::signal::Signal;

use super::{Container, Pod, sleeper};

pub const PODS: &[Pod] = &[Pod {
    name: "containerd stopped",
    about: "nobody takes the events of the end",
    annotations: &[("usher/sidecars", "proxy"), ("usher/pre-exit", "before")],
    containers: &[
        Container::new("proxy", &["/bin/villain", "forks"]),
        sleeper("web"),
        sleeper("before"),
    ],
    at_its_end: |stage| stage.signal_containerd(Signal::SIGSTOP),
    ..Pod::NEW
}];
