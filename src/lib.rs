//! usher: a containerd runtime shim that ushers the containers of a pod in and out in order.
//!
//! One shim process manages all containers of a pod sandbox. The modules follow the architecture:
//!
//! | module | content |
//! |---|---|
//! | [`pod`] | the actor that owns one pod: feeds the core, carries out its actions |
//! | [`task`] | containerd's Task service: asks the actor, awaits the answer |
//! | [`sandbox`] | containerd's Sandbox service, for pods without a pause container |
//! | [`events`] | sends events to containerd, in order |
//! | [`clock`] | wall-clock time and CPU time |
//! | [`record`] | the history of a pod |
//! | [`control`] | the control socket: shows a pod to `usher`, and takes its commands |
//! | [`shim`] | the shim process: arguments, bootstrap, serving, `delete` |
//! | [`cli`] | the `usher` command: one file for each subcommand |
//! | `fuzz` | entry points for untrusted input, for the fuzzer and for tests |

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
#![forbid(unsafe_code)]
// Only the thread that serves a pod must not block, so tests may use blocking calls.
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests may wait"))]

#[expect(clippy::disallowed_methods, reason = "a process that serves nothing")]
pub mod cli;
pub mod clock;
#[expect(clippy::disallowed_methods, reason = "/proc, and sockets below /run")]
pub mod control;
pub mod events;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod pod;
pub mod record;
pub mod sandbox;
pub mod shim;
#[cfg(test)]
mod simulation;
pub mod task;
