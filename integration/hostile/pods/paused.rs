//! Its caller has paused one container when all are told to end, another stops itself.

use super::{Container, Pod};

pub const PODS: &[Pod] = &[Pod {
    name: "paused",
    about: "one container paused by its caller, one stopped by itself",
    annotations: &[("usher/sidecars", "proxy")],
    containers: &[
        Container::new("proxy", &["/bin/villain", "forks"]),
        Container::new(
            "web",
            &["/bin/sh", "-c", "while :; do (kill -STOP -1); done"],
        ),
    ],
    at_its_end: |stage| {
        stage.host.must(&["tasks", "pause", "proxy"]);
    },
    ..Pod::NEW
}];
