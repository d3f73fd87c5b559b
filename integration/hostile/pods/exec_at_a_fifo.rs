//! A running container has replaced files by FIFOs. The OCI runtime reads these files before it
//! executes a program in the container, so it blocks. The programs of probes and hooks never run.

use super::super::stage::{own_root, without_rights};
use super::{Container, Pod, sleeper};

const SCRIPT: &str = "cd /etc; rm -f passwd group; busybox mkfifo passwd group; \
    while :; do sleep 100000; done";

pub const PODS: &[Pod] = &[Pod {
    name: "exec at a fifo",
    about: "probes and hooks hang at /etc/passwd, which is a FIFO",
    annotations: &[
        ("usher/sidecars", "proxy"),
        ("usher/start-mode", "Hold"),
        (
            "startup-probe.usher/proxy",
            r#"{"exec":{"command":["/bin/false"]},"periodMilliseconds":1,"timeoutSeconds":1,"failureThreshold":1000000}"#,
        ),
        (
            "termination-hook.usher/proxy",
            r#"{"exec":{"command":["/bin/true"]}}"#,
        ),
    ],
    containers: &[
        Container::new("proxy", &["/bin/sh", "-c", SCRIPT]).edit(|stage, config| {
            own_root(stage, config);
            without_rights(config);
        }),
        sleeper("web"),
    ],
    is_plain: false,
    ..Pod::NEW
}];
