//! Its containers are frozen by somebody else when they are told to end.

use super::{Pod, sleeper};

pub const PODS: &[Pod] = &[Pod {
    name: "frozen",
    about: "frozen by somebody else when it is told to end",
    annotations: &[("usher/sidecars", "proxy"), ("usher/post-exit", "after")],
    containers: &[sleeper("proxy"), sleeper("web"), sleeper("after")],
    at_its_end: |stage| stage.freeze(true),
    ..Pod::NEW
}];
