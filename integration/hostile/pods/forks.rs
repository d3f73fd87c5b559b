//! Processes that fork as fast as they can, up to the limit of processes, and are replaced by others
//! when some of them are killed.

use super::{Container, Pod, sleeper};

pub const PODS: &[Pod] = &[Pod {
    name: "forks",
    about: "a sidecar and an app fork without end",
    annotations: &[("usher/sidecars", "proxy"), ("usher/post-exit", "after")],
    containers: &[
        Container::new("proxy", &["/bin/villain", "forks"]),
        Container::new("web", &["/bin/villain", "forks"]),
        sleeper("after"),
    ],
    ..Pod::NEW
}];
