//! The shim process: its arguments and commands.
//!
//! containerd runs the binary with `start` for every container and reads an address from its
//! output. The process that listens at this address serves the whole pod. containerd runs the
//! binary with `delete` when a container is gone, or its shim has died. The shim itself runs the
//! binary as a [prober], and to make the namespaces of a pod without a pause container.
//! (<https://github.com/containerd/containerd/blob/main/core/runtime/v2/README.md>)

#[expect(clippy::disallowed_methods, reason = "below /run, in memory")]
mod address;
mod bootstrap;
mod callers;
#[expect(clippy::disallowed_methods, reason = "below /run, in memory")]
mod control;
mod delete;
mod error;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
#[expect(clippy::disallowed_methods, reason = "a process that serves nothing")]
mod info;
#[expect(clippy::disallowed_methods, reason = "/proc")]
mod kernel;
#[expect(clippy::disallowed_methods, reason = "a FIFO in the bundle")]
mod log;
mod placement;
pub(crate) mod serve;
#[expect(clippy::disallowed_methods, reason = "a process that serves nothing")]
mod start;
mod starter;

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use containerd_shim::Flags;

use error::ShimError;
use usher_api::VERSION;
use usher_engine::EngineKind;
use usher_linux::cgroup::place;
use usher_linux::probe::prober;

/// Name of this binary, used if the arguments do not have the name.
const PROGRAM: &str = "containerd-shim-usher-v2";

/// Arguments that ask for help.
const HELP: [&str; 3] = ["-h", "-help", "--help"];

/// Exit code if a command could not be executed, as in a shell.
const COMMAND_NOT_RUN: u8 = 127;

/// Runs the shim's command line. The first argument is the program's name, and `kind` makes the
/// engine. `revision` is the commit of the build; empty if unknown.
pub fn main(arguments: Vec<OsString>, kind: &dyn EngineKind, revision: &str) -> ExitCode {
    let (program, arguments) = arguments.split_first().unzip();
    let program = program
        .and_then(|program| Path::new(program).file_name())
        .and_then(|name| name.to_str())
        .unwrap_or(PROGRAM);
    let outcome = match arguments.unwrap_or_default() {
        [mode, command @ ..] if mode == place::MODE => {
            // `enter` returns only if the command cannot be executed. The exit code reports this
            // failure to the process that waits for the command.
            let _ = place::enter(command);
            return ExitCode::from(COMMAND_NOT_RUN);
        }
        [mode] if mode == prober::MODE => prober::main().map_err(ShimError::from),
        [mode, ..] if kind.is_mode(mode) => {
            kind.run_mode(arguments.unwrap_or_default());
            Ok(())
        }
        [help] if HELP.iter().any(|word| help == word) => print(usage(program).as_bytes()),
        arguments => containerd_shim::parse(arguments)
            .map_err(ShimError::Arguments)
            .and_then(|flags| run(program, &flags, kind, revision)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // containerd adds this text to its own error.
            let _ = writeln!(std::io::stderr(), "{program}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage(program: &str) -> String {
    format!(
        "{program}, version {VERSION}: the containerd runtime shim of usher\n\n\
         containerd starts it for each pod of a runtime that names it; people use the command usher, as in\n\
         usher --help.\n\n\
         Usage:\n  \
           {program} -v      the version\n  \
           {program} -info   for containerd: the runtime, and the features of its OCI runtime\n  \
           {program} -namespace NAMESPACE -id ID -address SOCKET [-debug] [-bundle DIR] start|delete\n                 \
                     for containerd: starts the shim of a pod, or clears away after one\n"
    )
}

fn run(
    program: &str,
    flags: &Flags,
    kind: &dyn EngineKind,
    revision: &str,
) -> Result<(), ShimError> {
    if flags.version {
        let said = format!("{program}:\n  Version:  {VERSION}\n  Revision: {revision}\n");
        return print(said.as_bytes());
    }
    if flags.info {
        return print(&info::info(program, kind, revision)?);
    }
    if flags.namespace.is_empty() {
        return Err(ShimError::NoNamespace);
    }
    match flags.action.as_str() {
        "start" => print(&start::start(flags, kind)?),
        "delete" => print(&delete::delete(flags, kind)?),
        "" => serve::serve(flags, kind),
        action => Err(ShimError::UnknownAction(action.to_owned())),
    }
}

fn print(text: &[u8]) -> Result<(), ShimError> {
    let mut stdout = std::io::stdout().lock();
    stdout
        .write_all(text)
        .and_then(|()| stdout.flush())
        .map_err(ShimError::cannot("write the answer"))
}
