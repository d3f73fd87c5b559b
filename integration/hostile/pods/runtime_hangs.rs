//! From the beginning of the pod's termination, the OCI runtime hangs at one of its commands, in
//! every container.

use serde_json::Value;

use super::{Container, Pod, Stage, sleeper};
use crate::harness::add_poststart_hook;

/// Adds a poststart hook. The shim releases a container with such a hook by the OCI runtime's
/// `start`.
fn with_a_hook(_: &Stage, config: &mut Value) {
    add_poststart_hook(config);
}

const FAILS_AT_THE_END: &[&str] = &[
    "/bin/sh",
    "-c",
    "trap '' TERM; while [ ! -e /shared/end ]; do sleep 0.1; done; exit 1",
];

const ANNOTATIONS: &[(&str, &str)] = &[
    ("usher/sidecars", "proxy"),
    ("usher/apps", "web"),
    ("usher/restart-policy", "OnFailure"),
    ("usher/pre-exit", "before"),
    (
        "termination-hook.usher/web",
        r#"{"exec":{"command":["/bin/true"]}}"#,
    ),
];

const CONTAINERS: &[Container] = &[
    Container::new("proxy", FAILS_AT_THE_END),
    sleeper("web"),
    Container::new("before", &["/bin/sleep", "100000"]).edit(with_a_hook),
];

const POD: Pod = Pod {
    annotations: ANNOTATIONS,
    containers: CONTAINERS,
    ..Pod::NEW
};

pub const PODS: &[Pod] = &[
    Pod {
        name: "runtime hangs at create",
        about: "a sidecar's restart in place during the end hangs",
        hangs: &["create"],
        is_plain: false,
        ..POD
    },
    Pod {
        name: "runtime hangs at start",
        about: "a defer released by the runtime never runs",
        hangs: &["start"],
        is_plain: false,
        ..POD
    },
    Pod {
        name: "runtime hangs at exec",
        about: "a termination hook never runs",
        hangs: &["exec"],
        is_plain: false,
        ..POD
    },
    Pod {
        name: "runtime hangs at kill",
        about: "no signal sent by the runtime arrives",
        hangs: &["kill"],
        ..POD
    },
    Pod {
        name: "runtime hangs at delete",
        about: "the runtime deletes no container",
        hangs: &["delete"],
        ..POD
    },
    Pod {
        name: "runtime hangs at everything",
        about: "every command of the runtime hangs",
        hangs: &["create", "start", "exec", "kill", "delete"],
        ..POD
    },
];
