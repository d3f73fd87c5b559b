//! A dozen sidecars that ignore stop signals, so SIGKILL has to end one after another.

use super::{Pod, sleeper};

pub const PODS: &[Pod] = &[Pod {
    name: "many sidecars",
    about: "a dozen sidecars that ignore stop signals, stopped one after another",
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
