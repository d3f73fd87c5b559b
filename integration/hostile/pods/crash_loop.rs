//! Sidecars that fail soon after each start and restart in place, and one that fails during the
//! termination.

use super::{Container, Pod, sleeper};

const SOON: &[&str] = &["/bin/sh", "-c", "sleep 2; exit 1"];
const AT_THE_END: &[&str] = &[
    "/bin/sh",
    "-c",
    "trap '' TERM; while [ ! -e /shared/end ]; do sleep 0.1; done; exit 1",
];

pub const PODS: &[Pod] = &[Pod {
    name: "crash loop",
    about: "sidecars fail again and again, and during the end",
    annotations: &[
        ("usher/sidecars", "one two three"),
        ("usher/apps", "web"),
        ("usher/restart-policy", "OnFailure"),
    ],
    containers: &[
        Container::new("one", SOON),
        Container::new("two", SOON),
        Container::new("three", AT_THE_END),
        sleeper("web"),
    ],
    is_plain: false,
    ..Pod::NEW
}];
