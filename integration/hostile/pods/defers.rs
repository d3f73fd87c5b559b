//! Defers that hang, fork, leave orphans or fail again and again, and ignore stop signals.

use super::{Container, Pod, sleeper};

pub const PODS: &[Pod] = &[Pod {
    name: "defers",
    about: "defers hang, fork, leave orphans, fail and restart",
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
        Container::new("forks", &["/bin/attacker", "forks"]),
        Container::new("orphans", &["/bin/attacker", "orphans"]),
        sleeper("hangs"),
    ],
    is_plain: false,
    ..Pod::NEW
}];
