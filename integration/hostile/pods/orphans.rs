//! Thousands of processes a second whose parents have ended: those of a container with a PID namespace
//! go to its first process, which collects none of them; those of one without go to the shim.

use serde_json::Value;

use super::{Container, Pod, Stage, sleeper};

fn in_the_hosts_pid_namespace(_: &Stage, config: &mut Value) {
    let namespaces = config["linux"]["namespaces"].as_array_mut();
    namespaces
        .expect("namespaces")
        .retain(|namespace| namespace["type"] != "pid");
}

pub const PODS: &[Pod] = &[
    Pod {
        name: "orphans",
        about: "orphans without end, that nobody collects",
        annotations: &[("usher/sidecars", "proxy")],
        containers: &[
            Container::new("proxy", &["/bin/villain", "orphans"]),
            Container::new("web", &["/bin/villain", "orphans"]),
        ],
        ..Pod::NEW
    },
    Pod {
        name: "orphans for the shim",
        about: "the same in the host's PID namespace, where they are the shim's",
        annotations: &[("usher/sidecars", "proxy")],
        containers: &[
            Container::new("proxy", &["/bin/villain", "orphans"]).edit(in_the_hosts_pid_namespace),
            sleeper("web"),
        ],
        ..Pod::NEW
    },
];
