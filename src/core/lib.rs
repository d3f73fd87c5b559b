//! The decisions of usher, without their execution.
//!
//! | module | what it is |
//! |---|---|
//! | [`plan`] | annotations in: what the pod's author wants, as types that cannot contradict themselves |
//! | [`config`] | a node's configuration file: the rules for all pods' annotations |
//! | [`lifecycle`] | the pure core: decides everything, does nothing |
//! | [`manifest`] | objects of Kubernetes that have pods in them |
//! | [`judgement`] | what the shim would do with a pod, from its spec |
//! | [`share`] | a share of one core, for work that strangers ask for |
//! | [`sizing`] | how large a pod is at each moment of its life, from what its containers ask for |
//! | [`process`] | how processes end |
//! | [`text`] | what others wrote, made fit for a sentence |
//!
//! The code here has no clock, starts no process, opens no file or socket, and never waits. The
//! compiler enforces it: this crate depends on nothing that could, and `clippy.toml` beside it
//! refuses the likeliest parts of the standard library. So a test can repeat any decision in any
//! order and at any time.

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
        clippy::arithmetic_side_effects,
        clippy::disallowed_methods,
        clippy::disallowed_types
    )
)]
#![forbid(unsafe_code)]

// The cost of its parsers is measured like that of the other crate's.
pub mod config;
#[cfg(test)]
#[allow(dead_code)]
#[path = "../fuzz/cost.rs"]
mod cost;
pub mod judgement;
pub mod lifecycle;
pub mod manifest;
pub mod plan;
pub mod process;
pub mod share;
#[cfg(any(test, feature = "simulator"))]
#[allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::panic,
    clippy::arithmetic_side_effects,
    reason = "it is a test, whoever runs it"
)]
pub mod simulator;
pub mod sizing;
pub mod text;
