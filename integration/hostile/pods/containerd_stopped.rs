//! containerd is stopped while the pod ends, so its events are not received.

use nix::sys::signal::Signal;

use super::{Container, Pod, sleeper};

pub const PODS: &[Pod] = &[Pod {
    name: "containerd stopped",
    about: "containerd is stopped during the end",
    annotations: &[("usher/sidecars", "proxy"), ("usher/pre-exit", "before")],
    containers: &[
        Container::new("proxy", &["/bin/attacker", "forks"]),
        sleeper("web"),
        sleeper("before"),
    ],
    at_its_end: |stage| stage.signal_containerd(Signal::SIGSTOP),
    ..Pod::NEW
}];
