//! Its caller has paused one container when all are told to end, another stops itself.

use std::time::Duration;

use crate::harness::eventually;

use super::{Container, Pod};

/// How long a caller goes on trying to pause what forks all the time: on cgroup v1 runc's freezer does not always
/// catch all of it on a busy machine, and says that it is "unable to freeze".
const PAUSED_WITHIN: Duration = Duration::from_secs(60);

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
        let pause = || stage.host.ctr(&["tasks", "pause", "proxy"]).ok();
        eventually("the proxy is paused", PAUSED_WITHIN, pause);
    },
    ..Pod::NEW
}];
