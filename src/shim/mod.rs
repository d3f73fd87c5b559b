//! The process: what containerd calls the binary with, and what becomes of it.
//!
//! containerd runs the binary with `start` for every container and reads an address from its
//! output; the process that listens there serves the whole pod. It runs the binary with `delete`
//! when a container is gone, or its shim has died.
//! (<https://github.com/containerd/containerd/blob/main/core/runtime/v2/README.md>)

mod address;
mod bootstrap;
mod callers;
mod delete;
mod leftovers;
mod log;
mod serve;
mod start;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use containerd_shim::Flags;

/// The version of this crate.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Runs the shim's binary with these arguments, the program's name left out.
pub fn main(arguments: Vec<OsString>) -> ExitCode {
    let outcome = containerd_shim::parse(&arguments)
        .map_err(|error| error.to_string())
        .and_then(|flags| run(&flags));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // containerd puts what is said here into its own error.
            let _ = writeln!(std::io::stderr(), "containerd-shim-usher-v2: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(flags: &Flags) -> Result<(), String> {
    if flags.version {
        return print(format!("containerd-shim-usher-v2:\n  Version: {VERSION}\n").as_bytes());
    }
    if flags.namespace.is_empty() {
        return Err("no -namespace is given, expected containerd's".to_owned());
    }
    match flags.action.as_str() {
        "start" => print(&start::start(flags)?),
        "delete" => print(&delete::delete(flags)?),
        "" => serve::serve(flags),
        action => Err(format!(
            "action {action:?} is unknown, expected start or delete"
        )),
    }
}

fn print(text: &[u8]) -> Result<(), String> {
    let mut stdout = std::io::stdout().lock();
    stdout
        .write_all(text)
        .and_then(|()| stdout.flush())
        .map_err(|error| format!("the answer cannot be written: {error}"))
}
