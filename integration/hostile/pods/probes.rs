//! Three sidecars with an exec startup probe every millisecond, which never succeeds.

use super::{Pod, sleeper};

const NEVER: &str = r#"{"exec":{"command":["/bin/false"]},"periodMilliseconds":1,"failureThreshold":1000000}"#;

pub const PODS: &[Pod] = &[Pod {
    name: "probes",
    about: "three sidecars are probed by a command every millisecond",
    annotations: &[
        ("usher/sidecars", "one two three"),
        ("usher/start-mode", "Hold"),
        ("startup-probe.usher/one", NEVER),
        ("startup-probe.usher/two", NEVER),
        ("startup-probe.usher/three", NEVER),
    ],
    containers: &[
        sleeper("one"),
        sleeper("two"),
        sleeper("three"),
        sleeper("web"),
    ],
    cpu_millis: 1000,
    is_plain: false,
    ..Pod::NEW
}];
