//! Servers probed by gRPC every millisecond. Each answers in another way: not at all, with half of
//! an answer, with endless SETTINGS, or with the longest possible GOAWAY.

use super::super::stage::may;
use super::{Container, Pod, sleeper};

const fn server(name: &'static str, args: &'static [&'static str]) -> Container {
    Container::new(name, args).edit(|_, config| may("CAP_NET_ADMIN", config))
}

const GRPC: &str = r#"{"grpc":{"port":8080},"periodMilliseconds":1,"timeoutSeconds":1,"failureThreshold":1000000}"#;

pub const PODS: &[Pod] = &[Pod {
    name: "answers by gRPC",
    about: "servers answer nothing, half of it, SETTINGS without end, a long GOAWAY",
    annotations: &[
        ("usher/sidecars", "silent half settings goaway"),
        ("usher/start-mode", "Hold"),
        ("startup-probe.usher/silent", GRPC),
        ("startup-probe.usher/half", GRPC),
        ("startup-probe.usher/settings", GRPC),
        ("startup-probe.usher/goaway", GRPC),
    ],
    containers: &[
        server("silent", &["/bin/attacker", "serve", "8080", "silent"]),
        server("half", &["/bin/attacker", "serve", "8080", "half"]),
        server("settings", &["/bin/attacker", "serve", "8080", "settings"]),
        server("goaway", &["/bin/attacker", "serve", "8080", "goaway"]),
        sleeper("web"),
    ],
    cpu_millis: 1000,
    is_plain: false,
    ..Pod::NEW
}];
