//! What containers can be given: the answer to `features`, which containerd passes on to kubelet
//! (<https://github.com/opencontainers/runtime-spec/blob/main/features.md>).

use serde_json::{Value, json};

use crate::cgroups;
use crate::mounts::known_options;

/// What is refused is not among it.
pub fn features() -> Value {
    let has_systemd = cgroups::has_systemd();
    json!({
        "ociVersionMin": "1.0.0",
        "ociVersionMax": "1.2.1",
        "hooks": ["poststart", "poststop"],
        "mountOptions": known_options(),
        "linux": {
            "namespaces": ["cgroup", "ipc", "mount", "network", "pid", "time", "uts"],
            "cgroup": { "v1": true, "v2": true, "systemd": has_systemd, "systemdUser": false, "rdma": false },
            "seccomp": {
                "enabled": true,
                "actions": [
                    "SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO", "SCMP_ACT_KILL", "SCMP_ACT_KILL_PROCESS",
                    "SCMP_ACT_KILL_THREAD", "SCMP_ACT_LOG", "SCMP_ACT_TRACE", "SCMP_ACT_TRAP",
                ],
            },
            "apparmor": { "enabled": true },
            "selinux": { "enabled": false },
            "intelRdt": { "enabled": false },
            "mountExtensions": { "idmap": { "enabled": false } },
        },
    })
}
