//! Exec probes that write without end, and leave child processes that also write without end.

use super::{Pod, sleeper};

const TALKS: &str = r#"{"exec":{"command":["/bin/busybox","yes"]},"periodMilliseconds":1,"timeoutSeconds":1,"failureThreshold":1000000}"#;
const LEAVES: &str = r#"{"exec":{"command":["/bin/sh","-c","yes & yes >&2 & exit 1"]},"periodMilliseconds":100,"failureThreshold":1000000}"#;

pub const PODS: &[Pod] = &[Pod {
    name: "probes that talk",
    about: "commands of probes write without end, and leave children that do",
    annotations: &[
        ("usher/sidecars", "one two"),
        ("usher/start-mode", "Hold"),
        ("startup-probe.usher/one", TALKS),
        ("startup-probe.usher/two", LEAVES),
    ],
    containers: &[sleeper("one"), sleeper("two"), sleeper("web")],
    is_plain: false,
    ..Pod::NEW
}];
