//! Sidecar, app and defers ignore stop signals; only SIGKILL ends them.

use super::{Pod, sleeper};

pub const PODS: &[Pod] = &[Pod {
    name: "unresponsive",
    about: "all containers ignore stop signals",
    annotations: &[
        ("usher/sidecars", "proxy"),
        ("usher/pre-exit", "before"),
        ("usher/post-exit", "after"),
    ],
    containers: &[
        sleeper("proxy"),
        sleeper("web"),
        sleeper("before"),
        sleeper("after"),
    ],
    ..Pod::NEW
}];
