//! usher: a containerd runtime shim that ushers the containers of a pod in and out in order.
//!
//! One shim process manages all containers of a pod sandbox. The modules follow the architecture:
//!
//! | module | content |
//! |---|---|
//! | [`plan`] | reads annotations into a plan: the order that the pod's author wants |
//! | [`config`] | the node's configuration file: rules for the annotations of all pods |
//! | [`lifecycle`] | the pure core: makes all decisions, performs no I/O |
//! | [`manifest`] | Kubernetes objects that contain pods |
//! | [`judgement`] | predicts from a pod's spec how the shim treats the pod |
//! | [`sizing`] | the size of a pod at each moment, from its containers' requests and limits |
//! | [`pod`] | the actor that owns one pod: feeds the core, carries out its actions |
//! | [`task`] | containerd's Task service: asks the actor, awaits the answer |
//! | [`sandbox`] | containerd's Sandbox service, for pods without a pause container |
//! | [`engine`] | the interface below the actor: creates, kills and deletes containers |
//! | [`engine::oci`] | the real engine: OCI runtimes with runc's command line |
//! | `engine::sim` | a simulated engine, for tests |
//! | [`cgroup`] | cgroups v1 and v2: metrics, processes, OOM scores, kills; the pod's size |
//! | [`rootfs`] | mounts of a container's root file system |
//! | [`stdio`] | standard streams: FIFOs, terminals, log files, logging programs |
//! | [`probe`] | one attempt of a probe, in the container or in its network namespace |
//! | [`cri`] | messages of the Container Runtime Interface |
//! | [`grpc`] | one gRPC call |
//! | [`linux`] | `/proc/<pid>/stat`, and files that are replaced in one step |
//! | [`reaper`] | the only owner of child processes |
//! | [`offload`] | threads for work that a disk can stall |
//! | [`events`] | sends events to containerd, in order |
//! | [`clock`] | wall-clock time and CPU time |
//! | [`record`] | the history of a pod |
//! | [`api`] | messages between shims and `usher`, and the archive of pods that ended |
//! | [`control`] | the control socket: shows a pod to `usher`, and takes its commands |
//! | [`shim`] | the shim process: arguments, bootstrap, serving, `delete` |
//! | [`cli`] | the `usher` command: one file for each subcommand |
//! | `fuzz` | entry points for untrusted input, for the fuzzer and for tests |
//! | [`text`] | makes text from others fit to quote in a sentence |
//! | [`sys`] | system calls without a safe wrapper |

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
// Only the thread that serves a pod must not block, so tests may use blocking calls.
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests may wait"))]

// Code shared with the integration tests refers to this crate by name.
#[cfg(test)]
extern crate self as usher;

pub use usher_core::{judgement, lifecycle, manifest, plan, process, share, sizing, text};

pub const VERSION: &str = env!("CARGO_PKG_VERSION");

mod any;
#[expect(clippy::disallowed_methods, reason = "below /run, in memory")]
pub mod api;
mod catch_panic;
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
#[expect(
    clippy::disallowed_methods,
    reason = "/proc, and small files in bundles and below /run, which are in memory"
)]
pub mod linux;
pub mod offload;
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
