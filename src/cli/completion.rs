//! `usher completion`: completion of usher's arguments for a shell.

use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::Usher;
use super::output::{Failure, Stdout};

/// Prints a script with which a shell completes usher's arguments
///
/// For bash, `usher completion bash > /etc/bash_completion.d/usher`; for zsh, the same into a file
/// `_usher` in one of the directories of $fpath; for fish, into
/// `~/.config/fish/completions/usher.fish`.
#[derive(Debug, Args)]
pub(super) struct Completion {
    /// The shell
    shell: Shell,
}

impl Completion {
    pub(super) fn run(self, stdout: &mut Stdout) -> Result<ExitCode, Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Usher::command(), "usher", &mut script);
        stdout.bytes(&script)?;
        Ok(ExitCode::SUCCESS)
    }
}
