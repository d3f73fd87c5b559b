//! usher: a containerd runtime shim that ushers the containers of a pod in and out in order.
//!
//! One shim process manages all containers of a pod sandbox. The tree is the architecture:
//!
//! | module | what it is |
//! |---|---|
//! | [`plan`] | annotations in: what the pod's author wants, as types that cannot contradict themselves |
//! | [`config`] | the node's configuration file: the rules for all pods' annotations |
//! | [`lifecycle`] | the pure core: decides everything, does nothing |
//! | [`manifest`] | objects of Kubernetes that have pods in them |
//! | [`judgement`] | what the shim would do with a pod, from its spec |
//! | [`sizing`] | how large a pod is at each moment of its life, from what its containers ask for |
//! | [`pod`] | the actor that owns one pod: feeds the core, carries out its actions |
//! | [`task`] | containerd's Task service: asks the actor, awaits the answer |
//! | [`sandbox`] | containerd's Sandbox service, for pods without a pause container: the same
//! | [`engine`] | the seam below the actor: what makes, kills and removes containers, and what it promises |
//! | [`engine::oci`] | the real engine: OCI runtimes, by runc's commands; bundles, the exec FIFO |
//! | `engine::sim` | a model of an engine, for tests |
//! | [`cgroup`] | cgroups, v1 and v2: a container's figures, processes, OOM scores and kills; the size of a pod's |
//! | [`rootfs`] | the mounts of a container's root file system |
//! | [`stdio`] | the standard streams: FIFOs, terminals, log files, logging programs |
//! | [`probe`] | one attempt of a probe, in the container or, by a prober, in its network namespace |
//! | [`cri`] | messages of the Container Runtime Interface |
//! | [`grpc`] | one call by gRPC |
//! | [`reaper`] | the one owner of all child processes |
//! | [`offload`] | threads for work that a disk can stall |
//! | [`events`] | events out, in order |
//! | [`clock`] | the time on the wall, and that of the CPU |
//! | [`record`] | what has happened to a pod |
//! | [`api`] | what shims tell `usher`, in messages, and what is kept of pods that have ended |
//! | [`control`] | what `usher` is told of a pod, and what it may tell the pod to do |
//! | [`shim`] | the process: arguments, bootstrap, serving, `delete` |
//! | [`cli`] | the `usher` command: one file a command |
//! | `fuzz` | what comes from outside, for a fuzzer and for the tests |
//! | [`text`] | what others wrote, made fit for a sentence |
//! | [`sys`] | the system calls that have no safe wrapper |

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
// Only the shim serves.
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests may wait"))]

// What is shared with the integration tests calls this crate by its name.
#[cfg(test)]
extern crate self as usher;

pub use usher_core::{judgement, lifecycle, manifest, plan, process, share, sizing, text};

/// The version of this crate.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

#[expect(clippy::disallowed_methods, reason = "below /run, in memory")]
pub mod api;
mod caught;
#[expect(
    clippy::disallowed_methods,
    reason = "/proc, /sys and cgroups are in memory; a limit of memory is lowered only where nothing has to be reclaimed for it"
)]
pub mod cgroup;
#[expect(clippy::disallowed_methods, reason = "a process that serves nothing")]
pub mod cli;
pub mod clock;
#[expect(clippy::disallowed_methods, reason = "read before the shim serves")]
pub mod config;
#[expect(clippy::disallowed_methods, reason = "/proc, and sockets below /run")]
pub mod control;
pub mod cri;
pub mod engine;
pub mod events;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod grpc;
pub mod offload;
mod packed;
pub mod pod;
pub mod probe;
#[expect(
    clippy::disallowed_methods,
    reason = "/proc; only the program that runs already is spawned by the serving thread"
)]
pub mod reaper;
pub mod record;
pub mod rootfs;
pub mod sandbox;
pub mod shim;
#[cfg(test)]
mod simulation;
pub mod stdio;
#[allow(unsafe_code)]
pub mod sys;
pub mod task;
