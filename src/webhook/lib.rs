//! `usher-webhook`: the admission webhook.
//!
//! The webhook sees the whole spec of a pod, which the shim does not. It writes what the shim has
//! to know into annotations. It refuses pods that the shim would refuse, and templates of such
//! pods, so that the author learns of the mistake at once. [`usher_core::judgement`] decides all
//! this, as it does for `usher explain`; this crate connects it to the API server:
//!
//! | module | purpose |
//! |---|---|
//! | [`admission`] | turns a review into its response: pure |
//! | [`certificate`] | the server's certificate: made and renewed here, or read from files |
//! | [`server`] | HTTPS for reviews, HTTP for health and metrics; shutdown loses no request |
//! | [`metrics`] | metrics for Prometheus |
//! | [`run`] | the program: puts the parts together |
//! | [`arguments`] | the command line |
//! | `fuzz` | a fuzz target for reviews, which the tests run too |
//!
//! The webhook's process keeps no state: all state is in the API server, in a Secret and in
//! annotations.

#![cfg_attr(
    any(test, fuzzing),
    allow(clippy::restriction, reason = "tests may panic")
)]
#![forbid(unsafe_code)]

pub mod admission;
pub mod arguments;
pub mod certificate;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod metrics;
pub mod run;
pub mod server;
#[cfg(test)]
mod tests;
