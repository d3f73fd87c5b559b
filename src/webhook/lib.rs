//! `usher-webhook`: the admission webhook.
//!
//! It sees the whole spec of a pod, which the shim does not, and writes down as annotations what the
//! shim has to know; what the shim would refuse it refuses, also in a template, so that who applies it is
//! told. What is written, refused and warned of is decided in [`usher_core::judgement`], as it is for
//! `usher explain`; here is what brings it to an API server:
//!
//! | module | what it is |
//! |---|---|
//! | [`admission`] | from a review to its answer: pure, and right whatever the review says |
//! | [`certificate`] | the certificate that is served: made and renewed by itself, or read from files |
//! | [`server`] | HTTPS for reviews, HTTP for health and metrics, and an end that loses no request |
//! | [`metrics`] | what it has done, for Prometheus |
//! | [`run`] | the program: all of them together |
//! | [`arguments`] | its command line |
//! | `fuzz` | reviews, for a fuzzer and for the tests |
//!
//! It has no state: what has to outlive it is in the API server, in a Secret and in annotations.

#![cfg_attr(
    not(any(test, fuzzing)),
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
#![forbid(unsafe_code)]

pub mod admission;
pub mod arguments;
pub mod certificate;
#[cfg(any(test, fuzzing))]
#[allow(dead_code)]
#[path = "../fuzz/cost.rs"]
mod cost;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod metrics;
pub mod run;
pub mod server;
#[cfg(test)]
mod tests;
