//! `kubectl usher`: the commands of `usher` for all nodes of a cluster.
//!
//! The plugin runs `usher … -o json` on the nodes and shows the results with [`usher_cli`], which
//! also formats the output on a node:
//!
//! | module | purpose |
//! |---|---|
//! | [`arguments`] | the command line |
//! | [`cluster`] | the API server, reached by the user's kubeconfig |
//! | [`view`] | runs `usher` on nodes, in the pods of the DaemonSet usher-view |
//! | [`commands`] | the commands |

#![cfg_attr(test, allow(clippy::restriction, reason = "tests may panic"))]
#![forbid(unsafe_code)]

pub mod arguments;
pub mod cluster;
pub mod commands;
pub mod view;

use std::ffi::OsString;
use std::process::ExitCode;

use arguments::Arguments;

/// Runs the program; the first argument is its name.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    usher_cli::run(arguments, |arguments: Arguments, stdout| {
        commands::run(arguments, stdout)
    })
}
