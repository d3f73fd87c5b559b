//! Servers probed by HTTP every millisecond. Each answers in another way: not at all, with half of
//! an answer, or without end. One server is probed by HTTPS and does not answer.

use super::super::stage::may;
use super::{Container, Pod, sleeper};

const fn server(name: &'static str, args: &'static [&'static str]) -> Container {
    Container::new(name, args).edit(|_, config| may("CAP_NET_ADMIN", config))
}

const HTTP: &str = r#"{"httpGet":{"port":8080},"periodMilliseconds":1,"failureThreshold":1000000}"#;
const HTTPS: &str = r#"{"httpGet":{"scheme":"HTTPS","port":8080},"periodMilliseconds":1,"timeoutSeconds":1,"failureThreshold":1000000}"#;

pub const PODS: &[Pod] = &[Pod {
    name: "answers by HTTP",
    about: "servers answer nothing, half of it, or without end",
    annotations: &[
        ("usher/sidecars", "silent half endless secret"),
        ("usher/start-mode", "Hold"),
        ("startup-probe.usher/silent", HTTP),
        ("startup-probe.usher/half", HTTP),
        ("startup-probe.usher/endless", HTTP),
        ("startup-probe.usher/secret", HTTPS),
    ],
    containers: &[
        server("silent", &["/bin/attacker", "serve", "8080", "silent"]),
        server("half", &["/bin/attacker", "serve", "8080", "half"]),
        server("endless", &["/bin/attacker", "serve", "8080", "endless"]),
        server("secret", &["/bin/attacker", "serve", "8080", "half"]),
        sleeper("web"),
    ],
    cpu_millis: 1000,
    is_plain: false,
    ..Pod::NEW
}];
