//! `usher`, the command-line tool, with one module for each subcommand.
//!
//! A subcommand is a struct of its arguments with a method `run`. It writes results to the given
//! standard output, as text or, with `-o json`, as JSON, and everything else to standard error. The
//! exit status is 0 on success, 1 on a problem, 2 if the arguments are invalid, and 141 if the reader
//! has closed standard output.
//!
//! `kubectl usher` uses the public items to show the pods of other nodes.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::restriction, reason = "tests may panic"))]

mod cgroups;
mod check;
pub mod choice;
mod completion;
mod containerd;
mod convert;
pub mod explain;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod help;
pub mod inspect;
mod install;
pub mod json;
mod man;
mod manifest;
mod metrics;
mod node;
pub mod output;
mod pages;
pub mod ps;
mod release;
mod stop;
mod systemd;
#[cfg(test)]
mod tests;
mod time;
pub mod timeline;
mod words;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::builder::styling::{AnsiColor, Styles};
use clap::{CommandFactory, Parser, Subcommand};

use output::{Failure, Stdout};

/// The colors of help texts. They are those of cargo.
pub const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// Shows the pods of this node that run under usher, and checks and installs usher
///
/// usher is a containerd runtime shim that starts and stops the containers of a pod in order. This
/// command is for authors of pods and for administrators of nodes.
///
/// Results go to standard output, as JSON with `-o json`; everything else goes to standard error.
/// Only terminals get colors, and not if NO_COLOR is set.
#[derive(Debug, Parser)]
#[command(name = "usher", version, styles = STYLES, propagate_version = false)]
#[command(
    disable_help_subcommand = true,
    after_help = EXIT_STATUS
)]
struct Usher {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Ps(ps::Ps),
    Inspect(inspect::Inspect),
    Timeline(timeline::Timeline),
    Stop(stop::Stop),
    Release(release::Release),
    Metrics(metrics::Metrics),
    Check(check::Check),
    Install(install::Install),
    Completion(completion::Completion),
    Convert(convert::Convert),
    Explain(explain::Explain),
    Man(man::Man),
    Help(help::Help),
}

/// The exit status of most commands, for their help texts.
pub const EXIT_STATUS: &str = "Exit status: 0 on success, 1 on a problem, 2 if the arguments are invalid, 141 if the \
                               reader has closed standard output.";

/// The definition of the command line.
pub fn command() -> clap::Command {
    Usher::command()
}

/// Runs `usher` with these arguments; the first is the program's name.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    run(arguments, |usher: Usher, stdout| usher.command.run(stdout))
}

/// Parses arguments, of which the first is the program's name, runs `command` on them, and prints
/// its error, if any.
pub fn run<P: Parser>(
    arguments: impl IntoIterator<Item = OsString>,
    command: impl FnOnce(P, &mut Stdout) -> Result<ExitCode, Failure>,
) -> ExitCode {
    let parsed = match P::try_parse_from(arguments) {
        Ok(parsed) => parsed,
        Err(said) => {
            // clap also returns the help text as an error, and prints it to standard output.
            let status = said.exit_code();
            let _ = said.print();
            return ExitCode::from(u8::try_from(status).unwrap_or(2));
        }
    };
    let mut stdout = Stdout::new();
    match command(parsed, &mut stdout) {
        Ok(status) => status,
        Err(failure) => failure.report(),
    }
}

impl Command {
    fn run(self, stdout: &mut Stdout) -> Result<ExitCode, Failure> {
        match self {
            Command::Ps(command) => command.run(stdout),
            Command::Inspect(command) => command.run(stdout),
            Command::Timeline(command) => command.run(stdout),
            Command::Stop(command) => command.run(stdout),
            Command::Release(command) => command.run(stdout),
            Command::Metrics(command) => command.run(stdout),
            Command::Check(command) => command.run(stdout),
            Command::Install(command) => command.run(stdout),
            Command::Completion(command) => command.run(stdout),
            Command::Convert(command) => command.run(stdout),
            Command::Explain(command) => command.run(stdout),
            Command::Man(command) => command.run(stdout),
            Command::Help(command) => command.run(stdout),
        }
    }
}
