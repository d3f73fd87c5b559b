//! Thousands of orphans every second. In a container with a PID namespace, they become children of
//! the first process, which does not collect them. Without a PID namespace, they become children of
//! the shim.

use serde_json::Value;

use crate::harness::host_pids;

use super::{Container, Pod, Stage, sleeper};

fn in_the_hosts_pid_namespace(_: &Stage, config: &mut Value) {
    host_pids(config);
}

pub const PODS: &[Pod] = &[
    Pod {
        name: "orphans",
        about: "endless orphans that are not collected",
        annotations: &[("usher/sidecars", "proxy")],
        containers: &[
            Container::new("proxy", &["/bin/attacker", "orphans"]),
            Container::new("web", &["/bin/attacker", "orphans"]),
        ],
        ..Pod::NEW
    },
    Pod {
        name: "orphans for the shim",
        about: "the same in the host's PID namespace, where the shim collects them",
        annotations: &[("usher/sidecars", "proxy")],
        containers: &[
            Container::new("proxy", &["/bin/attacker", "orphans"]).edit(in_the_hosts_pid_namespace),
            sleeper("web"),
        ],
        ..Pod::NEW
    },
];
