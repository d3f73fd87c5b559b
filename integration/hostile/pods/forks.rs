//! Processes that fork as fast as possible up to the limit of processes, so that a killed process
//! is replaced at once.

use super::{Container, Pod, sleeper};

pub const PODS: &[Pod] = &[Pod {
    name: "forks",
    about: "a sidecar and an app fork without end",
    annotations: &[("usher/sidecars", "proxy"), ("usher/post-exit", "after")],
    containers: &[
        Container::new("proxy", &["/bin/attacker", "forks"]),
        Container::new("web", &["/bin/attacker", "forks"]),
        sleeper("after"),
    ],
    ..Pod::NEW
}];
