//! A sidecar replaces files by devices and links, and then fails. To create the container again,
//! the OCI runtime reads these files, writes to them, or mounts other files on them.

use super::super::stage::own_root;
use super::{Container, Pod, sleeper};

const SCRIPT: &str = "sleep 2; cd /etc; rm -f passwd group; busybox mknod passwd c 1 5; \
    busybox mknod group c 1 8; busybox ln -s /proc/1/fd/0 mtab; exit 1";

pub const PODS: &[Pod] = &[Pod {
    name: "devices",
    about: "a sidecar that fails has made /etc/passwd /dev/zero",
    annotations: &[
        ("usher/sidecars", "proxy"),
        ("usher/apps", "web"),
        ("usher/restart-policy", "OnFailure"),
    ],
    containers: &[
        Container::new("proxy", &["/bin/sh", "-c", SCRIPT]).edit(own_root),
        sleeper("web"),
    ],
    is_plain: false,
    ..Pod::NEW
}];
