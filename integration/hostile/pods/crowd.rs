//! A dozen sidecars that nothing but SIGKILL ends, one after another.

use super::{Pod, sleeper};

pub const PODS: &[Pod] = &[Pod {
    name: "crowd",
    about: "a dozen deaf sidecars, to be stopped one after another",
    annotations: &[("usher/sidecars", "a b c d e f g h i j k l")],
    containers: &[
        sleeper("a"),
        sleeper("b"),
        sleeper("c"),
        sleeper("d"),
        sleeper("e"),
        sleeper("f"),
        sleeper("g"),
        sleeper("h"),
        sleeper("i"),
        sleeper("j"),
        sleeper("k"),
        sleeper("l"),
        sleeper("web"),
    ],
    ..Pod::NEW
}];
