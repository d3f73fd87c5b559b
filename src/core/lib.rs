//! The decisions of usher, without their execution.
//!
//! | module | what it is |
//! |---|---|
//! | [`plan`] | the settings in a pod's annotations, as types that cannot contradict themselves |
//! | [`config`] | a node's configuration file: the rules for all pods' annotations |
//! | [`lifecycle`] | the pure core: decides what happens to a pod, and executes nothing |
//! | [`manifest`] | Kubernetes objects that contain pods |
//! | [`judgement`] | what the shim would do with a pod, from its spec |
//! | [`share`] | a limit on the CPU time of work that others can request |
//! | [`sizing`] | the size of a pod in each phase, from the requests and limits of its containers |
//! | [`process`] | how processes end |
//! | [`text`] | text from others, made safe to print in a sentence |
//!
//! The code here has no clock, starts no process, opens no file or socket, and never waits. The
//! build enforces this: no dependency of this crate can do these things, and the crate's
//! `clippy.toml` forbids the most likely parts of the standard library. So a test can repeat any
//! decision in any order and at any time.

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

// `cost` (below) measures memory and CPU time of the parsers here, as in the main crate.
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
