//! An unprivileged sidecar replaces `/etc/passwd` by a FIFO, and then fails. To create the
//! container again, the OCI runtime reads this file and blocks.

use super::super::stage::{own_root, without_rights};
use super::{Container, Pod, sleeper};

const SCRIPT: &str = "sleep 2; rm -f /etc/passwd; busybox mkfifo /etc/passwd; exit 1";

pub const PODS: &[Pod] = &[Pod {
    name: "fifo",
    about: "a sidecar that fails has made /etc/passwd a FIFO",
    annotations: &[
        ("usher/sidecars", "proxy"),
        ("usher/apps", "web"),
        ("usher/restart-policy", "OnFailure"),
    ],
    containers: &[
        Container::new("proxy", &["/bin/sh", "-c", SCRIPT]).edit(|stage, config| {
            own_root(stage, config);
            without_rights(config);
        }),
        sleeper("web"),
    ],
    is_plain: false,
    ..Pod::NEW
}];
