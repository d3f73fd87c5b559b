//! Defers that hang, fork, leave orphans, fail again and again, and are deaf all the while.

use super::{Container, Pod, sleeper};

pub const PODS: &[Pod] = &[Pod {
    name: "defers",
    about: "defers hang, fork, leave orphans, fail and come back",
    annotations: &[
        ("usher/sidecars", "proxy"),
        ("usher/pre-exit", "fails forks"),
        ("usher/post-exit", "orphans hangs"),
        ("restart.usher/fails", "OnFailure"),
        ("grace-period.usher/fails", "1s"),
    ],
    containers: &[
        sleeper("proxy"),
        sleeper("web"),
        Container::new("fails", &["/bin/false"]),
        Container::new("forks", &["/bin/villain", "forks"]),
        Container::new("orphans", &["/bin/villain", "orphans"]),
        sleeper("hangs"),
    ],
    is_plain: false,
    ..Pod::NEW
}];
