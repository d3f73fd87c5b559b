//! Another process freezes the containers when they get their stop requests.

use super::{Pod, sleeper};

pub const PODS: &[Pod] = &[Pod {
    name: "frozen",
    about: "frozen by another process at the stop request",
    annotations: &[("usher/sidecars", "proxy"), ("usher/post-exit", "after")],
    containers: &[sleeper("proxy"), sleeper("web"), sleeper("after")],
    at_its_end: |stage| stage.freeze(true),
    ..Pod::NEW
}];
