//! The caller pauses one container right before the pod ends. The other container has sent SIGSTOP
//! to all of its processes. Only its first process goes on, because the kernel does not send the
//! signal to the first process of a PID namespace.

use std::time::Duration;

use crate::harness::eventually;

use super::{Container, Pod};

/// Maximum time for which the caller retries to pause a container whose processes fork. With cgroup
/// v1 on a busy machine, runc's freezer does not always catch all processes, and fails with "unable
/// to freeze".
const PAUSED_WITHIN: Duration = Duration::from_secs(60);

pub const PODS: &[Pod] = &[Pod {
    name: "paused",
    about: "one container paused by its caller, one stopped by itself",
    annotations: &[("usher/sidecars", "proxy")],
    containers: &[
        Container::new("proxy", &["/bin/attacker", "forks"]),
        Container::new(
            "web",
            &[
                "/bin/sh",
                "-c",
                "sleep 9999 & sleep 9999 & while :; do (kill -STOP -1); done",
            ],
        ),
    ],
    at_its_end: |stage| {
        let pause = || stage.host.ctr(&["tasks", "pause", "proxy"]).ok();
        eventually("the proxy is paused", PAUSED_WITHIN, pause);
    },
    ..Pod::NEW
}];
