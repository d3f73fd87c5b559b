//! `usher`, the command for people and their scripts: one file a command.
//!
//! A command is a struct of its arguments with a `run` that writes to the standard output it is
//! given. Facts go there, as text or, with `-o json`, as JSON; everything else goes to standard
//! error. Its exit status is 0 if all is well, 1 if something is not, 2 if the arguments make no
//! sense.
//!
//! What is public shows what other nodes have said, for `kubectl usher`.

mod cgroups;
mod check;
pub mod choice;
mod completion;
mod containerd;
mod convert;
pub mod explain;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
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

/// How help is coloured: as cargo's.
pub const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// Shows what the usher shims of this node do, and what they would do
///
/// usher is a containerd runtime shim that ushers the containers of a pod in and out in order. This
/// command is for those who write pods for it, and for those who look after its nodes.
///
/// Facts go to standard output, as JSON with `-o json`; everything else goes to standard error.
/// Colours are only for terminals, and for none where NO_COLOR is set.
#[derive(Debug, Parser)]
#[command(name = "usher", version, styles = STYLES, propagate_version = false)]
#[command(
    disable_help_subcommand = true,
    after_help = "Exit status: 0 if all is well, 1 if something is not, 2 if the arguments make no sense."
)]
struct Usher {
    #[command(subcommand)]
    command: Command,
}

/// Only commands that work.
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

/// All that its command line can say.
pub fn command() -> clap::Command {
    Usher::command()
}

/// Runs the command with these arguments, of which the first is the program's name.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    run(arguments, |usher: Usher, stdout| usher.command.run(stdout))
}

/// Runs what is asked for by these arguments, of which the first is the program's name, and says why if
/// that fails.
pub fn run<P: Parser>(
    arguments: impl IntoIterator<Item = OsString>,
    command: impl FnOnce(P, &mut Stdout) -> Result<ExitCode, Failure>,
) -> ExitCode {
    let asked = match P::try_parse_from(arguments) {
        Ok(asked) => asked,
        Err(said) => {
            // Help that was asked for is no error, and goes to standard output.
            let status = said.exit_code();
            let _ = said.print();
            return ExitCode::from(u8::try_from(status).unwrap_or(2));
        }
    };
    let mut stdout = Stdout::new();
    match command(asked, &mut stdout) {
        Ok(status) => status,
        // Whoever reads has enough, as `head` does: no reason to complain.
        Err(Failure::NobodyReads) => ExitCode::SUCCESS,
        Err(Failure::Because(why)) => {
            output::complain(&why);
            ExitCode::FAILURE
        }
        Err(Failure::Senseless(why)) => {
            output::complain(&why);
            ExitCode::from(2)
        }
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
