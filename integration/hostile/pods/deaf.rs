//! Nobody listens: sidecar, app and defers end for nothing but SIGKILL.

use super::{Pod, sleeper};

pub const PODS: &[Pod] = &[Pod {
    name: "deaf",
    about: "nothing ends for a stop signal",
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
