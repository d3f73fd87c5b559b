//! Containers that always run out of memory. The OOM killer kills one child process after another,
//! but not the first process.

use super::super::stage::limit_memory;
use super::{Container, Pod};

const fn eater(name: &'static str) -> Container {
    Container::new(
        name,
        &[
            "/bin/sh",
            "-c",
            "trap '' TERM INT; while :; do /bin/attacker eat; done",
        ],
    )
    .edit(|_, config| limit_memory(16 << 20, config))
}

pub const PODS: &[Pod] = &[Pod {
    name: "memory",
    about: "out of memory many times a second",
    annotations: &[("usher/sidecars", "proxy")],
    containers: &[eater("proxy"), eater("web")],
    ..Pod::NEW
}];
