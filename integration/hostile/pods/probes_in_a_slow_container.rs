//! Commands every millisecond in containers that have a twentieth of a CPU, so that attempts take long
//! and their time runs out.

use super::super::stage::limit_cpu;
use super::{Container, Pod, sleeper};

const ATTEMPTS: &str = r#"{"exec":{"command":["/bin/sh","-c","while :; do :; done"]},"periodMilliseconds":1,"timeoutSeconds":1,"failureThreshold":1000000}"#;

const fn slow(name: &'static str) -> Container {
    sleeper(name).edit(|_, config| limit_cpu(5, config))
}

pub const PODS: &[Pod] = &[Pod {
    name: "probes in slow containers",
    about: "commands every millisecond that run out of time at 5 % of a CPU",
    annotations: &[
        ("usher/sidecars", "one two"),
        ("usher/start-mode", "Hold"),
        ("startup-probe.usher/one", ATTEMPTS),
        ("startup-probe.usher/two", ATTEMPTS),
    ],
    containers: &[slow("one"), slow("two"), sleeper("web")],
    is_plain: false,
    ..Pod::NEW
}];
