//! Processes in ten nested namespaces of each kind. The container's first process is also in
//! namespaces that it has made itself.

use super::{Container, Pod};

pub const PODS: &[Pod] = &[Pod {
    name: "namespaces",
    about: "ten namespaces of each kind, one inside another, probed",
    annotations: &[
        ("usher/sidecars", "proxy"),
        ("usher/start-mode", "Hold"),
        (
            "startup-probe.usher/proxy",
            r#"{"tcpSocket":{"port":9},"periodMilliseconds":1,"failureThreshold":1000000}"#,
        ),
        (
            "termination-hook.usher/web",
            r#"{"exec":{"command":["/bin/sleep","100000"]}}"#,
        ),
    ],
    containers: &[
        Container::new("proxy", &["/bin/attacker", "namespaces", "10"]),
        Container::new("web", &["/bin/attacker", "namespaces", "10"]),
    ],
    ..Pod::NEW
}];
