//! The code that makes usher's decisions. Other crates carry the decisions out.
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
//! | `fuzz` | fuzz targets for annotations, which the tests run too |
//! | [`text`] | text from others, made safe to print in a sentence |
//!
//! The code here has no clock, starts no process, opens no file or socket, and never waits. The
//! build enforces this: no dependency of this crate can do these things, and the crate's
//! `clippy.toml` forbids the most likely parts of the standard library. So a test can repeat any
//! decision in any order and at any time.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![cfg_attr(test, allow(clippy::restriction, reason = "tests may panic"))]
#![forbid(unsafe_code)]

pub mod config;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod judgement;
pub mod lifecycle;
pub mod manifest;
pub mod plan;
pub mod process;
pub mod share;
#[cfg(any(test, feature = "simulator"))]
#[allow(
    clippy::restriction,
    reason = "a test may panic, also when another crate runs it"
)]
pub mod simulator;
pub mod sizing;
pub mod text;
