//! `kubectl usher`: what the usher shims of a cluster do, as `usher` shows it on a node.
//!
//! Nothing is shown here: a node's own `usher` is asked for its facts as JSON, and what they become is
//! [`usher::cli`]'s, as on the node. Here is what brings them from there:
//!
//! | module | what it is |
//! |---|---|
//! | [`arguments`] | the command line |
//! | [`cluster`] | the API server, as the user's kubeconfig has it |
//! | [`view`] | the pods by which nodes are asked: who they are, what they say, and why one says nothing |
//! | [`commands`] | from what nodes say to what is shown |

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

pub mod arguments;
pub mod cluster;
pub mod commands;
pub mod view;

use std::ffi::OsString;
use std::process::ExitCode;

use arguments::Arguments;

/// Runs the program with these arguments, of which the first is its name.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    usher::cli::run(arguments, |asked: Arguments, stdout| {
        commands::run(asked, stdout)
    })
}
