//! usher: a containerd runtime shim that ushers the containers of a pod in and out in order.
//!
//! One shim process manages all containers of a pod sandbox. The tree is the architecture:
//!
//! | module | what it is |
//! |---|---|
//! | [`plan`] | annotations in: what the pod's author wants, as types that cannot contradict themselves |
//! | [`lifecycle`] | the pure core: decides everything, does nothing |

#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::string_slice,
        clippy::panic,
        clippy::unreachable,
        clippy::todo,
        clippy::unimplemented,
        clippy::arithmetic_side_effects
    )
)]
#![deny(unsafe_code)]

pub mod lifecycle;
pub mod plan;
