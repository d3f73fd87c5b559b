//! Edges to Linux: processes, cgroups, mounts, streams, connections.
//!
//! Nothing here knows of pods or of containerd; [`usher_core`] only gives values, such as sizes and
//! signals.
//!
//! | module | content |
//! |---|---|
//! | [`cgroup`] | cgroups v1 and v2: metrics, processes, OOM scores, kills; the pod's size |
//! | [`rootfs`] | mounts of a container's root file system |
//! | [`stdio`] | standard streams: FIFOs, terminals, log files, logging programs |
//! | [`probe`] | one attempt of a probe, in the container or in its network namespace |
//! | [`grpc`] | one gRPC call |
//! | [`reaper`] | the only owner of child processes |
//! | [`offload`] | threads for work that a disk can stall |
//! | [`ProcessStat`] | `/proc/<pid>/stat` |
//! | [`files`] | files that are replaced in one step |
//! | [`PathError`] | a call for a file that failed |
//! | [`any`] | messages inside messages, without the descriptors of the whole protocol |
//! | [`sys`] | system calls without a safe wrapper; the only unsafe code of usher |
//! | `fuzz` | fuzz targets for untrusted input, which the tests run too |

// clippy.toml has the limit. Tests may exceed it.
#![cfg_attr(not(test), deny(clippy::large_futures))]
#![cfg_attr(test, allow(clippy::restriction, reason = "tests may panic"))]
// Tests may block; only the serving thread must not.
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
