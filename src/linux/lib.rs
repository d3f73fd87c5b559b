//! Access to Linux: processes, cgroups, mounts, streams, connections.
//!
//! This crate makes no decisions about pods; [`usher_core`] makes them. It uses types of
//! `usher_core`, such as probes and exit statuses.
//!
//! | module | content |
//! |---|---|
//! | [`cgroup`] | cgroups v1 and v2: metrics, processes, OOM scores, kills; the pod's limits |
//! | [`rootfs`] | mounts of a container's root file system |
//! | [`stdio`] | standard streams: FIFOs, terminals, log files, logging programs |
//! | [`probe`] | one attempt of a probe, in the container or in its network namespace |
//! | [`grpc`] | one gRPC call |
//! | [`reaper`] | the only owner of child processes |
//! | [`offload`] | threads for work that a disk can stall |
//! | [`ProcessStat`] | `/proc/<pid>/stat` |
//! | [`files`] | replacing a file in one step |
//! | [`PathError`] | error of a system call, with the file's path |
//! | [`any`] | `google.protobuf.Any` messages, packed without protobuf descriptors, which take memory |
//! | [`sys`] | system calls without a safe wrapper; the only unsafe code of usher |
//! | `fuzz` | fuzz targets for untrusted input, which the tests run too |

// The limit on the size of a future is in clippy.toml. Tests may exceed it.
#![cfg_attr(not(test), deny(clippy::large_futures))]
#![cfg_attr(test, allow(clippy::restriction, reason = "tests may panic"))]
// Tests may block their thread. Only the thread that serves a pod must not block.
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests may wait"))]

pub mod any;
#[expect(
    clippy::disallowed_methods,
    reason = "/proc, /sys and cgroups are in memory; a limit of memory is lowered only where nothing has to be reclaimed for it"
)]
pub mod cgroup;
#[expect(
    clippy::disallowed_methods,
    reason = "small files in bundles and below /run, which are in memory"
)]
pub mod files;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod grpc;
pub mod offload;
mod path_error;
pub mod probe;
#[expect(clippy::disallowed_methods, reason = "/proc")]
mod process_stat;
#[expect(
    clippy::disallowed_methods,
    reason = "/proc; only the program that runs already is spawned by the serving thread"
)]
pub mod reaper;
pub mod rootfs;
pub mod stdio;
#[allow(unsafe_code)]
pub mod sys;

pub use path_error::PathError;
pub use process_stat::ProcessStat;
