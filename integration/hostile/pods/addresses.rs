//! Containers that make a network namespace and add 20,000 addresses, with probes of a closed port.
//! A prober that lists all addresses for each probe needs much CPU time.

use super::{Container, Pod, sleeper};

const PROBE: &str =
    r#"{"tcpSocket":{"port":9},"periodMilliseconds":1,"failureThreshold":1000000}"#;

pub const PODS: &[Pod] = &[Pod {
    name: "addresses",
    about: "20,000 addresses behind a port that is probed every millisecond",
    annotations: &[
        ("usher/sidecars", "one two"),
        ("usher/start-mode", "Hold"),
        ("startup-probe.usher/one", PROBE),
        ("startup-probe.usher/two", PROBE),
    ],
    containers: &[
        Container::new("one", &["/bin/attacker", "addresses", "20000"]),
        Container::new("two", &["/bin/attacker", "addresses", "20000"]),
        sleeper("web"),
    ],
    cpu_millis: 1000,
    is_plain: false,
    ..Pod::NEW
}];
