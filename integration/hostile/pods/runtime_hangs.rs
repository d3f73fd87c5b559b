//! From the pod's end on, the OCI runtime hangs at one of its verbs, in every container.

use serde_json::Value;

use super::{Container, Pod, Stage, sleeper};
use crate::harness::add_poststart_hook;

/// Makes the OCI runtime's `start` necessary for a release.
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
        about: "a sidecar that comes back in place during the end never does",
        hangs: &["create"],
        is_plain: false,
        ..POD
    },
    Pod {
        name: "runtime hangs at start",
        about: "a defer that is released by the runtime never runs",
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
        about: "no signal by the runtime gets there",
        hangs: &["kill"],
        ..POD
    },
    Pod {
        name: "runtime hangs at delete",
        about: "nothing of a container is taken away by the runtime",
        hangs: &["delete"],
        ..POD
    },
    Pod {
        name: "runtime hangs at everything",
        about: "whatever is asked of the runtime",
        hangs: &["create", "start", "exec", "kill", "delete"],
        ..POD
    },
];
