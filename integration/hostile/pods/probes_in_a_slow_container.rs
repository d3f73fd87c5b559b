//! Exec probes every millisecond in containers that are limited to a twentieth of a CPU. Each probe
//! costs the OCI runtime far more CPU time than a container gets in a millisecond. In one
//! container, each attempt of the probe runs until its timeout.

use super::super::stage::limit_cpu;
use super::{Container, Pod, sleeper};

const FAILS: &str = r#"{"exec":{"command":["/bin/false"]},"periodMilliseconds":1,"failureThreshold":1000000}"#;
const HANGS: &str = r#"{"exec":{"command":["/bin/sh","-c","while :; do :; done"]},"periodMilliseconds":1,"timeoutSeconds":1,"failureThreshold":1000000}"#;

const fn slow(name: &'static str) -> Container {
    sleeper(name).edit(|_, config| limit_cpu(5, config))
}

pub const PODS: &[Pod] = &[Pod {
    name: "probes in slow containers",
    about: "commands every millisecond in containers with 5 % of a CPU",
    annotations: &[
        ("usher/sidecars", "one two three four five six"),
        ("usher/start-mode", "Hold"),
        ("startup-probe.usher/one", FAILS),
        ("startup-probe.usher/two", FAILS),
        ("startup-probe.usher/three", FAILS),
        ("startup-probe.usher/four", FAILS),
        ("startup-probe.usher/five", FAILS),
        ("startup-probe.usher/six", HANGS),
    ],
    containers: &[slow("one"), slow("two"), slow("three"), slow("four"), slow("five"), slow("six"), sleeper("web")],
    cpu_millis: 1000,
    is_plain: false,
    ..Pod::NEW
}];
