//! The shim: one process that starts and stops the containers of a pod in order.
//!
//! The engine, which creates the containers, is an argument of [`process::main`]. This crate knows
//! only the [interface](usher_engine) of the engine.
//!
//! | module | content |
//! |---|---|
//! | [`process`] | the process: arguments, bootstrap, serving, `delete` |
//! | [`pod`] | the actor that owns one pod: feeds the core, carries out its actions |
//! | `task_table` | the actor's table of tasks: processes, handles, waiting callers |
//! | [`calls`] | parameters, answers and errors of the calls that the actor answers |
//! | [`connections`] | the open connections to the task service |
//! | `bundle` | converts OCI specifications to the terms of the core |
//! | [`node`] | the dependencies of the actor, such as the engine and the clock |
//! | [`task`] | containerd's Task service: asks the actor, awaits the answer |
//! | [`sandbox`] | containerd's Sandbox service, for pods without a pause container |
//! | [`control`] | the control socket: shows a pod to `usher`, and takes its commands |
//! | [`events`] | makes events, and sends them to containerd in order |
//! | [`record`] | the history of a pod |
//! | `report_log` | logs the decisions of the core |
//! | `status` | the status of a pod for `usher`, made from the core's state and the record; the clients that watch it |
//! | `pod_meta` | the pod's namespace, name, uid and sandbox |
//! | `sizing` | sets the values of a pod's cgroup, and restores them |
//! | `shim_end` | decides when the shim ends |
//! | [`clock`] | wall-clock time, CPU time, the timer of the core, the CPU meter of probes |
//! | `simulation` | a simulated node, on which tests run pods |
//! | `fuzz` | fuzz targets for calls and for the input of `start`, which the tests run too |

// clippy.toml sets the maximum size of a future. Tests may exceed this size.
#![cfg_attr(not(test), deny(clippy::large_futures))]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::restriction, reason = "tests may panic"))]
// Only the thread that serves a pod must not block, so tests may use blocking calls.
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests may wait"))]

mod bundle;
pub mod calls;
pub mod clock;
pub mod connections;
#[expect(clippy::disallowed_methods, reason = "/proc, and sockets below /run")]
pub mod control;
pub mod events;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod node;
pub mod pod;
mod pod_meta;
pub mod process;
pub mod record;
mod report_log;
pub mod sandbox;
mod shim_end;
#[cfg(test)]
mod simulation;
mod sizing;
mod status;
pub mod task;
mod task_table;

pub use process::main;
