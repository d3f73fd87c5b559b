//! Termination hooks that never end: commands that ignore signals and fork, a server that does not
//! answer, a sleep longer than any grace period.

use super::super::stage::may;
use super::{Container, Pod, sleeper};

pub const PODS: &[Pod] = &[Pod {
    name: "hooks",
    about: "termination hooks of every kind that never end",
    annotations: &[
        ("usher/sidecars", "proxy server"),
        ("usher/pre-exit", "before"),
        (
            "termination-hook.usher/proxy",
            r#"{"exec":{"command":["/bin/attacker","forks"]}}"#,
        ),
        (
            "termination-hook.usher/server",
            r#"{"httpGet":{"port":8080}}"#,
        ),
        (
            "termination-hook.usher/web",
            r#"{"exec":{"command":["/bin/sh","-c","trap '' TERM; sleep 100000"]}}"#,
        ),
        (
            "termination-hook.usher/other",
            r#"{"sleep":{"seconds":100000}}"#,
        ),
    ],
    containers: &[
        sleeper("proxy"),
        Container::new("server", &["/bin/attacker", "serve", "8080", "silent"])
            .edit(|_, config| may("CAP_NET_ADMIN", config)),
        sleeper("web"),
        sleeper("other"),
        sleeper("before"),
    ],
    is_plain: false,
    ..Pod::NEW
}];
