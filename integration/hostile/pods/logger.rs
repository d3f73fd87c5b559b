//! Endless output to a logging program. The program reports that it is ready, and then hangs.

use super::{Container, Pod, Stdio};

const HANGS: Stdio = Stdio::Logger("#!/bin/sh\ntrap '' TERM INT\nexec 5>&-\nexec sleep 100000\n");

pub const PODS: &[Pod] = &[Pod {
    name: "logger",
    about: "output without end for a logging program that hangs",
    annotations: &[("usher/sidecars", "proxy")],
    containers: &[
        Container::new("proxy", &["/bin/busybox", "yes"]).stdio(HANGS),
        Container::new("web", &["/bin/busybox", "yes"]).stdio(HANGS),
    ],
    ..Pod::NEW
}];
